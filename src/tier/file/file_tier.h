// A tier on a file system: one file per chunk, in a directory that processes may share.
//
// Whole chunks go straight between host slots and disk, by O_DIRECT where the file system takes it,
// on threads of the tier's own. No file is synced. No capacity bound yet: a full disk fails stores,
// never loads. FileTierConfig::layout says what the files are:
//
// `records`: Which chunks are there is known from memory; what a file holds is verified when it is
// loaded (identity, key, length, checksum), so that nothing but the chunk asked for is ever served.
// What another process adds to the directory later is not seen before the next start; what it
// removes is a miss at load.
//
// `vllm`: The directory is one of vLLM's, root_dir itself. Of a file only the length can be
// verified: wrong bytes of the right length are served (SecondaryTier asks for more), and so is a
// file that a power cut tore without making it shorter. A chunk that this process neither stored
// nor loaded is looked for on the disk, off the caller's thread (disk_lookup.h): Lookup() says
// kRetry until that is answered, kMiss if it is not in time. So what others add is found, and what
// they remove is a miss at load.
//
// Storage that does not answer (a mount whose server is gone) holds the threads that ask it, and
// what is behind them waits; no thread can be called back from it. What has been running for longer
// than kHungAfter is counted and logged. It ends the calls of nobody: Lookup() and Submit*() never
// touch the disk, Drain() and Shutdown() have deadlines, and the manager has one for each job.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log_limiter.h"
#include "terrace/secondary_tier.h"
#include "terrace/tier_config.h"
#include "terrace/tier_host.h"
#include "tier/common/result_queue.h"
#include "tier/file/chunk_directory.h"
#include "tier/file/chunk_index.h"
#include "tier/file/disk_lookup.h"
#include "tier/file/file_ops.h"
#include "tier/file/hung_operations.h"
#include "tier/file/io_pool.h"
#include "tier/file/record_directory.h"

namespace terrace {

// Where tests get in. Empty members mean the real thing. Both outlive the tier, and a look at the
// disk that the tier left behind.
struct FileTierSeams {
  FileOps* ops = nullptr;
  SteadyNow now;
};

// Thread-safe, which is more than SecondaryTier asks for.
class FileTier final : public SecondaryTier {
 public:
  static constexpr std::chrono::seconds kHungAfter{30};

  // Blocks on the disk. Errors say what is wrong with the configuration (all of it), the directory,
  // or what another build left there. `host` outlives the tier.
  static Result<std::unique_ptr<FileTier>> Create(const FileTierConfig& config, TierHost& host,
                                                  FileTierSeams seams = {});
  // Waits for running I/O for kDestructorPatience, then aborts.
  ~FileTier() override;

  std::string_view type() const override { return "file"; }
  LoadSource load_source() const override { return LoadSource::kDisk; }
  // Also kMiss for some seconds after a file could not be read, though it is there; if only the
  // disk knows the chunk, for as long as the request lives. kRetry: layout `vllm` only.
  TierLookup Lookup(const ChunkKey& key, const Request& request) override;
  void SubmitStore(TransferJob job) override;
  void SubmitLoad(TransferJob job) override;
  void TakeFinished(std::vector<JobResult>& results) override;
  void OnRequestFinished(const Request& request) override;
  void OnScheduleEnd() override;
  std::vector<CounterValue> Counters() const override;
  bool Drain(std::chrono::milliseconds timeout) override;
  // After false, a later call may say true.
  [[nodiscard]] bool Shutdown(std::chrono::milliseconds timeout) override;

  // The directory of this identity below root_dir, or root_dir itself.
  const std::string& path() const { return directory_->path(); }

 private:
  // A job whose chunks are copied by any threads in any order.
  struct Batch {
    explicit Batch(TransferJob submitted);

    const TransferJob job;
    std::vector<CopyOutcome> outcomes;   // Each element is written by one task.
    std::atomic<std::size_t> remaining;  // Release and acquire: the last task sees all outcomes.
    std::atomic<std::uint64_t> bytes{0};
  };
  struct Counts;

  FileTier(TierHost& host, SteadyNow now, std::shared_ptr<ChunkDirectory> directory);

  static Result<std::unique_ptr<FileTier>> OpenRecords(const FileTierConfig& config, TierHost& host,
                                                       FileTierSeams seams);
  static Result<std::unique_ptr<FileTier>> OpenVllm(const FileTierConfig& config, TierHost& host,
                                                    FileTierSeams seams);
  Result<void> FillIndex(const RecordDirectory& directory);
  void Submit(IoPool::Kind kind, TransferJob job);
  void RunChunk(IoPool::Kind kind, Batch& batch, std::size_t i);
  void EndChunk(Batch& batch);
  void Report(Batch& batch);
  CopyOutcome StoreChunk(const ChunkKey& key, SlotId slot, Batch& batch);
  CopyOutcome LoadChunk(const ChunkKey& key, SlotId slot, Batch& batch);
  void OnLoadFailed(const ChunkKey& key, const ChunkFileRead& read);
  std::string Discard(const ChunkKey& key);
  void Warn(LogLimiter& limiter, const std::string& message);

  TierHost& host_;
  const SteadyNow now_;
  const std::shared_ptr<ChunkDirectory> directory_;
  const std::unique_ptr<Counts> counts_;
  const std::shared_ptr<HungOperations> hung_;

  ChunkIndex index_;
  ResultQueue finished_;
  LogLimiter store_log_;
  LogLimiter load_log_;
  LogLimiter bad_file_log_;
  // Set by Create(). Null if the index knows all that is in the directory.
  std::unique_ptr<DiskLookup> disk_lookup_;
  std::unique_ptr<IoPool> pool_;  // Last: its threads use all of the above. Set by Create().
};

}  // namespace terrace
