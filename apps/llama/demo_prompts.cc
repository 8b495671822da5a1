#include "demo_prompts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

namespace terrace::llama {
namespace {

using Json = nlohmann::ordered_json;

// Cuts prompts out of the files, never the same text twice.
class Corpus {
 public:
  explicit Corpus(std::string text) : text_(std::move(text)) {}

  std::string Take(std::size_t size) {
    const std::string slice = text_.substr(std::min(next_, text_.size()), size);
    missing_ = missing_ || slice.size() < size;
    next_ += size;
    return slice;
  }
  bool missing() const { return missing_; }

 private:
  std::string text_;
  std::size_t next_ = 0;
  bool missing_ = false;
};

// All different files of a folder, longest first.
std::string ReadTexts(const std::string& dir) {
  std::set<std::string> texts;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    if (!entry.is_regular_file(error)) continue;
    std::ifstream file(entry.path());
    texts.emplace(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::vector<std::string> sorted(texts.begin(), texts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  std::string all;
  for (const std::string& text : sorted) all += text;
  return all;
}

Json Line(const std::string& id, const std::string& text, const char* cache) {
  return {{"id", id}, {"prompt", text}, {"cache", cache}};
}

// The runs of one measured prompt: restored from host memory, then recomputed with a cut where the
// restored part ended.
void AddMeasured(DemoPrompts& prompts, const std::string& name, const std::string& text,
                 const std::string& continues) {
  Json host = Line(name + "/host", text, "terrace");
  Json recompute = Line(name + "/recompute", text, "none");
  recompute["cut_like"] = name + "/host";
  if (!continues.empty()) host["continues"] = recompute["continues"] = continues;
  prompts.lines.push_back(std::move(host));
  prompts.lines.push_back(std::move(recompute));
  prompts.measured.push_back({name, name + "/host", name + "/recompute", name + "/recompute"});
}

// One long system prompt, several questions.
void AddSystemPrompt(DemoPrompts& prompts, Corpus& corpus, bool quick) {
  static constexpr const char* kQuestions[] = {
      "What must I do if I pass the work on to others?", "Who is liable for damages?",
      "May I charge a fee for a copy?", "What happens to my rights if I break the terms?"};
  const std::string system =
      "You advise engineers on licences. Answer in one sentence, from this text only.\n\n" +
      corpus.Take(quick ? 8000 : 11000);
  auto text = [&](int i) { return system + "\n\nQuestion: " + kQuestions[i] + "\nAnswer:"; };
  prompts.lines.push_back(Line("system-1", text(0), "terrace"));
  for (int i = 1; i < (quick ? 2 : 4); ++i) {
    AddMeasured(prompts, "system-" + std::to_string(i + 1), text(i), "");
  }
}

// Turns that grow: the answers are part of what follows, so chunks of generated tokens are restored
// too. The reference is an engine that keeps its own cache from turn to turn.
void AddConversation(DemoPrompts& prompts, Corpus& corpus, bool quick) {
  static constexpr const char* kTurns[] = {
      "\n\nUser: And what does that mean for a company?\nAssistant:",
      "\n\nUser: Give me an example.\nAssistant:"};
  const std::string opening = "User: Please read this and tell me what it is about.\n\n" +
                              corpus.Take(quick ? 7600 : 9500) + "\nAssistant:";
  const int turns = quick ? 1 : 2;
  Json first = Line("chat-1", opening, "terrace");
  first["max_tokens"] = 80;
  prompts.lines.push_back(first);
  std::string before = "chat-1";
  for (int i = 0; i < turns; ++i) {
    const std::string name = "chat-" + std::to_string(i + 2);
    AddMeasured(prompts, name, kTurns[i], before);
    prompts.measured.back().reference_id = name + "/kept";
    before = name + "/host";
  }
  first["id"] = "chat-1/kept";
  first["cache"] = "keep";
  prompts.lines.push_back(first);
  before = "chat-1/kept";
  for (int i = 0; i < turns; ++i) {
    Json kept = Line("chat-" + std::to_string(i + 2) + "/kept", kTurns[i], "keep");
    kept["continues"] = before;
    before = kept["id"];
    prompts.lines.push_back(std::move(kept));
  }
}

// A long document, asked about twice.
void AddDocument(DemoPrompts& prompts, Corpus& corpus, bool quick) {
  const std::string document = "Document:\n\n" + corpus.Take(quick ? 10000 : 19000);
  prompts.lines.push_back(
      Line("document-1", document + "\n\nSummarise the document in one sentence.\n", "terrace"));
  AddMeasured(prompts, "document-2", document + "\n\nList the three most important terms.\n", "");
}

// Prompts that share nothing, each without Terrace (and without its cuts) and with it, in changing
// order. A salt of its own keeps each repetition from finding the chunks of the one before.
void AddUnshared(DemoPrompts& prompts, Corpus& corpus, bool quick) {
  const int count = quick ? 1 : 3;
  const int repetitions = quick ? 2 : 3;
  for (int i = 1; i <= count; ++i) {
    UnsharedPrompt unshared{"unshared-" + std::to_string(i), {}, {}};
    const std::string text =
        "Note " + std::to_string(i) + ".\n\n" + corpus.Take(7500) + "\n\nIn short:";
    for (int k = 1; k <= repetitions; ++k) {
      const std::string repetition = std::to_string(k);
      Json plain = Line(unshared.name + "/plain-" + repetition, text, "none");
      plain["cuts"] = "free";
      Json terrace = Line(unshared.name + "/terrace-" + repetition, text, "terrace");
      terrace["salt"] = "repetition " + repetition;
      unshared.plain_ids.push_back(plain["id"]);
      unshared.terrace_ids.push_back(terrace["id"]);
      prompts.lines.push_back(k % 2 == 1 ? plain : terrace);
      prompts.lines.push_back(k % 2 == 1 ? terrace : plain);
    }
    prompts.unshared.push_back(std::move(unshared));
  }
}

}  // namespace

Result<DemoPrompts> MakeDemoPrompts(const std::string& text_dir, bool quick) {
  Corpus corpus(ReadTexts(text_dir));
  DemoPrompts prompts;
  AddUnshared(prompts, corpus, quick);
  AddSystemPrompt(prompts, corpus, quick);
  AddConversation(prompts, corpus, quick);
  AddDocument(prompts, corpus, quick);
  if (corpus.missing()) {
    return Error{ErrorCode::kNotFound,
                 "make prompts from the texts in " + text_dir +
                     ": there is not enough text; name another folder with --text-dir"};
  }
  return prompts;
}

}  // namespace terrace::llama
