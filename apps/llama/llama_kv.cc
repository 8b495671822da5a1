#include "llama_kv.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

namespace terrace::llama {
namespace {

// Reads the serialised state front to back; stops being ok at the first thing that is not there.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T Take() {
    T value{};
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  void Skip(std::uint64_t count) {
    if (bytes_.size() < count) {
      ok_ = false;
      return;
    }
    bytes_ = bytes_.subspan(count);
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

Error UnknownForm(std::string_view what) {
  return Error{ErrorCode::kIncompatible,
               "learn the form of llama.cpp's sequence state: " + std::string(what) +
                   "; this model's KV memory is of a kind that Terrace does not know"};
}

constexpr std::int64_t kChunksPerSequence = std::int64_t{1} << 32;

template <typename T>
void Append(std::vector<std::byte>& bytes, T value) {
  const auto* raw = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), raw, raw + sizeof(T));
}

}  // namespace

BlockId BlockOf(std::int32_t sequence, std::uint32_t chunk_index) {
  return BlockId(sequence * kChunksPerSequence + chunk_index);
}

// The serialised state: magic, sequence; for each cache: number of streams, of cells; for each cell
// position, number of sequences, sequence; "values transposed", number of layers; for each layer
// type, row size and rows of keys; then the same of values.
Result<std::vector<LlamaKv::Cache>> LlamaKv::ParseOneToken(std::span<const std::byte> state) {
  Reader reader(state);
  reader.Take<std::uint32_t>();  // Magic.
  reader.Take<std::int32_t>();   // Sequence.
  std::vector<Cache> caches;
  while (!reader.AtEnd()) {
    if (reader.Take<std::uint32_t>() != 1) return UnknownForm("it has several streams");
    if (reader.Take<std::uint32_t>() != 1) return UnknownForm("one token is not one cell");
    reader.Take<std::int32_t>();  // Position.
    if (reader.Take<std::uint32_t>() != 1) return UnknownForm("a cell is shared");
    reader.Take<std::int32_t>();  // Sequence.
    if (reader.Take<std::uint32_t>() != 0) return UnknownForm("values are transposed");
    const auto layers = reader.Take<std::uint32_t>();
    if (!reader.ok() || layers > 4096) return UnknownForm("it has no plausible number of layers");
    Cache cache;
    for (std::vector<Tensor>* tensors : {&cache.keys, &cache.values}) {
      for (std::uint32_t i = 0; i < layers; ++i) {
        const auto type = reader.Take<std::int32_t>();
        const auto row_bytes = reader.Take<std::uint64_t>();
        reader.Skip(row_bytes);
        if (!reader.ok()) return UnknownForm("it ends inside a layer");
        tensors->push_back({type, row_bytes});
      }
    }
    caches.push_back(std::move(cache));
  }
  if (caches.empty()) return UnknownForm("it is empty");
  return caches;
}

std::uint32_t ChunkIndexOf(BlockId block) {
  return static_cast<std::uint32_t>(block.value % kChunksPerSequence);
}

static std::int32_t SequenceOf(BlockId block) {
  return static_cast<std::int32_t>(block.value / kChunksPerSequence);
}

Result<std::unique_ptr<LlamaKv>> LlamaKv::Create(LlamaRuntime& runtime,
                                                 std::uint32_t tokens_per_chunk) {
  const std::int32_t window = llama_model_n_swa(runtime.model());
  if (window > 0 && tokens_per_chunk > static_cast<std::uint32_t>(window)) {
    return Error{ErrorCode::kIncompatible, "tokens_per_chunk is " +
                                               std::to_string(tokens_per_chunk) +
                                               ", longer than the model's sliding window of " +
                                               std::to_string(window) + " tokens; lower it"};
  }
  if (tokens_per_chunk > runtime.options().step_tokens) {
    return Error{ErrorCode::kInvalidArgument,
                 "tokens_per_chunk is " + std::to_string(tokens_per_chunk) +
                     ", more than one step computes (" +
                     std::to_string(runtime.options().step_tokens) + "); lower it"};
  }
  const std::int32_t scratch = runtime.scratch_sequence();
  const BatchToken token{0, 0, scratch, false};
  auto decoded = runtime.Decode({&token, 1});
  if (!decoded.ok()) return std::move(decoded).error();
  if (decoded.value() == DecodeOutcome::kStopped) return Error{ErrorCode::kCancelled, "stopped"};
  std::vector<std::byte> state(llama_state_seq_get_size_ext(runtime.context(), scratch, 0));
  const std::size_t written = llama_state_seq_get_data_ext(
      runtime.context(), reinterpret_cast<std::uint8_t*>(state.data()), state.size(), scratch, 0);
  runtime.Truncate(scratch, 0);
  if (written == 0 || written != state.size()) return UnknownForm("it could not be read");
  auto caches = ParseOneToken(state);
  if (!caches.ok()) return std::move(caches).error();
  return std::unique_ptr<LlamaKv>(
      new LlamaKv(runtime, tokens_per_chunk, std::move(caches).value()));
}

LlamaKv::LlamaKv(LlamaRuntime& runtime, std::uint32_t tokens_per_chunk, std::vector<Cache> caches)
    : runtime_(runtime), tokens_per_chunk_(tokens_per_chunk), caches_(std::move(caches)) {
  BuildImage();
  std::string seen;
  for (const Cache& cache : caches_) {
    for (std::size_t i = 0; i < cache.keys.size(); ++i) {
      const std::string types =
          "k=" + std::to_string(cache.keys[i].type) + ",v=" + std::to_string(cache.values[i].type);
      if (types != seen) dtype_ += (dtype_.empty() ? "" : ";") + types;
      seen = types;
    }
  }
}

void LlamaKv::BuildImage() {
  const std::int32_t scratch = runtime_.scratch_sequence();
  // The magic is not public: it is taken from what llama.cpp writes first (see ReadChunk), and from
  // an empty sequence here.
  std::uint32_t head[2] = {};
  std::vector<std::uint8_t> empty(llama_state_seq_get_size_ext(runtime_.context(), scratch, 0));
  llama_state_seq_get_data_ext(runtime_.context(), empty.data(), empty.size(), scratch, 0);
  std::memcpy(head, empty.data(), std::min(sizeof head, empty.size()));
  Append(image_, head[0]);
  Append(image_, scratch);
  for (const Cache& cache : caches_) {
    Append(image_, std::uint32_t{1});
    Append(image_, tokens_per_chunk_);
    for (std::uint32_t i = 0; i < tokens_per_chunk_; ++i) {
      positions_.push_back(image_.size());
      Append(image_, std::int32_t{0});
      Append(image_, std::uint32_t{1});
      Append(image_, scratch);
    }
    Append(image_, std::uint32_t{0});
    Append(image_, static_cast<std::uint32_t>(cache.keys.size()));
    for (const std::vector<Tensor>* tensors : {&cache.keys, &cache.values}) {
      for (const Tensor& tensor : *tensors) {
        Append(image_, tensor.type);
        Append(image_, tensor.row_bytes);
        rows_.push_back({image_.size(), tensor.row_bytes});
        image_.resize(image_.size() + tensor.row_bytes * tokens_per_chunk_);
        chunk_bytes_ += tensor.row_bytes * tokens_per_chunk_;
      }
    }
  }
  headers_ = image_;
}

void LlamaKv::SetPositions(std::int32_t first) {
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    const auto position = first + static_cast<std::int32_t>(i % tokens_per_chunk_);
    std::memcpy(image_.data() + positions_[i], &position, sizeof position);
  }
}

bool LlamaKv::PositionsAre(std::int32_t first) const {
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    std::int32_t position = 0;
    std::memcpy(&position, image_.data() + positions_[i], sizeof position);
    if (position != first + static_cast<std::int32_t>(i % tokens_per_chunk_)) return false;
  }
  return true;
}

// Everything between the rows and the positions is as it always is.
bool LlamaKv::HeadersMatch() const {
  std::size_t begin = 0;
  auto same_until = [&](std::size_t end) {
    return std::memcmp(image_.data() + begin, headers_.data() + begin, end - begin) == 0;
  };
  std::size_t next_position = 0;
  for (const Rows& rows : rows_) {
    while (next_position < positions_.size() && positions_[next_position] < rows.offset) {
      if (!same_until(positions_[next_position])) return false;
      begin = positions_[next_position++] + sizeof(std::int32_t);
    }
    if (!same_until(rows.offset)) return false;
    begin = rows.offset + rows.row_bytes * tokens_per_chunk_;
  }
  return begin == image_.size();
}

Result<void> LlamaKv::ReadChunk(std::span<const BlockId> blocks, std::span<std::byte> chunk) {
  const std::int32_t sequence = SequenceOf(blocks[0]);
  const auto first = static_cast<std::int32_t>(ChunkIndexOf(blocks[0]) * tokens_per_chunk_);
  const std::int32_t scratch = runtime_.scratch_sequence();
  llama_memory_t memory = llama_get_memory(runtime_.context());
  llama_memory_seq_cp(memory, sequence, scratch, first,
                      first + static_cast<std::int32_t>(tokens_per_chunk_));
  const std::size_t written = llama_state_seq_get_data_ext(
      runtime_.context(), reinterpret_cast<std::uint8_t*>(image_.data()), image_.size(), scratch,
      0);
  llama_memory_seq_rm(memory, scratch, -1, -1);
  if (written != image_.size() || !HeadersMatch()) {
    return Error{ErrorCode::kUnavailable,
                 "read tokens " + std::to_string(first) + " to " +
                     std::to_string(first + static_cast<std::int32_t>(tokens_per_chunk_)) +
                     " of sequence " + std::to_string(sequence) + ": llama.cpp wrote " +
                     std::to_string(written) + " bytes of " + std::to_string(image_.size()) +
                     ", or in another form"};
  }
  return TakeRows(first, chunk);
}

Result<void> LlamaKv::TakeRows(std::int32_t first, std::span<std::byte> chunk) const {
  std::byte* out = chunk.data();
  if (PositionsAre(first)) {
    for (const Rows& rows : rows_) {
      std::memcpy(out, image_.data() + rows.offset, rows.row_bytes * tokens_per_chunk_);
      out += rows.row_bytes * tokens_per_chunk_;
    }
    return {};
  }
  // The cells lie in another order than the positions (they were taken where there was room): row
  // by row. Both caches of a model use the same order only by chance, so each tensor is put in
  // order by its own cache's cells.
  std::size_t tensor = 0;
  for (std::size_t c = 0; c < caches_.size(); ++c) {
    std::vector<std::uint32_t> target(tokens_per_chunk_);
    std::vector<bool> seen(tokens_per_chunk_);
    for (std::uint32_t i = 0; i < tokens_per_chunk_; ++i) {
      std::int32_t position = 0;
      std::memcpy(&position, image_.data() + positions_[c * tokens_per_chunk_ + i],
                  sizeof position);
      const std::int64_t index = std::int64_t{position} - first;
      if (index < 0 || index >= tokens_per_chunk_ || seen[static_cast<std::size_t>(index)]) {
        return Error{ErrorCode::kUnavailable, "read tokens from " + std::to_string(first) +
                                                  ": llama.cpp wrote position " +
                                                  std::to_string(position)};
      }
      seen[static_cast<std::size_t>(index)] = true;
      target[i] = static_cast<std::uint32_t>(index);
    }
    for (std::size_t t = 0; t < 2 * caches_[c].keys.size(); ++t, ++tensor) {
      const Rows& rows = rows_[tensor];
      for (std::uint32_t i = 0; i < tokens_per_chunk_; ++i) {
        std::memcpy(out + target[i] * rows.row_bytes,
                    image_.data() + rows.offset + i * rows.row_bytes, rows.row_bytes);
      }
      out += rows.row_bytes * tokens_per_chunk_;
    }
  }
  return {};
}

Result<void> LlamaKv::WriteChunk(std::span<const std::byte> chunk,
                                 std::span<const BlockId> blocks) {
  const std::int32_t sequence = SequenceOf(blocks[0]);
  const auto first = static_cast<std::int32_t>(ChunkIndexOf(blocks[0]) * tokens_per_chunk_);
  const std::byte* in = chunk.data();
  std::size_t header = 0;
  for (const Rows& rows : rows_) {
    std::memcpy(image_.data() + header, headers_.data() + header, rows.offset - header);
    std::memcpy(image_.data() + rows.offset, in, rows.row_bytes * tokens_per_chunk_);
    in += rows.row_bytes * tokens_per_chunk_;
    header = rows.offset + rows.row_bytes * tokens_per_chunk_;
  }
  SetPositions(first);
  const std::int32_t scratch = runtime_.scratch_sequence();
  llama_memory_t memory = llama_get_memory(runtime_.context());
  const std::size_t read = llama_state_seq_set_data_ext(
      runtime_.context(), reinterpret_cast<const std::uint8_t*>(image_.data()), image_.size(),
      scratch, 0);
  if (read != image_.size()) {
    llama_memory_seq_rm(memory, scratch, -1, -1);
    return Error{ErrorCode::kUnavailable, "write tokens from " + std::to_string(first) +
                                              " into sequence " + std::to_string(sequence) +
                                              ": llama.cpp took no state (is its memory full?)"};
  }
  llama_memory_seq_cp(memory, scratch, sequence, first,
                      first + static_cast<std::int32_t>(tokens_per_chunk_));
  llama_memory_seq_rm(memory, scratch, -1, -1);
  return {};
}

}  // namespace terrace::llama
