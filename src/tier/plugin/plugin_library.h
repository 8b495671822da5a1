// A plug-in's code: loaded, checked, and cut to what this build knows.
#pragma once

#include <memory>
#include <string>

#include "terrace/result.h"
#include "terrace/tier_plugin.h"

namespace terrace {

// What the exported function is.
using PluginEntry = const terrace_tier_plugin_v1* (*)(std::uint32_t, std::uint32_t);

// Constant after Load(), but for KeepLoaded().
class PluginLibrary {
 public:
  // `path` is as dlopen(3) takes it: with a slash a file, without one a name that the dynamic
  // linker looks for. Runs the library's initialisers. Errors name what is missing or wrong.
  static Result<std::unique_ptr<PluginLibrary>> Load(const std::string& path);
  // The same checks for code that is in this program already; `origin` stands for the path.
  static Result<std::unique_ptr<PluginLibrary>> Adopt(PluginEntry entry, const std::string& origin);
  // Unloads it. Pre: nothing of it runs, or KeepLoaded() was called.
  ~PluginLibrary();
  PluginLibrary(const PluginLibrary&) = delete;
  PluginLibrary& operator=(const PluginLibrary&) = delete;

  // All that are required are there; those that it does not have are null.
  const terrace_tier_plugin_v1& functions() const { return functions_; }
  // Of the kind of tier.
  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }

  // Something of it may still run: it stays for the rest of the process.
  void KeepLoaded() { handle_ = nullptr; }

 private:
  explicit PluginLibrary(std::string path) : path_(std::move(path)) {}

  Result<void> Inspect(PluginEntry entry);
  Result<void> CheckFunctions() const;
  Result<void> TakeName();
  Error Wrong(ErrorCode code, const std::string& what) const;

  const std::string path_;
  void* handle_ = nullptr;
  terrace_tier_plugin_v1 functions_{};
  std::string name_;
};

}  // namespace terrace
