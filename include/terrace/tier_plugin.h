/* A secondary tier in a shared library: what it gives Terrace, and what it gets. Plain C.
 *
 * A plug-in exports one function, terrace_tier_plugin(), and may be written in any language that
 * can do that. Copy examples/plugin_tier/; docs/plugins.md says how to build and configure one.
 * What a tier is and must do is the same as for those within Terrace (secondary_tier.h): it moves
 * bytes between chunks in host memory and its own place, asynchronously, and says how each job
 * ended, exactly once.
 *
 * Versions. Major: both must have the same. Minor: only adds, at the end of structures and as new
 * constants, so any two work together. Each structure that may grow begins with its size as its
 * maker knows it: read no member beyond it. Functions and callbacks that one side does not know are
 * absent, never in the way.
 *
 * Threads. Terrace calls a tier from any of its threads. All calls but drain(), shutdown() and the
 * callbacks are made under one lock and so one after the other; drain() and shutdown() may come
 * while others run. A call under the lock keeps an engine waiting: it must return in microseconds,
 * without I/O and without waiting. The tier does its work on threads of its own.
 *
 * Memory. What a call passes is borrowed until it returns, unless its comment says longer. Nobody
 * frees what the other side made.
 *
 * Faults. No exception may leave a function of the plug-in. One that does, an answer that is not
 * among those below, a job reported twice: each is a fault of the tier, logged and counted. After
 * some in a row it is left alone for a while; the node goes on.
 */
#ifndef TERRACE_TIER_PLUGIN_H_
#define TERRACE_TIER_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERRACE_TIER_ABI_MAJOR 1u
#define TERRACE_TIER_ABI_MINOR 0u

/* Bytes that are text, as UTF-8; a NUL need not follow. */
typedef struct terrace_tier_text {
  const char* data;
  size_t size;
} terrace_tier_text;

/* How a call ended. */
typedef int32_t terrace_tier_status;
enum {
  TERRACE_TIER_OK = 0,
  TERRACE_TIER_INVALID_ARGUMENT = 1,   /* The options are wrong: trying again is useless. */
  TERRACE_TIER_NOT_FOUND = 2,          /* What they name does not exist. */
  TERRACE_TIER_PERMISSION_DENIED = 3,  /* It does, but this process may not use it. */
  TERRACE_TIER_RESOURCE_EXHAUSTED = 4, /* Memory, disk or descriptors ran out. */
  TERRACE_TIER_INCOMPATIBLE = 5,       /* What is there belongs to another model or format. */
  TERRACE_TIER_UNAVAILABLE = 6,        /* Not now: trying again may help. */
  TERRACE_TIER_TIMED_OUT = 7           /* Still at work at the end of the time given. */
};

/* What a chunk is called: 40 bytes, the same everywhere. Its order and hash are yours to choose. */
typedef struct terrace_tier_key {
  uint8_t hash[32];  /* hash_size bytes; the rest is zero. */
  uint32_t group;    /* The KV-cache group; part of the name. */
  uint8_t hash_size; /* 1 to 32. */
  uint8_t zero[3];   /* So that memcmp() compares keys. */
} terrace_tier_key;

/* Where the bytes of a chunk come from, for accounting and for filters of requests. */
typedef int32_t terrace_tier_source;
enum {
  TERRACE_TIER_SOURCE_MEMORY = 1,
  TERRACE_TIER_SOURCE_DISK = 2,
  TERRACE_TIER_SOURCE_OBJECT = 3,
  TERRACE_TIER_SOURCE_PEER = 4,
  TERRACE_TIER_SOURCE_OTHER = 5
};

/* What lookup() answers. */
enum {
  TERRACE_TIER_MISS = 0,
  TERRACE_TIER_HIT = 1,  /* Here; a load will probably succeed. */
  TERRACE_TIER_RETRY = 2 /* Not known yet: asked again at the next step. */
};

/* What on_new_request() answers. */
enum {
  TERRACE_TIER_NEW_CHUNKS = 0,   /* Store what the request computes anew. */
  TERRACE_TIER_WHOLE_REQUEST = 1 /* Also what host memory has already. */
};

/* How the copy of one chunk ended. */
enum { TERRACE_TIER_COPY_OK = 0, TERRACE_TIER_COPY_FAILED = 1 };

/* One batch of chunks to move. Valid, with all it points to, until take_finished() reports it: keep
 * the pointer. Store: the chunks hold their bytes until then; skip those that you have. Load: they
 * are yours to write until then. */
typedef struct terrace_tier_job {
  uint32_t struct_size;
  uint32_t chunk_count; /* >= 1; of each of the three arrays. */
  uint64_t id;          /* Never 0, never used twice. */
  uint64_t request;
  const terrace_tier_key* keys;
  /* Where each chunk is in host memory: chunk_bytes long, aligned to 4096; the padding behind it up
   * to slot_stride_bytes may be read and written too. */
  void* const* chunks;
  /* For you to set before you report the job, TERRACE_TIER_COPY_*; failed until you do. A chunk of
   * a load is OK only if every byte of it was verified; one of a store, if you have it now. */
  uint8_t* outcomes;
} terrace_tier_job;

/* The end of a job. Fixed in one major version. Times are CLOCK_MONOTONIC's, in nanoseconds. */
typedef struct terrace_tier_result {
  uint64_t job;           /* Its id. */
  uint64_t bytes;         /* Moved. */
  uint64_t started_at_ns; /* When its turn came; 0: it did not wait. */
  uint64_t ended_at_ns;   /* 0: now. */
} terrace_tier_result;

/* A number for people and metrics. Fixed in one major version. */
typedef struct terrace_tier_counter {
  /* Lower case, digits and '_', at most 64: terrace_<tier>_<noun>_<unit>_total if it only grows,
   * without _total if it is one of now. Valid until destroy(). */
  terrace_tier_text name;
  uint64_t value;
} terrace_tier_counter;

/* Whose chunks these are. A cache is shared only between equal digests: name directories, buckets
 * and records after it. Every field is part of the digest. */
typedef struct terrace_tier_identity {
  uint32_t struct_size;
  uint8_t digest[32]; /* SHA-256 over all that follows. */
  uint32_t layout_version;
  uint32_t tokens_per_chunk;
  uint32_t shard_index;
  uint32_t shard_count;
  terrace_tier_text model;
  terrace_tier_text revision;
  terrace_tier_text dtype;
  terrace_tier_text layout;
  terrace_tier_text engine;
} terrace_tier_identity;

/* Levels of log(). */
enum { TERRACE_TIER_LOG_INFO = 0, TERRACE_TIER_LOG_WARNING = 1, TERRACE_TIER_LOG_ERROR = 2 };

/* What a tier may use of its node. Valid from create() to the end of destroy(). The callbacks may
 * be called by any thread, with `context` as their first argument, and never block for long. */
typedef struct terrace_tier_host {
  uint32_t struct_size;
  uint32_t abi_major; /* Terrace's own version. */
  uint32_t abi_minor;
  void* context;
  uint64_t chunk_bytes;       /* Of every chunk. */
  uint64_t slot_stride_bytes; /* From one chunk in host memory to the next; a multiple of 4096. */
  const terrace_tier_identity* identity;
  /* Says that take_finished() has something new. Call it after every job, without a lock that a
   * function of the tier takes. */
  void (*notify_progress)(void* context);
  /* One line, in the node's log. Not once for each chunk. */
  void (*log)(void* context, int32_t level, terrace_tier_text line);
} terrace_tier_host;

/* What a tier may ask of the node while it serves a peer. Valid only in the
 * serve_external_requests() call that it is passed to, on that thread. For each piece of work:
 * begin_request(), lookup() of its keys, create_store_job() of those that are hits,
 * finish_request(), which is due in any case; a request may stay open over several calls. */
enum {
  TERRACE_TIER_SERVE_MISS = 0,
  TERRACE_TIER_SERVE_HIT = 1,
  TERRACE_TIER_SERVE_RETRY = 2 /* On its way, or the budget is used up: ask in a later call. */
};
typedef struct terrace_tier_server {
  uint32_t struct_size;
  void* context;
  /* A new id; 0 outside the call. */
  uint64_t (*begin_request)(void* context);
  int32_t (*lookup)(void* context, const terrace_tier_key* key, uint64_t request);
  /* Pins `count` distinct chunks for reading and sets `*job`. It is reported by take_finished(), as
   * any job, when nothing reads them any more. UNAVAILABLE if one of them is not ready, or the
   * budget is used up; INVALID_ARGUMENT if the question is wrong. */
  terrace_tier_status (*create_store_job)(void* context, const terrace_tier_key* keys, size_t count,
                                          uint64_t request, const terrace_tier_job** job);
  void (*finish_request)(void* context, uint64_t request);
  /* 1 if the call should return now: the engine waits. Ask between two messages and at least every
   * 256 keys. */
  int32_t (*should_yield)(void* context);
} terrace_tier_server;

/* A request, as a tier sees it: on_new_request(), any number of lookup() and submit_*(),
 * on_request_finished(). Jobs may still be under way then. */
typedef struct terrace_tier_request {
  uint32_t struct_size;
  uint64_t id; /* 2^63 and more: a peer's. */
} terrace_tier_request;

/* What create() says of the tier; constant. It comes set to what the comments say. */
typedef struct terrace_tier_info {
  uint32_t struct_size;
  terrace_tier_source source; /* OTHER */
  /* 1 if it answers work from outside the engine: it is then served between the engine's steps too,
   * and has serve_external_requests(). 0 */
  int32_t serves_external_requests;
  /* Readable (poll(2)) while there is something to take or to serve; when it is not, up to 20 ms
   * may pass between two looks. -1 if it has none: it is then looked at at each interval. -1 */
  int32_t event_descriptor;
} terrace_tier_info;

/* Where create() puts why it failed, as text with a NUL at its end. */
typedef struct terrace_tier_error {
  char* data;
  size_t capacity; /* >= 256, with the NUL. */
} terrace_tier_error;

/* The tier's own object; Terrace only hands it back. */
typedef struct terrace_tier terrace_tier;

/* The plug-in. One for the library; lives as long as that. Its first three members are the same in
 * every major version. Members marked optional may be null. */
typedef struct terrace_tier_plugin_v1 {
  uint32_t struct_size; /* sizeof(terrace_tier_plugin_v1) where the plug-in was compiled. */
  uint32_t abi_major;   /* TERRACE_TIER_ABI_MAJOR there. */
  uint32_t abi_minor;
  terrace_tier_text name; /* Of the kind of tier, in logs and metrics: lower case, digits and '_',
                             at most 32. */

  /* Makes a tier from `options`, the JSON object of that name in the configuration, and sets
   * `*tier` and `*info`. May block, for its start is the node's. When it fails nothing is left
   * behind, and `error` says what was attempted, on what, and what came back. May be called several
   * times. */
  terrace_tier_status (*create)(const terrace_tier_host* host, terrace_tier_text options,
                                terrace_tier** tier, terrace_tier_info* info,
                                terrace_tier_error* error);
  /* Frees the tier, whose shutdown() said OK. The library may be unloaded then. */
  void (*destroy)(terrace_tier* tier);

  /* TERRACE_TIER_MISS, _HIT or _RETRY, from memory. Idempotent within a step. */
  int32_t (*lookup)(terrace_tier* tier, const terrace_tier_key* key,
                    const terrace_tier_request* request);
  /* Queue the job and return. Anything but OK: the tier has not taken it and forgets it. */
  terrace_tier_status (*submit_store)(terrace_tier* tier, const terrace_tier_job* job);
  terrace_tier_status (*submit_load)(terrace_tier* tier, const terrace_tier_job* job);
  /* Writes the results of at most `capacity` jobs that ended since the last call and says how many.
   * The tier touches nothing of those jobs any more. Called only while jobs are under way. */
  size_t (*take_finished)(terrace_tier* tier, terrace_tier_result* results, size_t capacity);
  /* OK when every submitted job has ended, TIMED_OUT if not within `timeout_ms`. Blocks. */
  terrace_tier_status (*drain)(terrace_tier* tier, uint64_t timeout_ms);
  /* Ends what is queued as failed, waits for what runs, removes what is temporary, joins its
   * threads: OK. Afterwards take_finished() still reports what is left and read_counters() works;
   * nothing else is called but destroy(). TIMED_OUT if something of the tier still runs after
   * `timeout_ms`: this may be called again, and the tier, the library and host memory stay until it
   * says OK, or for ever. Blocks. */
  terrace_tier_status (*shutdown)(terrace_tier* tier, uint64_t timeout_ms);

  /* Optional. TERRACE_TIER_NEW_CHUNKS or _WHOLE_REQUEST. */
  int32_t (*on_new_request)(terrace_tier* tier, const terrace_tier_request* request);
  /* Optional. */
  void (*on_request_finished)(terrace_tier* tier, const terrace_tier_request* request);
  /* Optional. Once at the end of each step of the engine. */
  void (*on_schedule_end)(terrace_tier* tier);
  /* Optional. 1 while the tier has work, besides its jobs, that an idle engine must keep stepping
   * for. */
  int32_t (*has_pending_work)(terrace_tier* tier);
  /* Required of a tier that serves; else optional. Answers what has arrived, until should_yield().
   */
  void (*serve_external_requests)(terrace_tier* tier, const terrace_tier_server* server);
  /* Optional. Writes its counters, always the same in the same order, at most `capacity` (64), and
   * says how many. */
  size_t (*read_counters)(terrace_tier* tier, terrace_tier_counter* counters, size_t capacity);
} terrace_tier_plugin_v1;

#if defined(__GNUC__)
#define TERRACE_TIER_EXPORT __attribute__((visibility("default")))
#else
#define TERRACE_TIER_EXPORT
#endif

/* What the library exports. `host_major` and `host_minor` are Terrace's: a plug-in that knows
 * several major versions gives the table for that one. Never null. The same each time. */
TERRACE_TIER_EXPORT const terrace_tier_plugin_v1* terrace_tier_plugin(uint32_t host_major,
                                                                      uint32_t host_minor);

#ifdef __cplusplus
}
#endif

#endif /* TERRACE_TIER_PLUGIN_H_ */
