// Between Terrace's types and those of the plug-in interface (terrace/tier_plugin.h). What comes
// from a plug-in is taken for nothing before it was checked.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/cache_identity.h"
#include "terrace/secondary_tier.h"
#include "terrace/tier_host.h"
#include "terrace/tier_plugin.h"

namespace terrace {

// Printable ASCII; the rest becomes '?'. Cut at `size_max`.
std::string TextOf(terrace_tier_text text, std::size_t size_max);
std::string TextOf(std::string_view text);
// The bytes of `text`, borrowed.
inline terrace_tier_text ToPlugin(std::string_view text) { return {text.data(), text.size()}; }

// Whether `name` is 1 to `size_max` lower-case letters, digits and '_', a letter first.
bool IsPlainName(std::string_view name, std::size_t size_max);

// "timed out (7)"; "99, which is no status".
std::string StatusText(terrace_tier_status status);
// kUnavailable for what is none.
ErrorCode CodeOf(terrace_tier_status status);

terrace_tier_key ToPlugin(const ChunkKey& key);
// nullopt if it is no key.
std::optional<ChunkKey> FromPlugin(const terrace_tier_key& key);

terrace_tier_request ToPlugin(const Request& request);

// Borrows the texts of `identity`.
terrace_tier_identity ToPlugin(const CacheIdentity& identity);

// A job as the plug-in sees it, and what it says of it. Stays where it is until it is reported.
class PluginJob {
 public:
  PluginJob(const TransferJob& job, TierHost& host);
  PluginJob(const PluginJob&) = delete;
  PluginJob& operator=(const PluginJob&) = delete;

  const terrace_tier_job& seen_by_plugin() const { return seen_; }

  // What the plug-in says is checked: what does not hold is put right and told in `fault`.
  JobResult ResultOf(const terrace_tier_result& said, std::string& fault) const;
  // As one that was not done at all.
  JobResult Failed() const;

 private:
  const JobId id_;
  const std::uint64_t bytes_max_;
  const std::vector<terrace_tier_key> keys_;
  const std::vector<void*> chunks_;
  std::vector<std::uint8_t> outcomes_;  // Written by threads of the plug-in until it reports.
  terrace_tier_job seen_;
};

}  // namespace terrace
