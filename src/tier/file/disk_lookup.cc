#include "tier/file/disk_lookup.h"

#include <utility>

#include "base/log.h"
#include "base/log_limiter.h"

namespace terrace {
namespace {

// What the thread uses.
class Asker {
 public:
  Asker(std::shared_ptr<const VllmDirectory> directory, std::shared_ptr<HungOperations> hung,
        SteadyNow now)
      : directory_(std::move(directory)), hung_(std::move(hung)), now_(std::move(now)) {}

  std::vector<bool> Ask(std::span<const ChunkKey> keys) {
    std::vector<bool> present;
    present.reserve(keys.size());
    for (const ChunkKey& key : keys) present.push_back(Has(key));
    return present;
  }

 private:
  bool Has(const ChunkKey& key) {
    const HungOperations::Scope running(*hung_);
    const auto found = directory_->Has(key);
    if (found) return found.value();
    if (log_.Admit(now_())) TERRACE_LOG_WARN("file tier: {}; a miss", found.error().message);
    return false;
  }

  const std::shared_ptr<const VllmDirectory> directory_;
  const std::shared_ptr<HungOperations> hung_;
  const SteadyNow now_;
  LogLimiter log_;
};

}  // namespace

Result<std::unique_ptr<DiskLookup>> DiskLookup::Create(
    std::shared_ptr<const VllmDirectory> directory, std::shared_ptr<HungOperations> hung,
    std::function<void()> on_answers, SteadyNow now) {
  auto asker = std::make_shared<Asker>(std::move(directory), std::move(hung), now);
  AsyncLookup::Options options;
  options.thread_name = "terrace-file-l";
  options.verdict_age_max = kVerdictAgeMax;
  options.on_answers = std::move(on_answers);
  options.now = std::move(now);
  auto lookup = AsyncLookup::Create(
      [asker](std::span<const ChunkKey> keys) { return asker->Ask(keys); }, std::move(options));
  if (!lookup) return std::move(lookup).error();
  return std::unique_ptr<DiskLookup>(new DiskLookup(std::move(lookup).value()));
}

}  // namespace terrace
