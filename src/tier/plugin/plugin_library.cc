#include "tier/plugin/plugin_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <utility>

#include "tier/plugin/plugin_types.h"

namespace terrace {
namespace {

constexpr const char* kSymbol = "terrace_tier_plugin";
constexpr std::size_t kNameSizeMax = 32;
// Of the first minor version: what every plug-in has.
constexpr std::size_t kTableSizeMin =
    offsetof(terrace_tier_plugin_v1, read_counters) + sizeof(terrace_tier_plugin_v1::read_counters);

// The same in every major version.
struct TablePrefix {
  std::uint32_t struct_size;
  std::uint32_t abi_major;
  std::uint32_t abi_minor;
};

std::string VersionText(std::uint32_t major, std::uint32_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string LastDlError() {
  const char* const said = ::dlerror();
  return said != nullptr ? said : "no reason was given";
}

}  // namespace

Error PluginLibrary::Wrong(ErrorCode code, const std::string& what) const {
  return {code, "load tier plug-in " + path_ + ": " + what};
}

Result<std::unique_ptr<PluginLibrary>> PluginLibrary::Load(const std::string& path) {
  std::unique_ptr<PluginLibrary> library(new PluginLibrary(path));
  library->handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library->handle_ == nullptr) {
    return library->Wrong(ErrorCode::kInvalidArgument, LastDlError());
  }
  void* const symbol = ::dlsym(library->handle_, kSymbol);
  if (symbol == nullptr) {
    return library->Wrong(ErrorCode::kInvalidArgument,
                          std::string("it does not export ") + kSymbol + "(): " + LastDlError());
  }
  if (auto fit = library->Inspect(reinterpret_cast<PluginEntry>(symbol)); !fit) {
    return std::move(fit).error();
  }
  return library;
}

Result<std::unique_ptr<PluginLibrary>> PluginLibrary::Adopt(PluginEntry entry,
                                                            const std::string& origin) {
  std::unique_ptr<PluginLibrary> library(new PluginLibrary(origin));
  if (auto fit = library->Inspect(entry); !fit) return std::move(fit).error();
  return library;
}

PluginLibrary::~PluginLibrary() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

Result<void> PluginLibrary::Inspect(PluginEntry entry) {
  const terrace_tier_plugin_v1* table = nullptr;
  try {
    table = entry(TERRACE_TIER_ABI_MAJOR, TERRACE_TIER_ABI_MINOR);
  } catch (...) {
    KeepLoaded();
    return Wrong(ErrorCode::kInvalidArgument, std::string(kSymbol) + "() let an exception out");
  }
  if (table == nullptr) {
    return Wrong(ErrorCode::kIncompatible,
                 std::string(kSymbol) + "() has nothing for version " +
                     VersionText(TERRACE_TIER_ABI_MAJOR, TERRACE_TIER_ABI_MINOR) +
                     " of the plug-in interface");
  }
  TablePrefix prefix;
  std::memcpy(&prefix, table, sizeof(prefix));
  if (prefix.abi_major != TERRACE_TIER_ABI_MAJOR) {
    return Wrong(ErrorCode::kIncompatible,
                 "it was made for version " + VersionText(prefix.abi_major, prefix.abi_minor) +
                     " of the plug-in interface, this build has " +
                     VersionText(TERRACE_TIER_ABI_MAJOR, TERRACE_TIER_ABI_MINOR) +
                     ": the major versions must be the same");
  }
  if (prefix.struct_size < kTableSizeMin) {
    return Wrong(ErrorCode::kIncompatible,
                 "its table of functions says that it has " + std::to_string(prefix.struct_size) +
                     " bytes, version " + std::to_string(TERRACE_TIER_ABI_MAJOR) +
                     ".0 has at least " + std::to_string(kTableSizeMin));
  }
  std::memcpy(&functions_, table, std::min<std::size_t>(prefix.struct_size, sizeof(functions_)));
  if (auto named = TakeName(); !named) return named;
  return CheckFunctions();
}

Result<void> PluginLibrary::TakeName() {
  name_ = TextOf(functions_.name, kNameSizeMax + 1);
  if (IsPlainName(name_, kNameSizeMax)) return {};
  return Wrong(ErrorCode::kInvalidArgument,
               "its name must be lower-case letters, digits and '_', at most " +
                   std::to_string(kNameSizeMax) + ", is '" + name_ + "'");
}

Result<void> PluginLibrary::CheckFunctions() const {
  std::string missing;
  auto require = [&missing](bool there, const char* function) {
    if (there) return;
    missing += missing.empty() ? "" : ", ";
    missing += function;
  };
  require(functions_.create != nullptr, "create()");
  require(functions_.destroy != nullptr, "destroy()");
  require(functions_.lookup != nullptr, "lookup()");
  require(functions_.submit_store != nullptr, "submit_store()");
  require(functions_.submit_load != nullptr, "submit_load()");
  require(functions_.take_finished != nullptr, "take_finished()");
  require(functions_.drain != nullptr, "drain()");
  require(functions_.shutdown != nullptr, "shutdown()");
  if (missing.empty()) return {};
  return Wrong(ErrorCode::kInvalidArgument, "it lacks " + missing);
}

}  // namespace terrace
