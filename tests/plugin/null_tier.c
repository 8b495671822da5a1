/* A tier in C that has nothing: every look-up is a miss, every job fails. */
#include <stdlib.h>
#include <string.h>

#include "terrace/tier_plugin.h"

enum { JOBS_MAX = 1024 };

struct terrace_tier {
  const terrace_tier_host* host;
  uint64_t jobs[JOBS_MAX]; /* Ended and not taken. Guarded by the caller's lock. */
  size_t job_count;
};

static terrace_tier_status create(const terrace_tier_host* host, terrace_tier_text options,
                                  terrace_tier** tier, terrace_tier_info* info,
                                  terrace_tier_error* error) {
  (void)options;
  (void)info;
  *tier = calloc(1, sizeof(terrace_tier));
  if (*tier == NULL) {
    strncpy(error->data, "no memory", error->capacity - 1);
    return TERRACE_TIER_RESOURCE_EXHAUSTED;
  }
  (*tier)->host = host;
  return TERRACE_TIER_OK;
}

static void destroy(terrace_tier* tier) { free(tier); }

static int32_t lookup(terrace_tier* tier, const terrace_tier_key* key,
                      const terrace_tier_request* request) {
  (void)tier;
  (void)key;
  (void)request;
  return TERRACE_TIER_MISS;
}

static terrace_tier_status submit(terrace_tier* tier, const terrace_tier_job* job) {
  if (tier->job_count == JOBS_MAX) return TERRACE_TIER_RESOURCE_EXHAUSTED;
  tier->jobs[tier->job_count++] = job->id;
  tier->host->notify_progress(tier->host->context);
  return TERRACE_TIER_OK;
}

static size_t take_finished(terrace_tier* tier, terrace_tier_result* results, size_t capacity) {
  size_t count = 0;
  while (count < capacity && tier->job_count > 0) {
    memset(&results[count], 0, sizeof(results[count]));
    results[count++].job = tier->jobs[--tier->job_count];
  }
  return count;
}

static terrace_tier_status end(terrace_tier* tier, uint64_t timeout_ms) {
  (void)tier;
  (void)timeout_ms;
  return TERRACE_TIER_OK;
}

static const terrace_tier_plugin_v1 plugin = {
    .struct_size = sizeof(terrace_tier_plugin_v1),
    .abi_major = TERRACE_TIER_ABI_MAJOR,
    .abi_minor = TERRACE_TIER_ABI_MINOR,
    .name = {"null", 4},
    .create = create,
    .destroy = destroy,
    .lookup = lookup,
    .submit_store = submit,
    .submit_load = submit,
    .take_finished = take_finished,
    .drain = end,
    .shutdown = end,
};

const terrace_tier_plugin_v1* terrace_tier_plugin(uint32_t host_major, uint32_t host_minor) {
  (void)host_major;
  (void)host_minor;
  return &plugin;
}
