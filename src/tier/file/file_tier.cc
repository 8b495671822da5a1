#include "tier/file/file_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/thread.h"

namespace terrace {
namespace {

constexpr std::string_view kRecords = "records";
constexpr std::string_view kVllm = "vllm";

Result<void> CheckConfig(const FileTierConfig& config) {
  std::string faults;
  auto require = [&faults](bool right, const char* fault) {
    if (right) return;
    faults += faults.empty() ? "" : "; ";
    faults += fault;
  };
  require(!config.root_dir.empty(), "root_dir is missing");
  require(config.layout == kRecords || config.layout == kVllm,
          "layout must be \"records\" or \"vllm\"");
  require(config.n_read_threads >= 1, "n_read_threads is 0, it must be 1 or more");
  require(config.n_write_threads >= 1, "n_write_threads is 0, it must be 1 or more");
  if (faults.empty()) return {};
  return Error{ErrorCode::kInvalidArgument, "make a file tier: " + faults};
}

// Numbers for people: they order nothing.
class Count {
 public:
  void Add(std::uint64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace

struct FileTier::Counts {
  Count stored_chunks;
  Count stored_bytes;
  Count loaded_chunks;
  Count loaded_bytes;
  Count store_failures;
  Count load_failures;  // All loads that failed, whatever the reason; those below are part of it.
  Count missing_chunks;
  Count corrupt_chunks;
  Count quarantined_chunks;
  Count newer_chunks;
  Count foreign_files;
  Count stale_files;
};

FileTier::Batch::Batch(TransferJob submitted)
    : job(std::move(submitted)),
      outcomes(job.keys.size(), CopyOutcome::kFailed),
      remaining(job.keys.size()) {}

Result<std::unique_ptr<FileTier>> FileTier::Create(const FileTierConfig& config, TierHost& host,
                                                   FileTierSeams seams) {
  if (auto right = CheckConfig(config); !right) return std::move(right).error();
  if (seams.ops == nullptr) seams.ops = &PosixFileOps();
  if (!seams.now) seams.now = [] { return std::chrono::steady_clock::now(); };
  auto open = config.layout == kVllm ? OpenVllm : OpenRecords;
  auto opened = open(config, host, std::move(seams));
  if (!opened) return std::move(opened).error();
  std::unique_ptr<FileTier> tier = std::move(opened).value();
  auto pool = IoPool::Create({.n_read_threads = config.n_read_threads,
                              .n_write_threads = config.n_write_threads,
                              .thread_name = "terrace-file-",
                              .at_end = [raw = tier.get()] { raw->directory_->Close(); }});
  if (!pool) return std::move(pool).error();
  tier->pool_ = std::move(pool).value();
  return tier;
}

Result<std::unique_ptr<FileTier>> FileTier::OpenRecords(const FileTierConfig& config,
                                                        TierHost& host, FileTierSeams seams) {
  auto opened =
      RecordDirectory::Open({config.root_dir, config.direct_io}, host.identity(), *seams.ops);
  if (!opened) return std::move(opened).error();
  const std::shared_ptr<RecordDirectory> directory = std::move(opened).value();
  std::unique_ptr<FileTier> tier(new FileTier(host, std::move(seams.now), directory));
  if (auto filled = tier->FillIndex(*directory); !filled) return std::move(filled).error();
  return tier;
}

Result<std::unique_ptr<FileTier>> FileTier::OpenVllm(const FileTierConfig& config, TierHost& host,
                                                     FileTierSeams seams) {
  auto opened = VllmDirectory::Open({config.root_dir, config.direct_io, host.slot_stride_bytes()},
                                    *seams.ops);
  if (!opened) return std::move(opened).error();
  const std::shared_ptr<VllmDirectory> directory = std::move(opened).value();
  std::unique_ptr<FileTier> tier(new FileTier(host, seams.now, directory));
  auto lookup = DiskLookup::Create(
      directory, tier->hung_, [&host] { host.NotifyProgress(); }, std::move(seams.now));
  if (!lookup) return std::move(lookup).error();
  tier->disk_lookup_ = std::move(lookup).value();
  TERRACE_LOG_WARN(
      "file tier: {}: layout vllm, {}: of a chunk only its length can be verified, not its bytes; "
      "whoever may write there is trusted",
      directory->path(), directory->direct_io() ? "O_DIRECT" : "through the page cache");
  return tier;
}

FileTier::FileTier(TierHost& host, SteadyNow now, std::shared_ptr<ChunkDirectory> directory)
    : host_(host),
      now_(std::move(now)),
      directory_(std::move(directory)),
      counts_(std::make_unique<Counts>()),
      hung_(std::make_shared<HungOperations>(
          HungOperations::Options{"file tier: " + path(), kHungAfter}, now_)),
      index_(now_) {}

FileTier::~FileTier() {
  TERRACE_CHECK(Shutdown(kDestructorPatience), "I/O of the file tier hangs");
}

Result<void> FileTier::FillIndex(const RecordDirectory& directory) {
  auto inventory = directory.List();
  if (!inventory) return std::move(inventory).error();
  for (const ChunkKey& key : inventory.value().keys) index_.Insert(key);
  counts_->foreign_files.Add(inventory.value().foreign_files);
  counts_->stale_files.Add(directory.stale_files_removed());
  TERRACE_LOG_INFO("file tier: {}: {} chunks, {} foreign files, {}", path(), index_.size(),
                   inventory.value().foreign_files,
                   directory.direct_io() ? "O_DIRECT" : "through the page cache");
  return {};
}

TierLookup FileTier::Lookup(const ChunkKey& key, const Request& request) {
  if (index_.Offers(key)) return TierLookup::kHit;
  if (disk_lookup_ == nullptr || index_.Contains(key)) return TierLookup::kMiss;
  return disk_lookup_->Lookup(key, request);
}

void FileTier::OnRequestFinished(const Request& request) {
  if (disk_lookup_ != nullptr) disk_lookup_->OnRequestFinished(request);
}

void FileTier::OnScheduleEnd() {
  hung_->Look();
  if (disk_lookup_ != nullptr) disk_lookup_->Flush();
}

void FileTier::SubmitStore(TransferJob job) { Submit(IoPool::Kind::kStore, std::move(job)); }
void FileTier::SubmitLoad(TransferJob job) { Submit(IoPool::Kind::kLoad, std::move(job)); }

void FileTier::Submit(IoPool::Kind kind, TransferJob job) {
  const auto batch = std::make_shared<Batch>(std::move(job));
  if (batch->job.keys.empty()) return Report(*batch);
  pool_->Submit(kind, batch->job.keys.size(),
                [this, kind, batch](std::size_t i, IoPool::Fate fate) {
                  if (fate == IoPool::Fate::kRun) RunChunk(kind, *batch, i);
                  EndChunk(*batch);
                });
}

void FileTier::RunChunk(IoPool::Kind kind, Batch& batch, std::size_t i) {
  const ChunkKey& key = batch.job.keys[i];
  const SlotId slot = batch.job.slots[i];
  const HungOperations::Scope running(*hung_);
  batch.outcomes[i] =
      kind == IoPool::Kind::kStore ? StoreChunk(key, slot, batch) : LoadChunk(key, slot, batch);
}

// The last chunk to end reports the job.
void FileTier::EndChunk(Batch& batch) {
  if (batch.remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) Report(batch);
}

// The result first, then the notice: who wakes must find it.
void FileTier::Report(Batch& batch) {
  finished_.Push({batch.job.id, std::move(batch.outcomes), batch.bytes.load()});
  host_.NotifyProgress();
}

CopyOutcome FileTier::StoreChunk(const ChunkKey& key, SlotId slot, Batch& batch) {
  // Where others remove files too, only the disk knows.
  if (disk_lookup_ == nullptr && index_.Contains(key)) return CopyOutcome::kOk;
  const auto chunk = host_.Slot(slot);
  const auto stored = directory_->Write(key, chunk);
  if (!stored) {
    counts_->store_failures.Add(1);
    Warn(store_log_, "store chunk: " + stored.error().message);
    return CopyOutcome::kFailed;
  }
  index_.Insert(key);
  if (stored.value() == ChunkDirectory::Stored::kWasThere) return CopyOutcome::kOk;
  counts_->stored_chunks.Add(1);
  counts_->stored_bytes.Add(chunk.size());
  batch.bytes.fetch_add(chunk.size());
  return CopyOutcome::kOk;
}

CopyOutcome FileTier::LoadChunk(const ChunkKey& key, SlotId slot, Batch& batch) {
  const auto chunk = host_.Slot(slot);
  const ChunkFileRead read = directory_->Read(key, chunk);
  if (read.kind != ChunkFileRead::Kind::kOk) {
    OnLoadFailed(key, read);
    return CopyOutcome::kFailed;
  }
  if (disk_lookup_ != nullptr) index_.Insert(key);
  index_.Wake(key);
  counts_->loaded_chunks.Add(1);
  counts_->loaded_bytes.Add(chunk.size());
  batch.bytes.fetch_add(chunk.size());
  return CopyOutcome::kOk;
}

// Whatever the reason, the next Lookup() says kMiss: or the request would promote the chunk again,
// and again.
void FileTier::OnLoadFailed(const ChunkKey& key, const ChunkFileRead& read) {
  counts_->load_failures.Add(1);
  if (disk_lookup_ != nullptr) disk_lookup_->MarkMiss(key);
  switch (read.kind) {
    case ChunkFileRead::Kind::kOk:
      break;
    case ChunkFileRead::Kind::kMissing:
      if (index_.Erase(key) || disk_lookup_ != nullptr) counts_->missing_chunks.Add(1);
      break;
    case ChunkFileRead::Kind::kBad:
      counts_->corrupt_chunks.Add(1);
      Warn(bad_file_log_, read.why + "; " + Discard(key));
      break;
    case ChunkFileRead::Kind::kNewer:
      index_.Erase(key);
      counts_->newer_chunks.Add(1);
      Warn(load_log_, read.why + "; left alone");
      break;
    case ChunkFileRead::Kind::kForeign:
      index_.Erase(key);
      counts_->foreign_files.Add(1);
      Warn(load_log_, read.why + ": of another model or layout; left alone");
      break;
    case ChunkFileRead::Kind::kTransient:
      index_.Rest(key);
      Warn(load_log_, read.why + "; not offered for some seconds");
      break;
  }
}

// Takes a bad file out of the way and says what became of it.
std::string FileTier::Discard(const ChunkKey& key) {
  const auto disposal = directory_->Dispose(key);
  index_.Erase(key);
  switch (disposal) {
    case ChunkDirectory::Disposal::kQuarantined:
      counts_->quarantined_chunks.Add(1);
      return "moved to quarantine/";
    case ChunkDirectory::Disposal::kRemoved:
      return "removed";
    case ChunkDirectory::Disposal::kStuck:
      break;
  }
  return "could be neither moved nor removed; not offered until the next start";
}

void FileTier::Warn(LogLimiter& limiter, const std::string& message) {
  TERRACE_LOG_WARN_LIMITED(limiter, now_(), "file tier: {}", message);
}

void FileTier::TakeFinished(std::vector<JobResult>& results) { finished_.Take(results); }

std::vector<CounterValue> FileTier::Counters() const {
  const auto hung = hung_->Look();
  std::vector<CounterValue> counters = {
      {"terrace_file_stored_chunks_total", counts_->stored_chunks.value()},
      {"terrace_file_stored_bytes_total", counts_->stored_bytes.value()},
      {"terrace_file_loaded_chunks_total", counts_->loaded_chunks.value()},
      {"terrace_file_loaded_bytes_total", counts_->loaded_bytes.value()},
      {"terrace_file_store_failures_total", counts_->store_failures.value()},
      {"terrace_file_load_failures_total", counts_->load_failures.value()},
      {"terrace_file_missing_chunks_total", counts_->missing_chunks.value()},
      {"terrace_file_corrupt_chunks_total", counts_->corrupt_chunks.value()},
      {"terrace_file_quarantined_chunks_total", counts_->quarantined_chunks.value()},
      {"terrace_file_newer_chunks_total", counts_->newer_chunks.value()},
      {"terrace_file_foreign_files_total", counts_->foreign_files.value()},
      {"terrace_file_stale_files_removed_total", counts_->stale_files.value()},
      {"terrace_file_hung_operations", hung.now},
      {"terrace_file_hung_operations_total", hung.total}};
  if (disk_lookup_ != nullptr) {
    for (const CounterValue& counter : disk_lookup_->Counters()) counters.push_back(counter);
  }
  return counters;
}

bool FileTier::Drain(std::chrono::milliseconds timeout) {
  return pool_->WaitIdle(DeadlineIn(timeout));
}

// The pool's last thread removes the directory's temporaries: that blocks on the disk too. A look
// at the disk that hangs uses nothing of the tier's or the host's, and is left behind.
bool FileTier::Shutdown(std::chrono::milliseconds timeout) {
  const auto deadline = DeadlineIn(timeout);
  if (pool_ != nullptr && !pool_->Shutdown(deadline)) return false;
  if (disk_lookup_ != nullptr) {
    disk_lookup_->Shutdown(std::chrono::duration_cast<std::chrono::milliseconds>(
        std::max(deadline - std::chrono::steady_clock::now(), {})));
  }
  return true;
}

}  // namespace terrace
