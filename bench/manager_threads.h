// What threads cost each other: an engine and the work for peers beside it.
//
// Arms run in turn, several times, and are compared.
#pragma once

#include <memory>
#include <vector>

#include "bench/report.h"
#include "manager/tiering_manager.h"

namespace terrace::bench {

// Host memory alone, or with tiers; LRU.
std::unique_ptr<TieringManager> MakeManager(std::uint32_t slots,
                                            std::vector<std::unique_ptr<SecondaryTier>> tiers = {},
                                            const TieringOptions& options = {});

// An engine's throughput and its waits for the lock beside 64 busy peers, with lanes and without.
void EngineLane(Report& report, bool quick);
// How long a peer's question waits: with the engine idle, inside a long step, and with service once
// a step.
void External(Report& report, bool quick);

}  // namespace terrace::bench
