#include "host/host_region.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/fd.h"
#include "base/log.h"
#include "host/memory_limits.h"

namespace terrace {
namespace {

RegionHeader HeaderOf(const RegionLayout& layout, const RegionSharing& sharing) {
  return {.chunk_bytes = layout.chunk_bytes,
          .stride_bytes = layout.stride_bytes,
          .slot_count = layout.slot_count,
          .rank_count = layout.rank_count,
          .process_count = sharing.process_count,
          .identity = sharing.identity};
}

Result<RegionLayout> LayoutOf(const HostRegionOptions& options, const RegionSharing& sharing) {
  if (auto checked = CheckRegionSharing(sharing); !checked.ok()) return std::move(checked).error();
  return MakeRegionLayout({.total_bytes = options.total_bytes,
                           .chunk_bytes = options.chunk_bytes,
                           .rank_count = sharing.rank_count});
}

}  // namespace

Result<std::unique_ptr<HostRegion>> HostRegion::Create(const HostRegionOptions& options,
                                                       MemoryOps& ops) {
  auto layout =
      MakeRegionLayout({.total_bytes = options.total_bytes, .chunk_bytes = options.chunk_bytes});
  if (!layout.ok()) return std::move(layout).error();
  auto memory = RegionMemory::Create(ops, layout.value().size_bytes(), options.huge_pages);
  if (!memory.ok()) return std::move(memory).error();
  std::unique_ptr<HostRegion> region(new HostRegion(layout.value(), std::move(memory).value()));
  region->Prepare(options, {0, layout.value().stride_bytes}, ops);
  return region;
}

Result<std::unique_ptr<HostRegion>> HostRegion::Create(std::uint64_t total_bytes,
                                                       std::uint64_t chunk_bytes) {
  return Create(HostRegionOptions{.total_bytes = total_bytes, .chunk_bytes = chunk_bytes});
}

Result<std::unique_ptr<HostRegion>> HostRegion::CreateShared(const HostRegionOptions& options,
                                                             const RegionSharing& sharing,
                                                             MemoryOps& ops) {
  auto layout = LayoutOf(options, sharing);
  if (!layout.ok()) return std::move(layout).error();
  auto memory = RegionMemory::Create(ops, layout.value().size_bytes(), options.huge_pages);
  if (!memory.ok()) return std::move(memory).error();
  RegionHeader header = HeaderOf(layout.value(), sharing);
  header.mapping_bytes = memory.value().mapping_bytes();
  header.huge_pages = static_cast<std::uint32_t>(memory.value().huge_pages());
  std::unique_ptr<HostRegion> region(new HostRegion(layout.value(), std::move(memory).value()));
  auto setup = StartRegionSetup(sharing, header, region->memory_.fd());
  if (!setup.ok()) return std::move(setup).error();
  region->setup_ = std::move(setup).value();
  region->Prepare(options, ShareOf(layout.value(), sharing), ops);
  return region;
}

Result<std::unique_ptr<HostRegion>> HostRegion::Join(const HostRegionOptions& options,
                                                     const RegionSharing& sharing, MemoryOps& ops) {
  auto layout = LayoutOf(options, sharing);
  if (!layout.ok()) return std::move(layout).error();
  auto joiner = RegionJoiner::Connect(sharing, HeaderOf(layout.value(), sharing));
  if (!joiner.ok()) return std::move(joiner).error();
  const RegionHeader& header = joiner.value()->header();
  auto memory = RegionMemory::Map(ops, joiner.value()->TakeMemory(), header.mapping_bytes,
                                  static_cast<HugePages>(header.huge_pages));
  if (!memory.ok()) {
    joiner.value()->ReportFailure(memory.error().message);
    return std::move(memory).error();
  }
  if (auto reported = joiner.value()->ReportMapped(); !reported.ok()) {
    return std::move(reported).error();
  }
  std::unique_ptr<HostRegion> region(new HostRegion(layout.value(), std::move(memory).value()));
  region->setup_ = std::move(joiner).value();
  region->Prepare(options, ShareOf(layout.value(), sharing), ops);
  return region;
}

Result<void> HostRegion::AwaitAll() { return setup_ ? setup_->AwaitAll() : Result<void>(); }

HostRegion::Share HostRegion::ShareOf(const RegionLayout& layout, const RegionSharing& sharing) {
  if (!sharing.rank) return {};
  const std::uint64_t begin = *sharing.rank * layout.rank_bytes();
  return {begin, begin + layout.rank_bytes()};
}

void HostRegion::Prepare(const HostRegionOptions& options, Share share, MemoryOps& ops) {
  if (!memory_.fallback().empty()) {
    Warn(fmt::format("host memory: going on with {} pages: {}",
                     huge_pages() == HugePages::kOff ? "ordinary" : "transparent huge",
                     memory_.fallback()));
  }
  if (options.lock_memory) LockMemory(ops);
  if (options.prefault_threads == 0 || share.begin == share.end) return;
  auto prefault = Prefault::Start(ops,
                                  {.base = base(),
                                   .stride_bytes = layout_.stride_bytes,
                                   .row_count = layout_.slot_count,
                                   .begin = share.begin,
                                   .end = share.end,
                                   .pages = huge_pages()},
                                  options.prefault_threads);
  if (prefault.ok()) {
    prefault_ = std::move(prefault).value();
  } else {
    Warn(fmt::format("host memory: going on without touching it first: {}",
                     prefault.error().message));
  }
}

void HostRegion::LockMemory(MemoryOps& ops) {
  const int locked = ops.MlockOnFault(base(), memory_.mapping_bytes());
  is_locked_ = locked == 0;
  if (is_locked_) return;
  const AvailableMemory lockable = FindLockableMemory(ops.limits_root());
  Warn(fmt::format(
      "host memory: going on unlocked: lock_memory needs {}, {} leaves {} ({}); raise it (ulimit "
      "-l unlimited, LimitMEMLOCK=infinity, --ulimit memlock=-1) or set lock_memory to false",
      FormatBytes(memory_.mapping_bytes()), lockable.limited_by, FormatBytes(lockable.bytes),
      ErrnoError("mlock2", -locked).message));
}

void HostRegion::Warn(std::string warning) {
  TERRACE_LOG_WARN("{}", warning);
  warnings_.push_back(std::move(warning));
}

std::span<std::byte> HostRegion::Slot(SlotId slot) const {
  TERRACE_CHECK(slot.value < layout_.slot_count, "a slot outside the region");
  return {base() + slot.value * layout_.stride_bytes, layout_.chunk_bytes};
}

std::span<std::byte> HostRegion::RankSlice(SlotId slot, std::uint32_t rank) const {
  TERRACE_CHECK(rank < layout_.rank_count, "a rank outside the row");
  return Slot(slot).subspan(rank * layout_.rank_bytes(), layout_.rank_bytes());
}

PrefaultProgress HostRegion::prefault_progress() const {
  return prefault_ ? prefault_->progress() : PrefaultProgress{};
}

}  // namespace terrace
