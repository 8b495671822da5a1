#include "tier/file/file_tier.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/thread.h"

namespace terrace {
namespace {

Result<void> CheckConfig(const FileTierConfig& config) {
  std::string faults;
  auto require = [&faults](bool right, const char* fault) {
    if (right) return;
    faults += faults.empty() ? "" : "; ";
    faults += fault;
  };
  require(!config.root_dir.empty(), "root_dir is missing");
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
  auto opened =
      RecordDirectory::Open({config.root_dir, config.direct_io}, host.identity(), *seams.ops);
  if (!opened) return std::move(opened).error();
  const RecordDirectory& directory = *opened.value();
  std::unique_ptr<FileTier> tier(
      new FileTier(host, std::move(seams.now), std::move(opened).value()));
  if (auto filled = tier->FillIndex(directory); !filled) return std::move(filled).error();
  auto pool = IoPool::Create({.n_read_threads = config.n_read_threads,
                              .n_write_threads = config.n_write_threads,
                              .thread_name = "terrace-file-",
                              .at_end = [raw = tier.get()] { raw->directory_->Close(); }});
  if (!pool) return std::move(pool).error();
  tier->pool_ = std::move(pool).value();
  return tier;
}

FileTier::FileTier(TierHost& host, SteadyNow now, std::unique_ptr<ChunkDirectory> directory)
    : host_(host),
      now_(std::move(now)),
      directory_(std::move(directory)),
      counts_(std::make_unique<Counts>()),
      index_(now_),
      hung_({"file tier: " + path(), kHungAfter}, now_) {}

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

TierLookup FileTier::Lookup(const ChunkKey& key, const Request&) {
  return index_.Offers(key) ? TierLookup::kHit : TierLookup::kMiss;
}

void FileTier::SubmitStore(TransferJob job) { Submit(IoPool::Kind::kStore, std::move(job)); }
void FileTier::SubmitLoad(TransferJob job) { Submit(IoPool::Kind::kLoad, std::move(job)); }

void FileTier::Submit(IoPool::Kind kind, TransferJob job) {
  const auto batch = std::make_shared<Batch>(std::move(job));
  if (batch->job.keys.empty()) return Report(*batch);
  std::vector<IoPool::Task> tasks;
  tasks.reserve(batch->job.keys.size());
  for (std::size_t i = 0; i < batch->job.keys.size(); ++i) {
    tasks.push_back([this, kind, batch, i](IoPool::Fate fate) {
      if (fate == IoPool::Fate::kRun) RunChunk(kind, *batch, i);
      EndChunk(*batch);
    });
  }
  pool_->Submit(kind, std::move(tasks));
}

void FileTier::RunChunk(IoPool::Kind kind, Batch& batch, std::size_t i) {
  const ChunkKey& key = batch.job.keys[i];
  const SlotId slot = batch.job.slots[i];
  const HungOperations::Scope running(hung_);
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
  if (index_.Contains(key)) return CopyOutcome::kOk;
  const auto chunk = host_.Slot(slot);
  if (const auto written = directory_->Write(key, chunk); !written) {
    counts_->store_failures.Add(1);
    Warn(store_log_, "store chunk: " + written.error().message);
    return CopyOutcome::kFailed;
  }
  index_.Insert(key);
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
  switch (read.kind) {
    case ChunkFileRead::Kind::kOk:
      break;
    case ChunkFileRead::Kind::kMissing:
      if (index_.Erase(key)) counts_->missing_chunks.Add(1);
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
  const auto held_back = limiter.Admit(now_());
  if (!held_back) return;
  const auto also =
      *held_back > 0 ? fmt::format(" ({} more like it since the last line)", *held_back) : "";
  TERRACE_LOG_WARN("file tier: {}{}", message, also);
}

void FileTier::TakeFinished(std::vector<JobResult>& results) { finished_.Take(results); }

std::vector<CounterValue> FileTier::Counters() const {
  const auto hung = hung_.Look();
  return {{"terrace_file_stored_chunks_total", counts_->stored_chunks.value()},
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
}

bool FileTier::Drain(std::chrono::milliseconds timeout) {
  return pool_->WaitIdle(DeadlineIn(timeout));
}

// The pool's last thread removes the directory's temporaries: that blocks on the disk too.
bool FileTier::Shutdown(std::chrono::milliseconds timeout) {
  return pool_ == nullptr || pool_->Shutdown(DeadlineIn(timeout));
}

}  // namespace terrace
