#include "wire/peer_message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace terrace {
namespace {

using Bytes = std::vector<std::uint8_t>;

ChunkKey Key(std::uint8_t first, std::uint32_t group = 0) {
  return ChunkKey(Bytes{first, 2, 3}, group);
}

template <typename Message>
Message RoundTrip(const Message& message) {
  auto decoded = DecodePeerMessage(EncodePeerMessage(message));
  EXPECT_TRUE(decoded.ok()) << decoded.error().message;
  return std::get<Message>(decoded.value());
}

PeerHello SomeHello() {
  PeerHello hello;
  hello.instance.fill(7);
  hello.identity.fill(9);
  hello.fields = {"model", "rev", "f16", "plain", 3, 64, 1 << 20, 1, 2, "engine"};
  return hello;
}

// Replaces the first occurrence of a text by one of equal length.
Bytes Replaced(Bytes bytes, std::string_view from, std::string_view to) {
  const auto at = std::search(bytes.begin(), bytes.end(), from.begin(), from.end());
  EXPECT_NE(at, bytes.end()) << from;
  std::copy(to.begin(), to.end(), at);
  return bytes;
}

TEST(PeerMessage, HelloComesBack) {
  const PeerHello hello = RoundTrip(SomeHello());
  EXPECT_EQ(hello.version, kPeerProtocolVersion);
  EXPECT_EQ(hello.instance, SomeHello().instance);
  EXPECT_EQ(hello.identity, SomeHello().identity);
  EXPECT_EQ(hello.fields.model, "model");
  EXPECT_EQ(hello.fields.revision, "rev");
  EXPECT_EQ(hello.fields.dtype, "f16");
  EXPECT_EQ(hello.fields.layout, "plain");
  EXPECT_EQ(hello.fields.layout_version, 3u);
  EXPECT_EQ(hello.fields.tokens_per_chunk, 64u);
  EXPECT_EQ(hello.fields.chunk_bytes, 1u << 20);
  EXPECT_EQ(hello.fields.shard_index, 1u);
  EXPECT_EQ(hello.fields.shard_count, 2u);
  EXPECT_EQ(hello.fields.engine, "engine");
}

TEST(PeerMessage, WelcomeComesBack) {
  PeerWelcome welcome;
  welcome.instance.fill(1);
  welcome.token.fill(2);
  welcome.lease_ms = 5000;
  welcome.planes = {{0, "@name"}, {2, std::string("\0\xff", 2)}};
  const PeerWelcome got = RoundTrip(welcome);
  EXPECT_EQ(got.instance, welcome.instance);
  EXPECT_EQ(got.token, welcome.token);
  EXPECT_EQ(got.lease_ms, 5000u);
  ASSERT_EQ(got.planes.size(), 2u);
  EXPECT_EQ(got.planes[0].offer, "@name");
  EXPECT_EQ(got.planes[1].kind, 2);
  EXPECT_EQ(got.planes[1].offer, std::string("\0\xff", 2));
}

TEST(PeerMessage, RefusalComesBack) {
  const PeerRefusal refusal = RoundTrip(PeerRefusal{{4}, "model", "a", "b"});
  EXPECT_EQ(refusal.instance, InstanceId{4});
  EXPECT_EQ(refusal.field + refusal.theirs + refusal.yours, "modelab");
}

TEST(PeerMessage, LookupComesBackWithAsManyKeysAsThereMayBe) {
  PeerLookup lookup{~std::uint64_t{0}, "transfer", true, 1000, {}};
  for (std::size_t i = 0; i < kPeerKeysMax; ++i) {
    lookup.keys.push_back(ChunkKey(Bytes(ChunkKey::kMaxHashSize, static_cast<std::uint8_t>(i)),
                                   0xffff'ff00u + static_cast<std::uint32_t>(i)));
  }
  const PeerLookup got = RoundTrip(lookup);
  EXPECT_EQ(got.id, lookup.id);
  EXPECT_EQ(got.transfer_id, "transfer");
  EXPECT_TRUE(got.wait);
  EXPECT_EQ(got.timeout_ms, 1000u);
  EXPECT_EQ(got.keys, lookup.keys);
}

TEST(PeerMessage, AnswerComesBack) {
  const PeerAnswer answer = RoundTrip(PeerAnswer{3, 4, {0b101, 0x80}});
  EXPECT_EQ(answer.id, 3u);
  EXPECT_EQ(answer.lease, 4u);
  EXPECT_TRUE(answer.Has(0));
  EXPECT_FALSE(answer.Has(1));
  EXPECT_TRUE(answer.Has(2));
  EXPECT_TRUE(answer.Has(15));
  EXPECT_FALSE(answer.Has(16));
}

TEST(PeerMessage, SmallOnesComeBack) {
  EXPECT_EQ(RoundTrip(PeerCancel{8}).id, 8u);
  EXPECT_EQ(RoundTrip(PeerRenew{{1, 2}}).leases, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(RoundTrip(PeerRenew{}).leases.size(), 0u);
  EXPECT_EQ(RoundTrip(PeerRelease{std::vector<std::uint64_t>(kPeerLeasesMax, 9)}).leases.size(),
            kPeerLeasesMax);
  EXPECT_EQ(RoundTrip(PeerBye{"going"}).why, "going");
}

// Of another version nothing else is looked at: it may have any other form.
TEST(PeerMessage, OfAnotherVersionOnlyTheNumberIsRead) {
  PeerHello hello = SomeHello();
  hello.version = 2;
  Bytes bytes = Replaced(EncodePeerMessage(hello), "model", "MODEL");
  auto decoded = DecodePeerMessage(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<PeerHello>(decoded.value()).version, 2u);
}

void ExpectFault(const Bytes& bytes, std::string_view what) {
  const auto decoded = DecodePeerMessage(bytes);
  ASSERT_FALSE(decoded.ok()) << what;
  EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(decoded.error().message.find(what), std::string::npos) << decoded.error().message;
}

TEST(PeerMessage, EveryPrefixIsRefused) {
  const Bytes whole = EncodePeerMessage(SomeHello());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(DecodePeerMessage(std::span(whole).first(size)).ok()) << size;
  }
}

TEST(PeerMessage, WhatIsBehindItIsRefused) {
  Bytes bytes = EncodePeerMessage(PeerBye{"x"});
  bytes.push_back(0xc0);
  ExpectFault(bytes, "more behind");
}

TEST(PeerMessage, AMissingFieldIsNamed) {
  ExpectFault(Replaced(EncodePeerMessage(SomeHello()), "dtype", "DTYPE"), "dtype is missing");
}

TEST(PeerMessage, AFieldOfAnotherTypeIsNamed) {
  Bytes bytes = EncodePeerMessage(PeerCancel{8});
  bytes.back() = 0xa0;  // An empty text where the number was.
  ExpectFault(bytes, "id is of another type");
}

TEST(PeerMessage, TooManyKeysAreRefused) {
  PeerLookup lookup{1, "", false, 1, std::vector<ChunkKey>(kPeerKeysMax + 1, Key(1))};
  ExpectFault(EncodePeerMessage(lookup), "keys is too long");
}

TEST(PeerMessage, ALookupOfNothingIsRefused) {
  ExpectFault(EncodePeerMessage(PeerLookup{1, "", false, 1, {}}), "keys is empty");
}

TEST(PeerMessage, AKeyWithoutAHashIsRefused) {
  Bytes bytes = EncodePeerMessage(PeerLookup{1, "", false, 1, {Key(1)}});
  // The key's seven bytes become four: only the group is left.
  bytes.resize(bytes.size() - 3);
  bytes[bytes.size() - 5] = 4;
  ExpectFault(bytes, "no key");
}

TEST(PeerMessage, ALongTextIsRefused) {
  ExpectFault(EncodePeerMessage(PeerBye{std::string(kPeerTextMax + 1, 'x')}), "why is too long");
}

TEST(PeerMessage, AnUnknownKindIsOfANewerVersion) {
  const auto decoded = DecodePeerMessage(Replaced(EncodePeerMessage(PeerBye{"x"}), "bye", "hey"));
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().code, ErrorCode::kIncompatible);
}

TEST(PeerMessage, AnArrayThatClaimsMuchTakesNoMemory) {
  // A map of one: "kind" to an array of 2^32 - 1.
  ExpectFault({0x81, 0xa4, 'k', 'i', 'n', 'd', 0xdd, 0xff, 0xff, 0xff, 0xff}, "not msgpack");
}

TEST(PeerMessage, DeepNestingIsRefused) { ExpectFault(Bytes(60'000, 0x91), "not msgpack"); }

TEST(PeerMessage, JunkIsRefused) {
  for (const std::string_view junk : {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "", "\x80"}) {
    EXPECT_FALSE(
        DecodePeerMessage({reinterpret_cast<const std::uint8_t*>(junk.data()), junk.size()}).ok());
  }
}

}  // namespace
}  // namespace terrace
