#include "tier/plugin/plugin_types.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>

namespace terrace {
namespace {

constexpr std::array kStatusNames = {
    "ok",           "invalid argument", "not found", "permission denied", "resource exhausted",
    "incompatible", "unavailable",      "timed out"};

static_assert(sizeof(terrace_tier_key) == 40);
static_assert(sizeof(terrace_tier_result) == 32);
static_assert(static_cast<int>(LoadSource::kMemory) == TERRACE_TIER_SOURCE_MEMORY);
static_assert(static_cast<int>(LoadSource::kDisk) == TERRACE_TIER_SOURCE_DISK);
static_assert(static_cast<int>(LoadSource::kObject) == TERRACE_TIER_SOURCE_OBJECT);
static_assert(static_cast<int>(LoadSource::kPeer) == TERRACE_TIER_SOURCE_PEER);
static_assert(static_cast<int>(LoadSource::kOther) == TERRACE_TIER_SOURCE_OTHER);

std::vector<terrace_tier_key> KeysOf(const TransferJob& job) {
  std::vector<terrace_tier_key> keys;
  keys.reserve(job.keys.size());
  for (const ChunkKey& key : job.keys) keys.push_back(ToPlugin(key));
  return keys;
}

std::vector<void*> ChunksOf(const TransferJob& job, TierHost& host) {
  std::vector<void*> chunks;
  chunks.reserve(job.slots.size());
  for (const SlotId slot : job.slots) chunks.push_back(host.Slot(slot).data());
  return chunks;
}

// Of CLOCK_MONOTONIC, which is steady_clock on Linux.
std::chrono::steady_clock::time_point TimeOf(std::uint64_t ns) {
  if (ns > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(static_cast<std::int64_t>(ns)));
}

}  // namespace

std::string TextOf(std::string_view text) {
  std::string shown(text);
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

std::string TextOf(terrace_tier_text text, std::size_t size_max) {
  if (text.data == nullptr) return "";
  return TextOf(std::string_view(text.data, std::min(text.size, size_max)));
}

bool IsPlainName(std::string_view name, std::size_t size_max) {
  auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  auto is_plain = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; };
  return !name.empty() && name.size() <= size_max && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(), is_plain);
}

std::string StatusText(terrace_tier_status status) {
  if (status < 0 || static_cast<std::size_t>(status) >= kStatusNames.size()) {
    return std::to_string(status) + ", which is no status";
  }
  return std::string(kStatusNames[static_cast<std::size_t>(status)]) + " (" +
         std::to_string(status) + ")";
}

ErrorCode CodeOf(terrace_tier_status status) {
  switch (status) {
    case TERRACE_TIER_INVALID_ARGUMENT:
      return ErrorCode::kInvalidArgument;
    case TERRACE_TIER_NOT_FOUND:
      return ErrorCode::kNotFound;
    case TERRACE_TIER_PERMISSION_DENIED:
      return ErrorCode::kPermissionDenied;
    case TERRACE_TIER_RESOURCE_EXHAUSTED:
      return ErrorCode::kResourceExhausted;
    case TERRACE_TIER_INCOMPATIBLE:
      return ErrorCode::kIncompatible;
    default:
      return ErrorCode::kUnavailable;
  }
}

terrace_tier_key ToPlugin(const ChunkKey& key) {
  terrace_tier_key out{};
  std::copy(key.hash().begin(), key.hash().end(), out.hash);
  out.hash_size = static_cast<std::uint8_t>(key.hash().size());
  out.group = key.group();
  return out;
}

std::optional<ChunkKey> FromPlugin(const terrace_tier_key& key) {
  if (key.hash_size < 1 || key.hash_size > ChunkKey::kMaxHashSize) return std::nullopt;
  return ChunkKey({key.hash, key.hash_size}, key.group);
}

terrace_tier_request ToPlugin(const Request& request) {
  return {.struct_size = sizeof(terrace_tier_request), .id = request.id.value};
}

terrace_tier_identity ToPlugin(const CacheIdentity& identity) {
  const CacheIdentityFields& fields = identity.fields();
  terrace_tier_identity out{};
  out.struct_size = sizeof(out);
  std::copy(identity.digest().begin(), identity.digest().end(), out.digest);
  out.layout_version = fields.layout_version;
  out.tokens_per_chunk = fields.tokens_per_chunk;
  out.shard_index = fields.shard_index;
  out.shard_count = fields.shard_count;
  out.model = ToPlugin(fields.model);
  out.revision = ToPlugin(fields.revision);
  out.dtype = ToPlugin(fields.dtype);
  out.layout = ToPlugin(fields.layout);
  out.engine = ToPlugin(fields.engine);
  return out;
}

PluginJob::PluginJob(const TransferJob& job, TierHost& host)
    : id_(job.id),
      bytes_max_(job.keys.size() * host.identity().fields().chunk_bytes),
      keys_(KeysOf(job)),
      chunks_(ChunksOf(job, host)),
      outcomes_(job.keys.size(), TERRACE_TIER_COPY_FAILED),
      seen_{.struct_size = sizeof(terrace_tier_job),
            .chunk_count = static_cast<std::uint32_t>(job.keys.size()),
            .id = job.id.value,
            .request = job.request.value,
            .keys = keys_.data(),
            .chunks = chunks_.data(),
            .outcomes = outcomes_.data()} {}

JobResult PluginJob::Failed() const {
  JobResult result;
  result.id = id_;
  result.outcomes.assign(keys_.size(), CopyOutcome::kFailed);
  return result;
}

JobResult PluginJob::ResultOf(const terrace_tier_result& said, std::string& fault) const {
  JobResult result = Failed();
  for (std::size_t i = 0; i < outcomes_.size(); ++i) {
    if (outcomes_[i] == TERRACE_TIER_COPY_OK) {
      result.outcomes[i] = CopyOutcome::kOk;
    } else if (outcomes_[i] != TERRACE_TIER_COPY_FAILED) {
      fault = "it gave a chunk the outcome " + std::to_string(outcomes_[i]);
    }
  }
  result.bytes = std::min(said.bytes, bytes_max_);
  if (said.bytes > bytes_max_) {
    fault = "it moved " + std::to_string(said.bytes) + " bytes in a job of " +
            std::to_string(bytes_max_);
  }
  result.started_at = TimeOf(said.started_at_ns);
  result.ended_at = TimeOf(said.ended_at_ns);
  return result;
}

}  // namespace terrace
