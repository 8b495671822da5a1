#include "prompts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace terrace::llama {
namespace {

using Json = nlohmann::json;

// Collects what is wrong with one line.
class LineReader {
 public:
  explicit LineReader(const Json& object) : object_(object) {}

  std::string String(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return "";
    if (!value->is_string()) return Fault(key, "is not a string"), "";
    return value->get<std::string>();
  }

  std::uint32_t Number(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() == 0 ||
        value->get<std::uint64_t>() > 1'000'000) {
      return Fault(key, "is not a number from 1 to 1000000"), 0;
    }
    return value->get<std::uint32_t>();
  }

  std::vector<Token> Tokens(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return {};
    std::vector<Token> numbers;
    if (value->is_array()) {
      for (const Json& number : *value) {
        if (!number.is_number_unsigned() ||
            number.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
          break;
        }
        numbers.push_back(number.get<Token>());
      }
    }
    if (!value->is_array() || numbers.size() != value->size()) {
      Fault(key, "is not a list of numbers from 0 to 2^31 - 1");
    }
    return numbers;
  }

  template <typename Enum>
  Enum OneOf(const char* key, const std::map<std::string, Enum>& names, Enum fallback) {
    const std::string name = String(key);
    if (name.empty()) return fallback;
    const auto found = names.find(name);
    if (found != names.end()) return found->second;
    std::string known;
    for (const auto& [known_name, value] : names) {
      known += (known.empty() ? "\"" : ", \"") + known_name + "\"";
    }
    Fault(key, "is \"" + name + "\", not one of " + known);
    return fallback;
  }

  std::shared_ptr<const PeerRoute> Route(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return nullptr;
    auto route = ParseTransferParams(value->dump());
    if (route.ok()) return std::make_shared<const PeerRoute>(std::move(route).value());
    std::string faults = route.error().message;
    std::replace(faults.begin(), faults.end(), '\n', ';');
    return Fault(key, "is wrong: " + faults), nullptr;
  }

  void Fault(const std::string& key, const std::string& what) {
    faults_ += (faults_.empty() ? "" : "; ") + key + " " + what;
  }

  std::string Finish() {
    for (const auto& [key, value] : object_.items()) {
      if (!known_.contains(key)) Fault("\"" + key + "\"", "is not a key of a prompt");
    }
    return faults_;
  }

 private:
  const Json* Find(const char* key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  const Json& object_;
  std::set<std::string> known_;
  std::string faults_;
};

Prompt ReadPrompt(LineReader& reader, std::size_t line) {
  Prompt prompt;
  prompt.id = reader.String("id");
  if (prompt.id.empty()) prompt.id = "line " + std::to_string(line);
  prompt.text = reader.String("prompt");
  prompt.tokens = reader.Tokens("tokens");
  prompt.continues = reader.String("continues");
  prompt.max_tokens = reader.Number("max_tokens");
  prompt.cache = reader.OneOf<CacheMode>(
      "cache",
      {{"terrace", CacheMode::kTerrace}, {"none", CacheMode::kNone}, {"keep", CacheMode::kKeep}},
      CacheMode::kTerrace);
  prompt.cuts =
      reader.OneOf<Cuts>("cuts", {{"chunk", Cuts::kChunk}, {"free", Cuts::kFree}}, Cuts::kChunk);
  prompt.salt = reader.String("salt");
  prompt.cut_like = reader.String("cut_like");
  prompt.route = reader.Route("kv_transfer_params");
  if (prompt.text.empty() == prompt.tokens.empty()) {
    reader.Fault("prompt", prompt.text.empty() ? "is missing or empty (or give \"tokens\")"
                                               : "and tokens are both given");
  }
  if (prompt.cuts == Cuts::kFree && prompt.cache != CacheMode::kNone) {
    reader.Fault("cuts", "can be \"free\" only with \"cache\": \"none\"");
  }
  return prompt;
}

// Names a key that the outermost object has twice; the parser by itself would take the last.
Json ParseLine(std::string_view text, std::string& twice) {
  std::set<std::string> seen;
  auto check = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1) {
      if (!seen.insert(parsed.get<std::string>()).second) twice = parsed.get<std::string>();
    }
    return true;
  };
  return Json::parse(text, check, /*allow_exceptions=*/false);
}

// Closes a descriptor at the end of scope.
struct Closer {
  int fd;
  ~Closer() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Result<std::vector<Prompt>> ParsePrompts(std::string_view jsonl, const std::string& file_name) {
  std::vector<Prompt> prompts;
  std::map<std::string, std::size_t> ids;
  std::string faults;
  int fault_count = 0;
  std::size_t line = 0;
  while (!jsonl.empty() && fault_count < 20) {
    ++line;
    const std::size_t end = jsonl.find('\n');
    const std::string_view text = jsonl.substr(0, end);
    jsonl = end == std::string_view::npos ? std::string_view() : jsonl.substr(end + 1);
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;

    std::string fault;
    std::string twice;
    const Json object = ParseLine(text, twice);
    if (object.is_discarded()) {
      fault = "is not valid JSON";
    } else if (!object.is_object()) {
      fault = "is not a JSON object";
    } else if (!twice.empty()) {
      fault = "\"" + twice + "\" is given twice";
    } else {
      LineReader reader(object);
      Prompt prompt = ReadPrompt(reader, line);
      for (const auto& [key, named] :
           {std::pair("continues", prompt.continues), std::pair("cut_like", prompt.cut_like)}) {
        if (!named.empty() && !ids.contains(named)) {
          reader.Fault(key, "names \"" + named + "\", which no earlier line has");
        }
      }
      const auto [first, inserted] = ids.emplace(prompt.id, line);
      if (!inserted) {
        reader.Fault(
            "id", "\"" + prompt.id + "\" is on line " + std::to_string(first->second) + " already");
      }
      fault = reader.Finish();
      prompts.push_back(std::move(prompt));
    }
    if (fault.empty()) continue;
    ++fault_count;
    faults += "\n  line " + std::to_string(line) + ": " + fault;
  }
  if (!faults.empty()) {
    return Error{ErrorCode::kInvalidArgument, "read prompts from " + file_name + ":" + faults};
  }
  if (prompts.empty()) {
    return Error{ErrorCode::kInvalidArgument, "read prompts from " + file_name + ": it has none"};
  }
  return prompts;
}

Result<std::vector<Prompt>> LoadPrompts(const std::string& path, const std::atomic<bool>* stop) {
  const bool standard_input = path == "-";
  const int fd = standard_input ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const Closer closer{standard_input ? -1 : fd};
  std::string all;
  std::vector<char> block(1 << 16);
  ssize_t size = fd < 0 ? -1 : 1;
  while (size > 0 || (size < 0 && fd >= 0 && errno == EINTR)) {
    if (stop != nullptr && stop->load()) break;
    size = ::read(fd, block.data(), block.size());
    if (size > 0) all.append(block.data(), static_cast<std::size_t>(size));
  }
  if (stop != nullptr && stop->load()) return Error{ErrorCode::kCancelled, "stopped"};
  if (size < 0) {
    // Whatever it is, another file must be named.
    return Error{errno == EACCES ? ErrorCode::kPermissionDenied : ErrorCode::kNotFound,
                 "read prompts from " + path + ": " + std::strerror(errno)};
  }
  return ParsePrompts(all, standard_input ? "standard input" : path);
}

}  // namespace terrace::llama
