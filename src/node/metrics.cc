#include "node/metrics.h"

#include "node/metric_samples.h"

namespace terrace {
namespace {

using namespace metric_samples;  // NOLINT: the table's words

constexpr MetricType kCounter = MetricType::kCounter;
constexpr MetricType kGauge = MetricType::kGauge;
constexpr MetricType kHistogram = MetricType::kHistogram;

constexpr MetricDefinition kMetrics[] = {
    // The node.
    {"terrace_build_info", kGauge, "version,compiler,build_type,sanitizers,tiers", "",
     "Always 1; what this build is",
     [](const NodeFacts& facts, const MetricsSnapshot&, MetricSink& sink) {
       sink.AddInfo(facts.build);
     }},
    {"terrace_config_info", kGauge,
     "tier,source,capacity_bytes,chunk_bytes,tokens_per_chunk,eviction_policy,store_threshold,"
     "model,"
     "identity",
     "", "Always 1, for host memory (0:host) and each tier; what it was configured to be",
     [](const NodeFacts& facts, const MetricsSnapshot&, MetricSink& sink) {
       for (const MetricLabels& tier : facts.tiers) sink.AddInfo(tier);
     }},
    {"terrace_node_start_time_seconds", kGauge, "", "",
     "When the node started, since 1970; everything is counted from then",
     [](const NodeFacts& facts, const MetricsSnapshot&, MetricSink& sink) {
       sink.Add({}, facts.start_time_s);
     }},
    {"terrace_node_refused_scrapes_total", kCounter, "", "",
     "Scrapes answered with 503, since the engine held the manager's lock for too long",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       sink.Add({}, now.refused_scrapes);
     }},

    // Requests.
    {"terrace_request_matches_total", kCounter, "", "",
     "Requests for which it became known what can be loaded, each once",
     OfConnector<&ConnectorStats::matched_requests>},
    {"terrace_request_asked_chunks_total", kCounter, "", "",
     "Chunks of those requests that the engine did not have itself, each once",
     OfConnector<&ConnectorStats::asked_chunks>},
    {"terrace_request_matched_chunks_total", kCounter, "source", "",
     "Of the asked chunks those that can be loaded, by where they came from",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       for (std::size_t i = 0; i < kLoadSourceCount; ++i) {
         sink.Add({LoadSourceName(static_cast<LoadSource>(i))}, now.connector.matched_chunks[i]);
       }
     }},
    {"terrace_request_missed_chunks_total", kCounter, "", "",
     "The other asked chunks: in no tier, lost on their way, or behind one that is missing",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       sink.Add({}, MissedChunks(now.connector));
     }},
    {"terrace_request_matched_tokens_total", kCounter, "", "", "The tokens of the matched chunks",
     OfConnector<&ConnectorStats::matched_tokens>},
    {"terrace_request_lookup_sync_seconds", kHistogram, "", kShortWords,
     "What one look-up of a request took of a scheduler step, the wait for the lock included",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       AddDurations<kShort>(sink, {}, now.connector.lookup_sync);
     }},
    {"terrace_request_lookup_async_seconds", kHistogram, "", kLongWords,
     "How long requests that were told to ask again waited for the answer, or until they ended",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       AddDurations<kLong>(sink, {}, now.connector.lookup_async);
     }},
    {"terrace_request_overdue_lookups_total", kCounter, "", "",
     "Requests that were told to compute, since they had waited too long",
     Manager<&ManagerStats::lookups_overdue>},
    {"terrace_request_peer_overdue_total", kCounter, "", "",
     "Requests of peers that their tier left open too long",
     Manager<&ManagerStats::peer_requests_overdue>},
    {"terrace_request_unstored_chunks_total", kCounter, "", "",
     "Chunks of finished requests that were never stored for want of room",
     OfConnector<&ConnectorStats::unstored_chunks>},

    // Copies between the engine and host memory.
    {"terrace_engine_jobs_total", kCounter, "direction,result", "",
     "Copies that ended between the engine's memory and host memory",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       ForEachCopy(now, [&](Label direction, const EngineTransferStats& stats) {
         sink.Add({direction, "ok"}, stats.jobs - stats.failed_jobs);
         sink.Add({direction, "failed"}, stats.failed_jobs);
       });
     }},
    {"terrace_engine_chunks_total", kCounter, "direction,result", "", "The chunks of these copies",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       ForEachCopy(now, [&](Label direction, const EngineTransferStats& stats) {
         sink.Add({direction, "ok"}, stats.chunks);
         sink.Add({direction, "failed"}, stats.failed_chunks);
       });
     }},
    {"terrace_engine_bytes_total", kCounter, "direction", "", "Bytes copied",
     Copy<&EngineTransferStats::bytes>},
    {"terrace_engine_copy_seconds_total", kCounter, "direction", "", "Time spent copying",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       ForEachCopy(now, [&](Label direction, const EngineTransferStats& stats) {
         sink.Add({direction}, Seconds(stats.time));
       });
     }},
    {"terrace_engine_job_size_bytes", kHistogram, "direction",
     "65536 to 1073741824, each four times the one before", "Bytes copied by one job",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       ForEachCopy(now, [&](Label direction, const EngineTransferStats& stats) {
         AddSizes(sink, {direction}, EngineTransferStats::kSmallestSize, stats.sizes, stats.bytes);
       });
     }},
    {"terrace_engine_jobs_in_flight", kGauge, "direction", "", "Copies under way",
     Copy<&EngineTransferStats::jobs_in_flight>},
    {"terrace_engine_chunks_in_flight", kGauge, "direction", "", "Their chunks",
     Copy<&EngineTransferStats::chunks_in_flight>},
    {"terrace_engine_store_refusals_total", kCounter, "", "",
     "Offers of a request's chunks that host memory had no room for; each is tried again, in part",
     OfConnector<&ConnectorStats::store_refusals>},

    // Host memory.
    {"terrace_host_slots", kGauge, "", "", "Chunks that host memory holds when it is full",
     Manager<&ManagerStats::slot_count>},
    {"terrace_host_free_slots", kGauge, "", "", "Slots that hold nothing",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       sink.Add({}, FreeSlots(now.manager));
     }},
    {"terrace_host_ready_chunks", kGauge, "", "", "Chunks in host memory, complete",
     Manager<&ManagerStats::ready_chunks>},
    {"terrace_host_pinned_chunks", kGauge, "", "",
     "Ready chunks that cannot be evicted, since somebody reads them",
     Manager<&ManagerStats::pinned_chunks>},
    {"terrace_host_writing_chunks", kGauge, "", "", "Chunks being stored or promoted",
     Manager<&ManagerStats::writing_chunks>},
    {"terrace_host_orphaned_slots", kGauge, "", "",
     "Slots that a reset emptied while they were being copied; free when the copies end",
     Manager<&ManagerStats::orphaned_slots>},
    {"terrace_host_stuck_slots", kGauge, "", "",
     "Slots of promotions past their deadline that the tier has not reported",
     Manager<&ManagerStats::stuck_slots>},
    {"terrace_host_stored_chunks_total", kCounter, "result", "",
     "Stores of chunks from the engine that ended",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       sink.Add({"ok"}, now.manager.stored_chunks);
       sink.Add({"failed"}, now.manager.failed_store_chunks);
     }},
    {"terrace_host_loaded_chunks_total", kCounter, "", "", "Chunks handed out to be loaded",
     Manager<&ManagerStats::loaded_chunks>},
    {"terrace_host_evicted_chunks_total", kCounter, "", "", "Chunks evicted to make room",
     Manager<&ManagerStats::evicted_chunks>},
    {"terrace_host_skipped_chunks_total", kCounter, "", "",
     "Chunks not stored, since they were not offered often enough yet (store_threshold)",
     Manager<&ManagerStats::skipped_store_chunks>},
    {"terrace_host_store_refusals_total", kCounter, "", "",
     "Reservations for stores that found no room, retries in part included",
     Manager<&ManagerStats::store_refusals>},
    {"terrace_host_allocation_chunks", kHistogram, "",
     "1 to 262144, each four times the one before", "Chunks that one reservation needed room for",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       AddSizes(sink, {}, 1, now.manager.allocation_sizes, now.manager.allocation_chunks);
     }},
    {"terrace_host_promotion_refusals_total", kCounter, "", "",
     "Chunks that a tier had and host memory had no room for",
     Manager<&ManagerStats::promotion_refusals>},
    {"terrace_host_promotions_postponed_total", kCounter, "", "",
     "Look-ups that had to wait for other promotions",
     Manager<&ManagerStats::promotions_postponed>},
    {"terrace_host_promotions_overdue_total", kCounter, "", "",
     "Promotions turned into misses at their deadline", Manager<&ManagerStats::promotions_overdue>},
    {"terrace_host_parked_chunks_overdue_total", kCounter, "", "",
     "Chunks promised to a tier whose writing did not end in time",
     Manager<&ManagerStats::parked_chunks_overdue>},
    {"terrace_host_resets_total", kCounter, "", "", "Times that host memory was emptied",
     Manager<&ManagerStats::resets>},

    // Tiers.
    {"terrace_tier_queried_chunks_total", kCounter, "tier", "",
     "Chunks that requests asked the tier for, each once for a request",
     Tier<&TierStats::queried_chunks>},
    {"terrace_tier_hit_chunks_total", kCounter, "tier", "",
     "Of them, those that it had and that were promoted", Tier<&TierStats::hit_chunks>},
    {"terrace_tier_lookup_delay_seconds", kHistogram, "tier", kLongWords,
     "From a tier's first \"not known yet\" about a chunk to its answer",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       ForEachTier(now, [&](Label label, const TierStats& tier) {
         AddDurations<kLong>(sink, {label}, tier.lookup_delay);
       });
     }},
    {"terrace_tier_jobs_total", kCounter, "tier,direction,result", "",
     "Jobs that ended: promotion from the tier, cascade to it, serve by it to its peers; failed if "
     "one of its chunks did",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       ForEachTransfer(now, [&](Label tier, Label direction, const TransferStats& stats) {
         sink.Add({tier, direction, "ok"}, stats.jobs - stats.failed_jobs);
         sink.Add({tier, direction, "failed"}, stats.failed_jobs);
       });
     }},
    {"terrace_tier_chunks_total", kCounter, "tier,direction,result", "", "The chunks of these jobs",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       ForEachTransfer(now, [&](Label tier, Label direction, const TransferStats& stats) {
         sink.Add({tier, direction, "ok"}, stats.chunks);
         sink.Add({tier, direction, "failed"}, stats.failed_chunks);
       });
     }},
    {"terrace_tier_bytes_total", kCounter, "tier,direction", "", "Bytes moved",
     Transfer<&TransferStats::bytes>},
    {"terrace_tier_job_seconds_total", kCounter, "tier,direction", "",
     "From submission of jobs to their end, summed",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       ForEachTransfer(now, [&](Label tier, Label direction, const TransferStats& stats) {
         sink.Add({tier, direction}, Seconds(stats.time));
       });
     }},
    {"terrace_tier_promotion_latency_seconds", kHistogram, "tier,result", kLongWords,
     "From submission of a promotion to its end; failed if a chunk did not come",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       ForEachTier(now, [&](Label label, const TierStats& tier) {
         AddDurations<kLong>(sink, {label, "ok"}, tier.promotion_latency);
         AddDurations<kLong>(sink, {label, "failed"}, tier.failed_promotion_latency);
       });
     }},
    {"terrace_tier_jobs_in_flight", kGauge, "tier,direction", "", "Jobs under way",
     Transfer<&TransferStats::jobs_in_flight>},
    {"terrace_tier_slots_in_flight", kGauge, "tier,direction", "",
     "Slots pinned for the tier to read, or reserved for it to write",
     Transfer<&TransferStats::slots_in_flight>},
    {"terrace_tier_overdue_jobs_total", kCounter, "tier,direction", "",
     "Jobs that passed their deadline", Transfer<&TransferStats::overdue_jobs_total>},
    {"terrace_tier_overdue_jobs", kGauge, "tier,direction", "",
     "Of them, those that the tier has not reported yet", Transfer<&TransferStats::overdue_jobs>},
    {"terrace_tier_refused_serve_jobs_total", kCounter, "tier", "",
     "Jobs for peers that were not made, since peers read too much of host memory already",
     Tier<&TierStats::serve_refusals>},
    {"terrace_tier_waiting_chunks", kGauge, "tier", "",
     "Stored chunks whose turn to go to the tier has not come", Tier<&TierStats::waiting_chunks>},
    {"terrace_tier_dropped_chunks_total", kCounter, "tier,reason", "",
     "Stored chunks that the tier was not given: it is too slow (backpressure), it was down, or "
     "they "
     "left host memory before their turn (waiting)",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       ForEachTier(now, [&](Label label, const TierStats& tier) {
         sink.Add({label, "backpressure"}, tier.dropped_by_backpressure_chunks);
         sink.Add({label, "down"}, tier.dropped_while_down_chunks);
         sink.Add({label, "waiting"}, tier.dropped_while_waiting_chunks);
       });
     }},
    {"terrace_tier_cascade_seconds_per_mib", kGauge, "tier", "",
     "Smoothed; what back-pressure judges by, 0 if it is off", Tier<&TierStats::seconds_per_mib>},
    {"terrace_tier_faults_total", kCounter, "tier", "",
     "Times that the tier threw, broke its contract or left a look-up unanswered",
     Tier<&TierStats::faults>},
    {"terrace_tier_unknown_reports_total", kCounter, "tier", "",
     "Results of jobs that the tier does not have", Tier<&TierStats::unknown_reports>},
    {"terrace_tier_health", kGauge, "tier,state", "",
     "1 for the state that the tier is in: up, down after failures in a row, probing with one job",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       ForEachTier(now, [&](Label label, const TierStats& tier) {
         sink.Add({label, "up"}, std::uint64_t{tier.health == TierHealth::kUp});
         sink.Add({label, "down"}, std::uint64_t{tier.health == TierHealth::kDown});
         sink.Add({label, "probing"}, std::uint64_t{tier.health == TierHealth::kProbing});
       });
     }},
    {"terrace_tier_downs_total", kCounter, "tier", "",
     "Times that the tier was taken down after failures in a row", Tier<&TierStats::downs>},

    // The lock and the control thread.
    {"terrace_lock_wait_seconds", kHistogram, "lane", kShortWords,
     "How long the manager's lock was waited for", OfLock<&LockStats::wait>},
    {"terrace_lock_hold_seconds", kHistogram, "lane", kShortWords, "How long it was held",
     OfLock<&LockStats::hold>},
    {"terrace_lock_long_holds_total", kCounter, "", "",
     "Holds of more than 10 ms; each is logged with its holder's name",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       sink.Add({}, now.manager.lock.long_holds);
     }},
    {"terrace_control_running", kGauge, "", "", "1 while the control thread runs",
     Control<&ControlStats::running>},
    {"terrace_control_thread_priority", kGauge, "priority", "",
     "1 for the priority that the system granted the control thread, while that runs: normal, "
     "high, realtime",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       const ControlStats& control = now.manager.control;
       for (const ThreadPriority priority :
            {ThreadPriority::kNormal, ThreadPriority::kHigh, ThreadPriority::kRealtime}) {
         sink.Add({ThreadPriorityName(priority)},
                  std::uint64_t{control.running && control.priority == priority});
       }
     }},
    {"terrace_control_rounds_total", kCounter, "", "", "Its rounds",
     Control<&ControlStats::rounds>},
    {"terrace_control_failed_rounds_total", kCounter, "", "",
     "Rounds in which a tier threw, or for which the lock could not be had in time",
     Control<&ControlStats::failed_rounds>},
    {"terrace_control_yielded_rounds_total", kCounter, "", "",
     "Rounds ended early, since the engine waited or the budget was used up",
     Control<&ControlStats::yielded_rounds>},
    {"terrace_control_round_seconds", kHistogram, "", kShortWords,
     "What a round took, inside the lock",
     [](const NodeFacts&, const MetricsSnapshot& now, MetricSink& sink) {
       AddDurations<kShort>(sink, {}, now.manager.control.round);
     }},
};

}  // namespace

std::span<const MetricDefinition> MetricDefinitions() { return kMetrics; }

std::string TierLabel(std::size_t number, std::string_view type) {
  return std::to_string(number) + ":" + std::string(type);
}

std::string_view MetricTypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

}  // namespace terrace
