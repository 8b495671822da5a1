#include "terrace/peer_route.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "node/faults.h"
#include "node/json_reader.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSourceKey = "remote_kv_source";
constexpr std::string_view kPrefillerKey = "remote_prefiller";
constexpr std::string_view kDecoderKey = "remote_decoder";
constexpr std::string_view kIdKey = "kv_request_id";
constexpr std::string_view kHostKey = "remote_host";
constexpr std::string_view kPortKey = "remote_port";

// What a DNS name may have, and a generous name of a hand-over; the tier sends both.
constexpr std::size_t kHostSizeMax = 253;
constexpr std::size_t kIdSizeMax = 256;

enum class Presence : std::uint8_t { kRequired, kOptional };

// Every Take...() puts what is right into place and the rest into `faults`, and goes on.
class Reader {
 public:
  explicit Reader(Faults& faults) : faults_(faults) {}

  PeerRoute TakeRoute(const Json& document) {
    PeerRoute route;
    if (!document.is_object()) {
      faults_.Add("document", "must be an object");
      return route;
    }
    // Both are read, so that what is wrong with either is told.
    auto holder = TakeSource(document, kSourceKey, PeerRoute::SourceKind::kHolder);
    auto prefiller = TakeSource(document, kPrefillerKey, PeerRoute::SourceKind::kPrefiller);
    route.source = prefiller ? std::move(prefiller) : std::move(holder);
    if (const Json* decoder = Find(document, kDecoderKey)) {
      if (decoder->is_object()) {
        TakeText(*decoder, kDecoderKey, kIdKey, Presence::kRequired, kIdSizeMax,
                 route.keep_for_transfer);
      } else {
        faults_.Add(kDecoderKey, "must be an object");
      }
    }
    return route;
  }

 private:
  // nullptr if it is not there, or null: vLLM's front ends write keys that do not apply as null.
  static const Json* Find(const Json& object, std::string_view key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<PeerRoute::Source> TakeSource(const Json& document, std::string_view key,
                                              PeerRoute::SourceKind kind) {
    const Json* const block = Find(document, key);
    if (block == nullptr) return std::nullopt;
    PeerRoute::Source source;
    source.kind = kind;
    if (!block->is_object()) {
      faults_.Add(key, "must be an object");
      return source;
    }
    const bool needs_id = kind == PeerRoute::SourceKind::kPrefiller;
    TakeText(*block, key, kIdKey, needs_id ? Presence::kRequired : Presence::kOptional, kIdSizeMax,
             source.transfer_id);
    TakeText(*block, key, kHostKey, Presence::kRequired, kHostSizeMax, source.address.host);
    TakePort(*block, key, source.address.port);
    return source;
  }

  void TakeText(const Json& object, std::string_view parent, std::string_view key,
                Presence presence, std::size_t size_max, std::string& out) {
    const std::string path = ChildPath(parent, key);
    const Json* const value = Find(object, key);
    if (value == nullptr) {
      if (presence == Presence::kRequired) faults_.Add(path, "is missing");
      return;
    }
    if (!value->is_string()) return faults_.Add(path, "must be a string");
    const auto& text = value->get_ref<const std::string&>();
    if (text.empty() || text.size() > size_max) {
      return faults_.Add(path, "must have 1 to " + std::to_string(size_max) + " bytes, has " +
                                   std::to_string(text.size()));
    }
    if (text.find('\0') != text.npos) return faults_.Add(path, "must not contain a NUL character");
    out = text;
  }

  void TakePort(const Json& object, std::string_view parent, std::uint16_t& out) {
    const std::string path = ChildPath(parent, kPortKey);
    const Json* const value = Find(object, kPortKey);
    if (value == nullptr) return faults_.Add(path, "is missing");
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
        value->get<std::uint64_t>() > 65535) {
      return faults_.Add(path, "must be a whole number from 1 to 65535");
    }
    out = value->get<std::uint16_t>();
  }

  Faults& faults_;
};

}  // namespace

Result<PeerRoute> ParseTransferParams(std::string_view json) {
  Faults faults;
  PeerRoute route;
  if (json.find_first_not_of(" \t\r\n") == json.npos) {
    faults.Add("document", "is empty; the least is {}");
  } else if (const auto document = ReadJson(json, faults))
    route = Reader(faults).TakeRoute(*document);
  if (!faults.empty()) return Error{ErrorCode::kInvalidArgument, faults.ToString()};
  return route;
}

}  // namespace terrace
