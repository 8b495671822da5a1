#include "terrace/host_memory.h"

#include <utility>

#include "base/check.h"
#include "host/host_region.h"
#include "node/node_config_check.h"

namespace terrace {
namespace {

HugePages HugePagesOf(const std::string& name) {
  if (name == "explicit") return HugePages::kExplicit;
  return name == "transparent" ? HugePages::kTransparent : HugePages::kOff;
}

HostRegionOptions OptionsOf(const NodeConfig& config, const CacheIdentity& identity) {
  return {.total_bytes = config.cpu_bytes_to_use,
          .chunk_bytes = identity.fields().chunk_bytes,
          .huge_pages = HugePagesOf(config.huge_pages),
          .prefault_threads = config.prefault_threads,
          .lock_memory = config.lock_memory};
}

RegionSharing SharingOf(const CacheIdentity& identity, const HostSharing& sharing) {
  return {.name = sharing.name,
          .identity = identity.digest(),
          .rank_count = sharing.rank_count,
          .process_count = sharing.process_count,
          .rank = sharing.rank,
          .timeout = sharing.timeout,
          .instance = sharing.instance,
          .at_stage = {}};
}

}  // namespace

Result<std::unique_ptr<HostMemory>> HostMemory::Create(const NodeConfig& config,
                                                       const CacheIdentity& identity) {
  if (auto checked = CheckNodeConfig(config); !checked) return std::move(checked).error();
  auto region = HostRegion::Create(OptionsOf(config, identity));
  if (!region.ok()) return std::move(region).error();
  return std::unique_ptr<HostMemory>(new HostMemory(std::move(region).value()));
}

Result<std::unique_ptr<HostMemory>> HostMemory::CreateShared(const NodeConfig& config,
                                                             const CacheIdentity& identity,
                                                             const HostSharing& sharing) {
  if (auto checked = CheckNodeConfig(config); !checked) return std::move(checked).error();
  auto region = HostRegion::CreateShared(OptionsOf(config, identity), SharingOf(identity, sharing));
  if (!region.ok()) return std::move(region).error();
  return std::unique_ptr<HostMemory>(new HostMemory(std::move(region).value()));
}

Result<std::unique_ptr<HostMemory>> HostMemory::Join(const NodeConfig& config,
                                                     const CacheIdentity& identity,
                                                     const HostSharing& sharing) {
  if (auto checked = CheckNodeConfig(config); !checked) return std::move(checked).error();
  auto region = HostRegion::Join(OptionsOf(config, identity), SharingOf(identity, sharing));
  if (!region.ok()) return std::move(region).error();
  return std::unique_ptr<HostMemory>(new HostMemory(std::move(region).value()));
}

HostMemory::HostMemory(std::unique_ptr<HostRegion> region) : region_(std::move(region)) {}
HostMemory::~HostMemory() = default;

Result<void> HostMemory::AwaitAll() { return region_->AwaitAll(); }

HostSlots HostMemory::slots() const {
  return {region_->base(), region_->slot_stride_bytes(), region_->chunk_bytes(),
          region_->slot_count()};
}

HostSlots HostMemory::rank_slots(std::uint32_t rank) const {
  TERRACE_CHECK(rank < rank_count(), "a rank that the memory does not have");
  HostSlots slots = this->slots();
  slots.chunk_bytes /= rank_count();
  slots.base += rank * slots.chunk_bytes;
  return slots;
}

std::uint32_t HostMemory::rank_count() const { return region_->rank_count(); }

}  // namespace terrace
