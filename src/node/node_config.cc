#include "terrace/node_config.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/fd.h"
#include "node/byte_size.h"
#include "node/faults.h"
#include "node/json_reader.h"
#include "node/node_config_check.h"
#include "node/node_config_keys.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

// How a message repeats what the document has.
std::string Shown(const Json& value) {
  if (value.is_string()) return Quote(value.get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  return value.dump();
}

std::string Range(const KeySpec& spec) {
  return std::to_string(spec.min) + " to " + std::to_string(spec.max);
}

std::vector<std::string_view> KindNames() {
  std::vector<std::string_view> names;
  for (const TierKind& kind : TierKinds()) names.push_back(kind.name);
  return names;
}

// One configuration being read. Every Take...() puts what is right into place and the rest into
// `faults`, and goes on.
class Reader {
 public:
  explicit Reader(Faults& faults) : faults_(faults) {}

  NodeConfig TakeNode(const Json& document) {
    NodeConfig config;
    if (!document.is_object()) {
      faults_.Add("document", "must be an object, is " + Shown(document));
      return config;
    }
    TakeKeys(NodeKeys(), document, "", config);
    ReportUnknown(document, "", NamesOf(NodeKeys()), nullptr);
    ReportFaultsAcrossTiers(config.secondary_tiers, faults_);
    return config;
  }

 private:
  template <typename Owner>
  static std::vector<std::string_view> NamesOf(std::span<const Key<Owner>> keys) {
    std::vector<std::string_view> names;
    for (const Key<Owner>& key : keys) names.push_back(key.spec.name);
    return names;
  }

  template <typename Owner>
  void TakeKeys(std::span<const Key<Owner>> keys, const Json& object, const std::string& parent,
                Owner& owner) {
    for (const Key<Owner>& key : keys) {
      const std::string path = ChildPath(parent, key.spec.name);
      if (const auto found = object.find(key.spec.name); found != object.end()) {
        std::visit([&](auto* out) { Take(key.spec, *found, path, *out); }, key.field(owner));
      } else if (key.spec.required) {
        faults_.Add(path, "is missing (" + std::string(key.spec.what) + ")");
      }
    }
  }

  void Take(const KeySpec& spec, const Json& value, const std::string& path, std::uint64_t& out) {
    std::uint64_t bytes = 0;
    if (value.is_string()) {
      const auto parsed = ParseByteSize(value.get_ref<const std::string&>());
      if (!parsed.ok()) return faults_.Add(path, parsed.error().message);
      bytes = parsed.value();
    } else if (value.is_number_unsigned()) {
      bytes = value.get<std::uint64_t>();
    } else {
      return faults_.Add(path, "must be a whole number of bytes from " + Range(spec) +
                                   " or a string such as \"512MiB\", is " + Shown(value));
    }
    if (bytes < spec.min || bytes > spec.max) {
      return faults_.Add(path, "must be " + Range(spec) + " bytes, is " + Shown(value));
    }
    out = bytes;
  }

  void Take(const KeySpec& spec, const Json& value, const std::string& path, std::uint32_t& out) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < spec.min ||
        value.get<std::uint64_t>() > spec.max) {
      return faults_.Add(path,
                         "must be a whole number from " + Range(spec) + ", is " + Shown(value));
    }
    out = value.get<std::uint32_t>();
  }

  void Take(const KeySpec& spec, const Json& value, const std::string& path, double& out) {
    if (!value.is_number() || value.get<double>() < static_cast<double>(spec.min) ||
        value.get<double>() > static_cast<double>(spec.max)) {
      return faults_.Add(path, "must be a number from " + Range(spec) + ", is " + Shown(value));
    }
    out = value.get<double>();
  }

  void Take(const KeySpec&, const Json& value, const std::string& path, bool& out) {
    if (!value.is_boolean()) {
      return faults_.Add(path, "must be true or false, is " + Shown(value));
    }
    out = value.get<bool>();
  }

  void Take(const KeySpec& spec, const Json& value, const std::string& path,
            std::vector<std::string>& out) {
    if (!value.is_array()) return faults_.Add(path, "must be an array, is " + Shown(value));
    if (value.size() > spec.max) {
      return faults_.Add(path, "must have at most " + std::to_string(spec.max) + " items, has " +
                                   std::to_string(value.size()));
    }
    for (const Json& item : value) {
      std::string text;
      const std::string item_path = ItemPath(path, out.size());
      Take(spec, item, item_path, text);
      if (!text.empty() && std::find(out.begin(), out.end(), text) != out.end()) {
        faults_.Add(item_path, "is in the list already: " + Quote(text));
      }
      out.push_back(std::move(text));
    }
  }

  void Take(const KeySpec&, const Json& value, const std::string& path, ControlThreadConfig& out) {
    if (!value.is_object()) return faults_.Add(path, "must be an object, is " + Shown(value));
    TakeKeys(ControlThreadKeys(), value, path, out);
    ReportUnknown(value, path, NamesOf(ControlThreadKeys()), nullptr);
  }

  void Take(const KeySpec& spec, const Json& value, const std::string& path, std::string& out) {
    if (!value.is_string()) return faults_.Add(path, "must be a string, is " + Shown(value));
    const auto& text = value.get_ref<const std::string&>();
    if (!spec.choices.empty()) {
      if (const auto fault = FaultOfChoice(spec, text)) return faults_.Add(path, *fault);
      return void(out = text);
    }
    if (text.size() < spec.min) return faults_.Add(path, "must not be empty");
    if (text.find('\0') != text.npos) {
      return faults_.Add(path, "must not contain a NUL character, is " + Quote(text));
    }
    if (spec.has_form != nullptr && !spec.has_form(text)) {
      return faults_.Add(path, "must be " + std::string(spec.form) + ", is " + Quote(text));
    }
    out = text;
  }

  void Take(const KeySpec&, const Json& value, const std::string& path, JsonObject& out) {
    if (!value.is_object()) return faults_.Add(path, "must be an object, is " + Shown(value));
    out.text = value.dump();
  }

  void Take(const KeySpec& spec, const Json& value, const std::string& path,
            std::vector<TierConfig>& out) {
    if (!value.is_array()) return faults_.Add(path, "must be an array, is " + Shown(value));
    if (value.size() > spec.max) {
      return faults_.Add(path, "must have at most " + std::to_string(spec.max) + " tiers, has " +
                                   std::to_string(value.size()));
    }
    for (const Json& item : value) out.push_back(TakeTier(item, ItemPath(path, out.size())));
  }

  TierConfig TakeTier(const Json& item, const std::string& path) {
    TierConfig tier;
    if (!item.is_object()) {
      faults_.Add(path, "must be an object with a type, is " + Shown(item));
      return tier;
    }
    const TierKind* const kind = TakeTierKind(item, path);
    std::vector<std::string_view> known;
    if (kind != nullptr) {
      tier.type = kind->type;
      const std::size_t faults_before = faults_.count();
      TakeKeys(kind->keys, item, path, tier);
      // A key that was not taken would be found missing by the others.
      if (faults_.count() == faults_before) ReportFaultsWithin(tier, path, faults_);
      known = NamesOf(kind->keys);
    } else {
      // Which keys are right is unknown; only those that no kind has are surely wrong.
      for (const TierKind& any : TierKinds()) {
        for (const auto& key : any.keys) known.push_back(key.spec.name);
      }
    }
    known.push_back(kTierTypeKey);
    ReportUnknown(item, path, known, kind);
    return tier;
  }

  // nullptr, and a fault, if the entry does not name a kind of this build.
  const TierKind* TakeTierKind(const Json& item, const std::string& parent) {
    const std::string path = ChildPath(parent, kTierTypeKey);
    const std::vector<std::string_view> names = KindNames();
    const auto found = item.find(kTierTypeKey);
    if (found == item.end()) {
      faults_.Add(path, "is missing (the kind of tier, one of " + QuotedList(names) + ")");
      return nullptr;
    }
    if (!found->is_string()) {
      faults_.Add(path, "must be one of " + QuotedList(names) + ", is " + Shown(*found));
      return nullptr;
    }
    const auto& name = found->get_ref<const std::string&>();
    std::optional<std::string_view> hint = Nearest(name, names);
    for (const TierKind& kind : TierKinds()) {
      if (kind.name == name) return &kind;
      if (!kind.alias.empty() && kind.alias == name) hint = kind.name;
    }
    faults_.Add(path, Quote(name) + " is not a kind of tier in this build; it has " +
                          QuotedList(names) + DidYouMean(hint));
    return nullptr;
  }

  static std::string DidYouMean(std::optional<std::string_view> hint) {
    return hint ? "; did you mean " + Quote(*hint) + "?" : "";
  }

  // `kind` is that of the tier whose entry this is, or nullptr.
  void ReportUnknown(const Json& object, const std::string& parent,
                     std::span<const std::string_view> known, const TierKind* kind) {
    for (const auto& [name, value] : object.items()) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      const std::string path = ChildPath(parent, name);
      const TierKind* const owner = kind != nullptr ? OwnerOf(name) : nullptr;
      if (owner != nullptr) {
        faults_.Add(path, "is a key of tiers of type " + Quote(owner->name) + ", and this one is " +
                              Quote(kind->name));
      } else {
        faults_.Add(path, "is not a known key" + HintFor(name, known));
      }
    }
  }

  // Not looked for once nobody will read it: it is what costs in a document with a lot of faults.
  std::string HintFor(std::string_view name, std::span<const std::string_view> known) const {
    return faults_.full() ? "" : DidYouMean(Nearest(name, known));
  }

  static const TierKind* OwnerOf(std::string_view name) {
    for (const TierKind& kind : TierKinds()) {
      for (const auto& key : kind.keys) {
        if (key.spec.name == name) return &kind;
      }
    }
    return nullptr;
  }

  Faults& faults_;
};

// At most one byte more than a document may have, so that the parser sees that it is too long.
Result<std::string> ReadConfigFile(const std::string& path) {
  const std::string attempt = "read configuration " + path;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(attempt, errno);
  std::string text(kMaxDocumentBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(fd.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoError(attempt, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text;
}

// Every line with the file's name, as compilers do.
std::string PrefixLines(const std::string& prefix, std::string_view lines) {
  std::string prefixed = prefix;
  for (const char c : lines) {
    prefixed += c;
    if (c == '\n') prefixed += prefix;
  }
  return prefixed;
}

}  // namespace

Result<NodeConfig> ParseNodeConfig(std::string_view json) {
  Faults faults;
  NodeConfig config;
  if (const auto document = ReadJson(json, faults)) config = Reader(faults).TakeNode(*document);
  if (!faults.empty()) return Error{ErrorCode::kInvalidArgument, faults.ToString()};
  return config;
}

Result<NodeConfig> LoadNodeConfig(const std::string& path) {
  auto text = ReadConfigFile(path);
  if (!text.ok()) return std::move(text).error();
  auto config = ParseNodeConfig(text.value());
  if (config.ok()) return config;
  return Error{config.error().code, PrefixLines(path + ": ", config.error().message)};
}

}  // namespace terrace
