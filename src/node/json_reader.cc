#include "node/json_reader.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace terrace {
namespace {

using Json = nlohmann::json;

std::string Position(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0.
  return "line " + std::to_string(line) + ", column " +
         std::to_string(before.size() - line_start + 1);
}

// What nlohmann says, without its tag and its own position; it may repeat the document's bytes.
std::string SyntaxMessage(std::string_view what) {
  constexpr std::size_t kMaxShown = 200;
  if (const auto tag = what.find("] "); tag != what.npos) what.remove_prefix(tag + 2);
  if (const auto column = what.find(", column "); column != what.npos) {
    if (const auto colon = what.find(": ", column); colon != what.npos) {
      what.remove_prefix(colon + 2);
    }
  }
  std::string shown(what.substr(0, kMaxShown));
  if (what.size() > kMaxShown) shown += "...";
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return "is not JSON: " + shown;
}

// Builds the tree while it knows the path of what it reads.
class TreeBuilder final : public nlohmann::json_sax<Json> {
 public:
  TreeBuilder(std::string_view text, Faults& faults) : text_(text), faults_(faults) {}

  Json TakeRoot() { return std::move(root_); }

  bool null() override { return Leaf(nullptr); }
  bool boolean(bool value) override { return Leaf(value); }
  bool number_integer(number_integer_t value) override { return Leaf(value); }
  bool number_unsigned(number_unsigned_t value) override { return Leaf(value); }
  bool number_float(number_float_t value, const string_t&) override { return Leaf(value); }
  bool string(string_t& value) override { return Leaf(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // Not in JSON text.
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    Frame& frame = open_.back();
    frame.key = std::move(name);
    if (frame.container->contains(frame.key)) faults_.Add(Path(), "is given more than once");
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    faults_.Add(Position(text_, position == 0 ? 0 : position - 1), SyntaxMessage(error.what()));
    return false;
  }

 private:
  struct Frame {
    Json* container;  // Stays put while it is open: only finished siblings move.
    std::string key;  // The current one, if an object.
  };

  Json* Put(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    Frame& frame = open_.back();
    if (frame.container->is_array()) {
      frame.container->push_back(std::move(value));
      return &frame.container->back();
    }
    return &((*frame.container)[frame.key] = std::move(value));
  }

  bool Leaf(Json value) {
    Put(std::move(value));
    return true;
  }

  bool Open(Json container) {
    Json* const placed = Put(std::move(container));
    if (open_.size() == kMaxDocumentDepth) {
      faults_.Add(Path(), "is nested deeper than " + std::to_string(kMaxDocumentDepth) + " levels");
      return false;
    }
    open_.push_back({placed, {}});
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  // Of the value that was read last.
  std::string Path() const {
    std::string path;
    for (const Frame& frame : open_) {
      path = frame.container->is_array() ? ItemPath(path, frame.container->size() - 1)
                                         : ChildPath(path, frame.key);
    }
    return path;
  }

  const std::string_view text_;
  Faults& faults_;
  Json root_;
  std::vector<Frame> open_;
};

}  // namespace

std::optional<Json> ReadJson(std::string_view text, Faults& faults) {
  if (text.size() > kMaxDocumentBytes) {
    faults.Add("document", "has more than " + std::to_string(kMaxDocumentBytes) + " bytes");
    return std::nullopt;
  }
  if (text.find_first_not_of(" \t\r\n") == text.npos) {
    faults.Add("document", "is empty; the least is {\"cpu_bytes_to_use\": \"1GiB\"}");
    return std::nullopt;
  }
  // nlohmann takes a NUL for the end, and would not look at what follows.
  if (const std::size_t nul = text.find('\0'); nul != text.npos) {
    faults.Add(Position(text, nul), "is not JSON: a NUL byte");
    return std::nullopt;
  }
  TreeBuilder builder(text, faults);
  if (!Json::sax_parse(text, &builder)) return std::nullopt;
  return builder.TakeRoot();
}

}  // namespace terrace
