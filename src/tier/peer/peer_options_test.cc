#include "tier/peer/peer_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

const std::string kKey(40, 'k');

PeerTierConfig WithKeys() {
  PeerTierConfig config;
  config.public_key = kKey;
  config.secret_key_file = "/k";
  return config;
}

TEST(PeerOptions, TheDefaultsAreRight) { EXPECT_THAT(FaultsOf(PeerTierConfig{}), IsEmpty()); }

TEST(PeerOptions, KeysComeInPairs) {
  EXPECT_THAT(FaultsOf(WithKeys()), IsEmpty());
  PeerTierConfig config = WithKeys();
  config.secret_key_file = "";
  EXPECT_THAT(FaultsOf(config), ElementsAre(Pair("secret_key_file", HasSubstr("is missing"))));
  config = WithKeys();
  config.public_key = "";
  EXPECT_THAT(FaultsOf(config), ElementsAre(Pair("public_key", HasSubstr("is missing"))));
}

TEST(PeerOptions, APublicKeyIs40CharactersOfZ85AndIsNotRepeated) {
  PeerTierConfig config = WithKeys();
  for (std::string wrong : {std::string(39, 'k'), std::string(41, 'k'), std::string(39, 'k') + " ",
                            std::string(39, 'k') + "~", std::string(39, 'k') + "\""}) {
    config.public_key = wrong;
    EXPECT_THAT(FaultsOf(config),
                ElementsAre(Pair("public_key", testing::AllOf(HasSubstr("40 characters of Z85"),
                                                              HasSubstr("terrace peer-keys"),
                                                              Not(HasSubstr("kkkk"))))))
        << wrong;
  }
  config.public_key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
  EXPECT_THAT(FaultsOf(config), IsEmpty());
}

TEST(PeerOptions, WithoutKeysOnlyThisMachineMayConnectUnlessItIsSaid) {
  PeerTierConfig config;
  for (const char* here :
       {"127.0.0.1", "127.255.255.254", "::1", "localhost", "::ffff:127.0.0.1"}) {
    config.host = here;
    EXPECT_THAT(FaultsOf(config), IsEmpty()) << here;
  }
  for (const char* open :
       {"0.0.0.0", "10.0.0.7", "128.0.0.1", "::", "fe80::1", "::ffff:10.0.0.7", "example.org",
        "127.0.0.1.example.org", "localhost.example.org", "eth0", "1", ""}) {
    config.host = open;
    EXPECT_THAT(FaultsOf(config),
                ElementsAre(Pair("host", HasSubstr("allow_unauthenticated_network"))))
        << open;
    PeerTierConfig with_keys = WithKeys();
    with_keys.host = open;
    EXPECT_THAT(FaultsOf(with_keys), IsEmpty()) << open;
  }
  config.host = "0.0.0.0";
  config.allow_unauthenticated_network = true;
  EXPECT_THAT(FaultsOf(config), IsEmpty());
}

// One key does not make a network safe.
TEST(PeerOptions, TellsAllFaultsAtOnce) {
  PeerTierConfig config;
  config.public_key = "short";
  EXPECT_THAT(FaultsOf(config), ElementsAre(Pair("public_key", HasSubstr("40 characters")),
                                            Pair("secret_key_file", HasSubstr("is missing"))));
}

}  // namespace
}  // namespace terrace
