#include "wire/peer_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

// docs/formats.md has the same table. The head keeps its meaning in every version.
constexpr std::uint32_t kMagic = 0x1a445254;  // "TRD", 0x1a: the last byte is not text.
constexpr std::size_t kKindAt = 4;            // u16
constexpr std::size_t kSizeAt = 6;            // u16: of the frame, its head included
constexpr std::size_t kHeadSize = 8;

enum class Kind : std::uint16_t {
  kOpen = 1,
  kOpened = 2,
  kRead = 3,
  kBytes = 4,
  kChunk = 5,
  kDone = 6
};

// Of a frame; of an OPENED without its detail.
constexpr std::size_t SizeOf(Kind kind) {
  switch (kind) {
    case Kind::kOpen:
      return 32;
    case Kind::kOpened:
      return 40;
    case Kind::kRead:
      return 32;
    case Kind::kBytes:
      return 24;
    case Kind::kChunk:
      return 32 + kChunkRecordFieldsSize;
    case Kind::kDone:
      return 16;
  }
  return 0;
}
static_assert(SizeOf(Kind::kOpened) + kDataDetailSizeMax == kDataFrameSizeMax);

// Appends what a frame is made of.
class Writer {
 public:
  Writer(Kind kind, std::size_t size, std::vector<std::byte>& out)
      : out_(out), end_(out.size() + size) {
    Number(kMagic);
    Number(static_cast<std::uint16_t>(kind));
    Number(static_cast<std::uint16_t>(size));
  }
  ~Writer() { TERRACE_CHECK(out_.size() == end_, "a frame has the size that its head says"); }

  template <typename T>
  void Number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      out_.push_back(static_cast<std::byte>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xff));
    }
  }
  void Zeros(std::size_t count) { out_.insert(out_.end(), count, std::byte{0}); }
  void Bytes(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }

 private:
  std::vector<std::byte>& out_;
  const std::size_t end_;
};

void Append(const DataOpen& open, std::vector<std::byte>& out) {
  Writer writer(Kind::kOpen, SizeOf(Kind::kOpen), out);
  writer.Number(open.version);
  writer.Number(open.plane);
  writer.Zeros(5);
  writer.Bytes(std::as_bytes(std::span(open.token)));
}

void Append(const DataOpened& opened, std::vector<std::byte>& out) {
  TERRACE_CHECK(opened.detail.size() <= kDataDetailSizeMax, "the detail of a data link is bounded");
  Writer writer(Kind::kOpened, SizeOf(Kind::kOpened) + opened.detail.size(), out);
  writer.Number(opened.version);
  writer.Number(opened.plane);
  writer.Zeros(5);
  writer.Number(opened.chunk_bytes);
  writer.Number(opened.stride_bytes);
  writer.Number(opened.region_bytes);
  writer.Bytes(opened.detail);
}

void Append(const DataRead& read, std::vector<std::byte>& out) {
  Writer writer(Kind::kRead, SizeOf(Kind::kRead), out);
  writer.Number(read.tag);
  writer.Number(read.lease);
  writer.Number(read.index);
  writer.Zeros(4);
}

void Append(const DataBytes& bytes, std::vector<std::byte>& out) {
  TERRACE_CHECK(bytes.size >= 1, "BYTES announces some");
  Writer writer(Kind::kBytes, SizeOf(Kind::kBytes), out);
  writer.Number(bytes.tag);
  writer.Number(bytes.size);
  writer.Zeros(4);
}

void Append(const DataChunk& chunk, std::vector<std::byte>& out) {
  Writer writer(Kind::kChunk, SizeOf(Kind::kChunk), out);
  writer.Number(chunk.tag);
  writer.Number(static_cast<std::uint8_t>(chunk.status));
  writer.Zeros(7);
  writer.Number(chunk.where);
  writer.Bytes(chunk.record);
}

void Append(const DataDone& done, std::vector<std::byte>& out) {
  Writer writer(Kind::kDone, SizeOf(Kind::kDone), out);
  writer.Number(done.tag);
}

Error Corrupt(std::string_view what) {
  return Error{ErrorCode::kCorrupt, fmt::format("decode a frame of a data link: {}", what)};
}

// Takes a frame apart. Pre: it has the size of its kind.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> frame) : rest_(frame.subspan(kHeadSize)) {}

  template <typename T>
  T Number() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= std::to_integer<std::uint64_t>(rest_[i]) << (8 * i);
    }
    rest_ = rest_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  void Zeros(std::size_t count) {
    for (const std::byte byte : rest_.first(count)) all_zero_ = all_zero_ && byte == std::byte{0};
    rest_ = rest_.subspan(count);
  }
  std::span<const std::byte> Rest() const { return rest_; }
  bool all_zero() const { return all_zero_; }

 private:
  std::span<const std::byte> rest_;
  bool all_zero_ = true;
};

DataFrame Take(Kind kind, Reader& reader) {
  switch (kind) {
    case Kind::kOpen: {
      DataOpen open;
      open.version = reader.Number<std::uint16_t>();
      open.plane = reader.Number<std::uint8_t>();
      reader.Zeros(5);
      for (std::uint8_t& byte : open.token) byte = reader.Number<std::uint8_t>();
      return open;
    }
    case Kind::kOpened: {
      DataOpened opened;
      opened.version = reader.Number<std::uint16_t>();
      opened.plane = reader.Number<std::uint8_t>();
      reader.Zeros(5);
      opened.chunk_bytes = reader.Number<std::uint64_t>();
      opened.stride_bytes = reader.Number<std::uint64_t>();
      opened.region_bytes = reader.Number<std::uint64_t>();
      opened.detail.assign(reader.Rest().begin(), reader.Rest().end());
      return opened;
    }
    case Kind::kRead: {
      DataRead read;
      read.tag = reader.Number<std::uint64_t>();
      read.lease = reader.Number<std::uint64_t>();
      read.index = reader.Number<std::uint32_t>();
      reader.Zeros(4);
      return read;
    }
    case Kind::kBytes: {
      DataBytes bytes;
      bytes.tag = reader.Number<std::uint64_t>();
      bytes.size = reader.Number<std::uint32_t>();
      reader.Zeros(4);
      return bytes;
    }
    case Kind::kChunk: {
      DataChunk chunk;
      chunk.tag = reader.Number<std::uint64_t>();
      chunk.status = static_cast<DataStatus>(reader.Number<std::uint8_t>());
      reader.Zeros(7);
      chunk.where = reader.Number<std::uint64_t>();
      std::copy_n(reader.Rest().begin(), chunk.record.size(), chunk.record.begin());
      return chunk;
    }
    case Kind::kDone:
      break;
  }
  return DataDone{reader.Number<std::uint64_t>()};
}

// What the types alone do not say.
Result<void> CheckValues(const DataFrame& frame) {
  if (const auto* bytes = std::get_if<DataBytes>(&frame); bytes != nullptr && bytes->size == 0) {
    return Corrupt("BYTES of 0 bytes, it must announce some");
  }
  if (const auto* chunk = std::get_if<DataChunk>(&frame); chunk != nullptr &&
                                                          chunk->status != DataStatus::kHere &&
                                                          chunk->status != DataStatus::kGone) {
    return Corrupt(fmt::format("CHUNK of status {}", static_cast<int>(chunk->status)));
  }
  return {};
}

}  // namespace

void AppendDataFrame(const DataFrame& frame, std::vector<std::byte>& out) {
  std::visit([&](const auto& one) { Append(one, out); }, frame);
}

Result<std::optional<DecodedDataFrame>> DecodeDataFrame(std::span<const std::byte> bytes) {
  // Junk is refused as soon as it differs, not when enough of it has come.
  for (std::size_t i = 0; i < std::min(bytes.size(), kKindAt); ++i) {
    if (bytes[i] != static_cast<std::byte>(kMagic >> (8 * i) & 0xff)) {
      return Corrupt("it starts like something else");
    }
  }
  if (bytes.size() < kHeadSize) return std::optional<DecodedDataFrame>();
  const auto u16 = [&](std::size_t at) {
    return std::to_integer<std::size_t>(bytes[at]) | std::to_integer<std::size_t>(bytes[at + 1])
                                                         << 8;
  };
  const auto kind = static_cast<Kind>(u16(kKindAt));
  const std::size_t size = u16(kSizeAt);
  const std::size_t least = SizeOf(kind);
  if (least == 0) return Corrupt(fmt::format("kind {}", u16(kKindAt)));
  const std::size_t most = kind == Kind::kOpened ? kDataFrameSizeMax : least;
  if (size < least || size > most) {
    return Corrupt(
        fmt::format("kind {} of {} bytes, it has {} to {}", u16(kKindAt), size, least, most));
  }
  if (bytes.size() < size) return std::optional<DecodedDataFrame>();
  Reader reader(bytes.first(size));
  DecodedDataFrame decoded{Take(kind, reader), size};
  if (!reader.all_zero()) return Corrupt("bytes that must be zero are not");
  if (auto sound = CheckValues(decoded.frame); !sound) return std::move(sound).error();
  return std::optional(std::move(decoded));
}

}  // namespace terrace
