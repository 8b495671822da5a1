#include "wire/peer_message.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <msgpack.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

// The first field of every message.
constexpr std::string_view kKindField = "kind";
// Fields of a message, and of the map inside a hello. Deeper there is nothing.
constexpr std::size_t kFieldsMax = 32;
constexpr std::size_t kGroupBytes = 4;
constexpr std::size_t kPlanesMax = 8;

// ---- Writing

class Writer {
 public:
  Writer(std::string_view kind, std::uint32_t fields) : packer_(buffer_) {
    packer_.pack_map(fields + 1);
    Text(kKindField, kind);
  }

  void Number(std::string_view name, std::uint64_t value) {
    Name(name);
    packer_.pack_uint64(value);
  }
  void Flag(std::string_view name, bool value) {
    Name(name);
    value ? packer_.pack_true() : packer_.pack_false();
  }
  void Text(std::string_view name, std::string_view value) {
    Name(name);
    Name(value);
  }
  void Bytes(std::string_view name, std::span<const std::uint8_t> value) {
    Name(name);
    Bytes(value);
  }
  void Numbers(std::string_view name, std::span<const std::uint64_t> values) {
    Array(name, values.size());
    for (const std::uint64_t value : values) packer_.pack_uint64(value);
  }
  void Keys(std::string_view name, std::span<const ChunkKey> keys) {
    Array(name, keys.size());
    for (const ChunkKey& key : keys) {
      std::uint8_t bytes[kGroupBytes + ChunkKey::kMaxHashSize];
      for (std::size_t i = 0; i < kGroupBytes; ++i) {
        bytes[i] = static_cast<std::uint8_t>(key.group() >> 8 * i);
      }
      std::copy(key.hash().begin(), key.hash().end(), bytes + kGroupBytes);
      Bytes({bytes, kGroupBytes + key.hash().size()});
    }
  }
  void Planes(std::string_view name, std::span<const PeerWelcome::Plane> planes) {
    Array(name, 2 * planes.size());
    for (const PeerWelcome::Plane& plane : planes) {
      packer_.pack_uint64(plane.kind);
      Bytes({reinterpret_cast<const std::uint8_t*>(plane.offer.data()), plane.offer.size()});
    }
  }

  std::vector<std::uint8_t> Take() {
    const auto* begin = reinterpret_cast<const std::uint8_t*>(buffer_.data());
    std::vector<std::uint8_t> bytes(begin, begin + buffer_.size());
    TERRACE_CHECK(bytes.size() <= kPeerMessageBytesMax, "a message to a peer is too long");
    return bytes;
  }

 private:
  void Name(std::string_view name) {
    packer_.pack_str(static_cast<std::uint32_t>(name.size()));
    packer_.pack_str_body(name.data(), static_cast<std::uint32_t>(name.size()));
  }
  void Array(std::string_view name, std::size_t size) {
    Name(name);
    packer_.pack_array(static_cast<std::uint32_t>(size));
  }
  void Bytes(std::span<const std::uint8_t> value) {
    packer_.pack_bin(static_cast<std::uint32_t>(value.size()));
    packer_.pack_bin_body(reinterpret_cast<const char*>(value.data()),
                          static_cast<std::uint32_t>(value.size()));
  }

  msgpack::sbuffer buffer_;
  msgpack::packer<msgpack::sbuffer> packer_;
};

std::vector<std::uint8_t> Encode(const PeerHello& hello) {
  const CacheIdentityFields& fields = hello.fields;
  Writer out("hello", 13);
  out.Number("version", hello.version);
  out.Bytes("instance", hello.instance);
  out.Bytes("identity", hello.identity);
  out.Text("model", fields.model);
  out.Text("revision", fields.revision);
  out.Text("dtype", fields.dtype);
  out.Text("layout", fields.layout);
  out.Number("layout_version", fields.layout_version);
  out.Number("tokens_per_chunk", fields.tokens_per_chunk);
  out.Number("chunk_bytes", fields.chunk_bytes);
  out.Number("shard_index", fields.shard_index);
  out.Number("shard_count", fields.shard_count);
  out.Text("engine", fields.engine);
  return out.Take();
}

std::vector<std::uint8_t> Encode(const PeerWelcome& welcome) {
  Writer out("welcome", 5);
  out.Number("version", welcome.version);
  out.Bytes("instance", welcome.instance);
  out.Bytes("token", welcome.token);
  out.Number("lease_ms", welcome.lease_ms);
  out.Planes("planes", welcome.planes);
  return out.Take();
}

std::vector<std::uint8_t> Encode(const PeerRefusal& refusal) {
  Writer out("refusal", 4);
  out.Bytes("instance", refusal.instance);
  out.Text("field", refusal.field);
  out.Text("theirs", refusal.theirs);
  out.Text("yours", refusal.yours);
  return out.Take();
}

std::vector<std::uint8_t> Encode(const PeerLookup& lookup) {
  Writer out("lookup", 5);
  out.Number("id", lookup.id);
  out.Text("transfer_id", lookup.transfer_id);
  out.Flag("wait", lookup.wait);
  out.Number("timeout_ms", lookup.timeout_ms);
  out.Keys("keys", lookup.keys);
  return out.Take();
}

std::vector<std::uint8_t> Encode(const PeerCancel& cancel) {
  Writer out("cancel", 1);
  out.Number("id", cancel.id);
  return out.Take();
}

std::vector<std::uint8_t> Encode(const PeerAnswer& answer) {
  Writer out("answer", 3);
  out.Number("id", answer.id);
  out.Number("lease", answer.lease);
  out.Bytes("present", answer.present);
  return out.Take();
}

std::vector<std::uint8_t> Encode(const PeerRenew& renew) {
  Writer out("renew", 1);
  out.Numbers("leases", renew.leases);
  return out.Take();
}

std::vector<std::uint8_t> Encode(const PeerRelease& release) {
  Writer out("release", 1);
  out.Numbers("leases", release.leases);
  return out.Take();
}

std::vector<std::uint8_t> Encode(const PeerBye& bye) {
  Writer out("bye", 1);
  out.Text("why", bye.why);
  return out.Take();
}

// ---- Reading

// One fault is enough: the first. Every getter gives some value whatever is there.
class Reader {
 public:
  explicit Reader(const msgpack::object& map) : map_(map) {}

  const std::optional<std::string>& fault() const { return fault_; }

  std::uint64_t Number(std::string_view name, std::uint64_t max, std::uint64_t min = 0) {
    const msgpack::object* value = Find(name, msgpack::type::POSITIVE_INTEGER);
    if (value == nullptr) return min;
    if (value->via.u64 < min || value->via.u64 > max) return Fail(name, "is out of range"), min;
    return value->via.u64;
  }
  std::uint32_t Number32(std::string_view name, std::uint64_t min = 0) {
    return static_cast<std::uint32_t>(Number(name, 0xffff'ffff, min));
  }
  bool Flag(std::string_view name) {
    const msgpack::object* value = Find(name, msgpack::type::BOOLEAN);
    return value != nullptr && value->via.boolean;
  }
  std::string Text(std::string_view name) {
    const msgpack::object* value = Find(name, msgpack::type::STR);
    if (value == nullptr) return {};
    if (value->via.str.size > kPeerTextMax) return Fail(name, "is too long"), std::string();
    return {value->via.str.ptr, value->via.str.size};
  }
  std::span<const std::uint8_t> Bytes(std::string_view name, std::size_t max) {
    const msgpack::object* value = Find(name, msgpack::type::BIN);
    return value == nullptr ? std::span<const std::uint8_t>() : BytesOf(name, *value, max);
  }
  template <std::size_t kSize>
  void Fixed(std::string_view name, std::array<std::uint8_t, kSize>& out) {
    const auto bytes = Bytes(name, kSize);
    if (bytes.size() != kSize) return Fail(name, "has another length");
    std::copy(bytes.begin(), bytes.end(), out.begin());
  }
  std::vector<std::uint64_t> Numbers(std::string_view name, std::size_t max) {
    std::vector<std::uint64_t> numbers;
    for (const msgpack::object& item : Array(name, max)) {
      if (item.type != msgpack::type::POSITIVE_INTEGER) {
        Fail(name, "has something else than numbers");
        return {};
      }
      numbers.push_back(item.via.u64);
    }
    return numbers;
  }
  std::vector<ChunkKey> Keys(std::string_view name) {
    std::vector<ChunkKey> keys;
    for (const msgpack::object& item : Array(name, kPeerKeysMax)) {
      const auto bytes = BytesOf(name, item, kGroupBytes + ChunkKey::kMaxHashSize);
      if (bytes.size() <= kGroupBytes) return Fail(name, "has something that is no key"), keys;
      std::uint32_t group = 0;
      for (std::size_t i = 0; i < kGroupBytes; ++i) group |= std::uint32_t{bytes[i]} << 8 * i;
      keys.emplace_back(bytes.subspan(kGroupBytes), group);
    }
    if (keys.empty()) Fail(name, "is empty");
    return keys;
  }
  std::vector<PeerWelcome::Plane> Planes(std::string_view name) {
    std::vector<PeerWelcome::Plane> planes;
    const auto items = Array(name, 2 * kPlanesMax);
    if (items.size() % 2 != 0) Fail(name, "has half a plane");
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const auto offer = BytesOf(name, items[i + 1], kPeerOfferMax);
      if (items[i].type != msgpack::type::POSITIVE_INTEGER || items[i].via.u64 > 0xff) {
        Fail(name, "has something that is no plane");
        continue;
      }
      planes.push_back(
          {static_cast<std::uint8_t>(items[i].via.u64), std::string(offer.begin(), offer.end())});
    }
    return planes;
  }

  void Fail(std::string_view name, std::string_view what) {
    if (!fault_) fault_ = std::string(name) + " " + std::string(what);
  }

 private:
  const msgpack::object* Find(std::string_view name, msgpack::type::object_type type) {
    for (std::uint32_t i = 0; i < map_.via.map.size; ++i) {
      const msgpack::object_kv& field = map_.via.map.ptr[i];
      if (field.key.type != msgpack::type::STR ||
          std::string_view(field.key.via.str.ptr, field.key.via.str.size) != name) {
        continue;
      }
      if (field.val.type == type) return &field.val;
      Fail(name, "is of another type");
      return nullptr;
    }
    Fail(name, "is missing");
    return nullptr;
  }
  std::span<const std::uint8_t> BytesOf(std::string_view name, const msgpack::object& value,
                                        std::size_t max) {
    if (value.type != msgpack::type::BIN || value.via.bin.size > max) {
      Fail(name, "is too long, or has something else than bytes");
      return {};
    }
    return {reinterpret_cast<const std::uint8_t*>(value.via.bin.ptr), value.via.bin.size};
  }
  std::span<const msgpack::object> Array(std::string_view name, std::size_t max) {
    const msgpack::object* value = Find(name, msgpack::type::ARRAY);
    if (value == nullptr) return {};
    if (value->via.array.size > max) {
      Fail(name, "is too long");
      return {};
    }
    return {value->via.array.ptr, value->via.array.size};
  }

  const msgpack::object& map_;
  std::optional<std::string> fault_;
};

PeerHello DecodeHello(Reader& in) {
  PeerHello hello;
  hello.version = in.Number32("version");
  // The rest is this version's; whoever gets another one refuses it by its number.
  if (hello.version != kPeerProtocolVersion) return hello;
  in.Fixed("instance", hello.instance);
  in.Fixed("identity", hello.identity);
  hello.fields.model = in.Text("model");
  hello.fields.revision = in.Text("revision");
  hello.fields.dtype = in.Text("dtype");
  hello.fields.layout = in.Text("layout");
  hello.fields.layout_version = in.Number32("layout_version");
  hello.fields.tokens_per_chunk = in.Number32("tokens_per_chunk");
  hello.fields.chunk_bytes = in.Number("chunk_bytes", ~std::uint64_t{0});
  hello.fields.shard_index = in.Number32("shard_index");
  hello.fields.shard_count = in.Number32("shard_count");
  hello.fields.engine = in.Text("engine");
  return hello;
}

PeerWelcome DecodeWelcome(Reader& in) {
  PeerWelcome welcome;
  welcome.version = in.Number32("version");
  in.Fixed("instance", welcome.instance);
  in.Fixed("token", welcome.token);
  welcome.lease_ms = in.Number32("lease_ms", 1);
  welcome.planes = in.Planes("planes");
  return welcome;
}

PeerRefusal DecodeRefusal(Reader& in) {
  PeerRefusal refusal;
  in.Fixed("instance", refusal.instance);
  refusal.field = in.Text("field");
  refusal.theirs = in.Text("theirs");
  refusal.yours = in.Text("yours");
  return refusal;
}

PeerLookup DecodeLookup(Reader& in) {
  PeerLookup lookup;
  lookup.id = in.Number("id", ~std::uint64_t{0});
  lookup.transfer_id = in.Text("transfer_id");
  lookup.wait = in.Flag("wait");
  lookup.timeout_ms = in.Number32("timeout_ms");
  lookup.keys = in.Keys("keys");
  return lookup;
}

PeerAnswer DecodeAnswer(Reader& in) {
  PeerAnswer answer;
  answer.id = in.Number("id", ~std::uint64_t{0});
  answer.lease = in.Number("lease", ~std::uint64_t{0});
  const auto present = in.Bytes("present", (kPeerKeysMax + 7) / 8);
  answer.present.assign(present.begin(), present.end());
  return answer;
}

// nullopt: no kind that is known.
std::optional<PeerMessage> DecodeKind(std::string_view kind, Reader& in) {
  if (kind == "hello") return DecodeHello(in);
  if (kind == "welcome") return DecodeWelcome(in);
  if (kind == "refusal") return DecodeRefusal(in);
  if (kind == "lookup") return DecodeLookup(in);
  if (kind == "answer") return DecodeAnswer(in);
  if (kind == "cancel") return PeerCancel{in.Number("id", ~std::uint64_t{0})};
  if (kind == "renew") return PeerRenew{in.Numbers("leases", kPeerLeasesMax)};
  if (kind == "release") return PeerRelease{in.Numbers("leases", kPeerLeasesMax)};
  if (kind == "bye") return PeerBye{in.Text("why")};
  return std::nullopt;
}

Error Corrupt(const std::string& what) {
  return {ErrorCode::kCorrupt, "read a peer's message: " + what};
}

}  // namespace

std::vector<std::uint8_t> EncodePeerMessage(const PeerMessage& message) {
  return std::visit([](const auto& one) { return Encode(one); }, message);
}

Result<PeerMessage> DecodePeerMessage(std::span<const std::uint8_t> bytes) {
  if (bytes.size() > kPeerMessageBytesMax) {
    return Corrupt(std::to_string(bytes.size()) + " bytes are more than " +
                   std::to_string(kPeerMessageBytesMax));
  }
  // Its limits are checked before memory is taken: for an array of n there is n * 24 bytes of it.
  const msgpack::unpack_limit limit(std::max(kPeerLeasesMax, kPeerKeysMax), kFieldsMax,
                                    kPeerMessageBytesMax, kPeerMessageBytesMax, 0, /*depth=*/3);
  try {
    std::size_t offset = 0;
    const msgpack::object_handle handle = msgpack::unpack(
        reinterpret_cast<const char*>(bytes.data()), bytes.size(), offset,
        [](auto...) { return true; }, nullptr, limit);
    const msgpack::object& root = handle.get();
    if (offset != bytes.size()) return Corrupt("there is more behind it");
    if (root.type != msgpack::type::MAP) return Corrupt("it is not a map");
    Reader reader(root);
    const std::string kind = reader.Text(kKindField);
    if (reader.fault()) return Corrupt(*reader.fault());
    auto message = DecodeKind(kind, reader);
    if (!message) {
      return Error{ErrorCode::kIncompatible,
                   "read a peer's message: this version does not know its kind"};
    }
    if (reader.fault()) return Corrupt(kind + ": " + *reader.fault());
    return std::move(*message);
  } catch (const std::exception&) {
    // What msgpack's parser says: not its format, too deep, too long, or cut off.
    return Corrupt("it is not msgpack within the limits");
  }
}

}  // namespace terrace
