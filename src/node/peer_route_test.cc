#include "terrace/peer_route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

using testing::HasSubstr;

PeerRoute Parsed(std::string_view text) {
  auto route = ParseTransferParams(text);
  EXPECT_TRUE(route.ok()) << text << "\n" << (route.ok() ? "" : route.error().message);
  return route.ok() ? std::move(route).value() : PeerRoute{};
}

std::string FaultsOf(std::string_view text) {
  const auto route = ParseTransferParams(text);
  EXPECT_FALSE(route.ok()) << text;
  if (route.ok()) return "";
  EXPECT_EQ(route.error().code, ErrorCode::kInvalidArgument);
  return route.error().message;
}

TEST(ParseTransferParams, ReadsWhereToAsk) {
  const PeerRoute route = Parsed(R"({"remote_kv_source":
      {"kv_request_id": "r1", "remote_host": "10.0.0.7", "remote_port": 5710}})");
  ASSERT_TRUE(route.source);
  EXPECT_EQ(route.source->kind, PeerRoute::SourceKind::kHolder);
  EXPECT_EQ(route.source->address, (PeerAddress{"10.0.0.7", 5710}));
  EXPECT_EQ(route.source->transfer_id, "r1");
  EXPECT_EQ(route.keep_for_transfer, "");
}

TEST(ParseTransferParams, OnlyAPrefillerNeedsAName) {
  const PeerRoute route = Parsed(R"({"remote_kv_source": {"remote_host": "a", "remote_port": 1}})");
  ASSERT_TRUE(route.source);
  EXPECT_EQ(route.source->transfer_id, "");
  EXPECT_EQ(FaultsOf(R"({"remote_prefiller": {"remote_host": "a", "remote_port": 1}})"),
            "remote_prefiller.kv_request_id: is missing");
}

TEST(ParseTransferParams, APrefillerWins) {
  const PeerRoute route = Parsed(R"({
      "remote_kv_source": {"kv_request_id": "r1", "remote_host": "a", "remote_port": 1},
      "remote_prefiller": {"kv_request_id": "r2", "remote_host": "b", "remote_port": 65535}})");
  ASSERT_TRUE(route.source);
  EXPECT_EQ(route.source->kind, PeerRoute::SourceKind::kPrefiller);
  EXPECT_EQ(route.source->address, (PeerAddress{"b", 65535}));
  EXPECT_EQ(route.source->transfer_id, "r2");
}

TEST(ParseTransferParams, ADecoderComesAloneOrWithASource) {
  const PeerRoute alone = Parsed(R"({"remote_decoder": {"kv_request_id": "r1"}})");
  EXPECT_FALSE(alone.source);
  EXPECT_EQ(alone.keep_for_transfer, "r1");
  const PeerRoute both = Parsed(R"({"remote_decoder": {"kv_request_id": "r1"},
      "remote_kv_source": {"remote_host": "a", "remote_port": 1}})");
  EXPECT_TRUE(both.source);
  EXPECT_EQ(both.keep_for_transfer, "r1");
}

TEST(ParseTransferParams, WhatIsOtherPeoplesIsIgnoredAndNullIsNothing) {
  const PeerRoute route = Parsed(R"({"max_load_tokens": 3, "remote_host": "stray", "remote_port": 7,
      "remote_prefiller": null, "remote_decoder": null,
      "remote_kv_source": {"kv_request_id": null, "remote_host": "a", "remote_port": 1,
                           "remote_block_ids": [1]}})");
  ASSERT_TRUE(route.source);
  EXPECT_EQ(route.source->kind, PeerRoute::SourceKind::kHolder);
  EXPECT_EQ(route.source->address, (PeerAddress{"a", 1}));
  const PeerRoute none = Parsed("{}");
  EXPECT_FALSE(none.source);
  EXPECT_EQ(none.keep_for_transfer, "");
}

TEST(ParseTransferParams, TellsEveryFaultAtOnceWithItsPath) {
  EXPECT_EQ(FaultsOf(R"({"remote_kv_source": {"remote_host": "", "remote_port": 0},
                         "remote_prefiller": {"kv_request_id": 7, "remote_port": "5710"},
                         "remote_decoder": {}})"),
            "remote_kv_source.remote_host: must have 1 to 253 bytes, has 0\n"
            "remote_kv_source.remote_port: must be a whole number from 1 to 65535\n"
            "remote_prefiller.kv_request_id: must be a string\n"
            "remote_prefiller.remote_host: is missing\n"
            "remote_prefiller.remote_port: must be a whole number from 1 to 65535\n"
            "remote_decoder.kv_request_id: is missing");
}

TEST(ParseTransferParams, WantsObjects) {
  for (const char* text : {"[]", "1", "null", "\"x\""}) {
    EXPECT_EQ(FaultsOf(text), "document: must be an object") << text;
  }
  for (const char* key : {"remote_kv_source", "remote_prefiller", "remote_decoder"}) {
    for (const char* value : {"[]", "1", "\"x\"", "false"}) {
      EXPECT_EQ(FaultsOf("{\"" + std::string(key) + "\": " + value + "}"),
                std::string(key) + ": must be an object");
    }
  }
}

TEST(ParseTransferParams, BoundsPortsAndText) {
  const auto with = [](const std::string& port, const std::string& host, const std::string& id) {
    return "{\"remote_prefiller\": {\"kv_request_id\": \"" + id + "\", \"remote_host\": \"" + host +
           "\", \"remote_port\": " + port + "}}";
  };
  Parsed(with("1", std::string(253, 'a'), std::string(256, 'i')));
  for (const char* port : {"0", "65536", "-1", "1.5", "18446744073709551616", "true", "[]"}) {
    EXPECT_THAT(FaultsOf(with(port, "a", "i")), HasSubstr("remote_port: must be")) << port;
  }
  EXPECT_THAT(FaultsOf(with("1", std::string(254, 'a'), "i")), HasSubstr("remote_host: must have"));
  EXPECT_THAT(FaultsOf(with("1", "a", std::string(257, 'i'))),
              HasSubstr("kv_request_id: must have"));
  EXPECT_THAT(FaultsOf(with("1", "a", "")), HasSubstr("kv_request_id: must have"));
  EXPECT_THAT(FaultsOf(with("1", "a\\u0000b", "i")), HasSubstr("remote_host: must not contain"));
}

TEST(ParseTransferParams, WantsOneDocument) {
  EXPECT_THAT(FaultsOf("{"), HasSubstr("is not JSON"));
  EXPECT_EQ(FaultsOf(""), "document: is empty; the least is {}");
  EXPECT_THAT(FaultsOf(R"({"remote_decoder": {"kv_request_id": "a", "kv_request_id": "b"}})"),
              HasSubstr("remote_decoder.kv_request_id: is given more than once"));
}

}  // namespace
}  // namespace terrace
