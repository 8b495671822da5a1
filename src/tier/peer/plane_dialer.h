// What differs between data planes at the asker: how a holder is reached, and how its chunks are
// fetched where the link does not carry them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/fd.h"
#include "terrace/result.h"
#include "tier/peer/data_plane.h"
#include "wire/peer_data.h"

namespace terrace {

// The holder's chunks, seen through one link. Confined to the client's thread.
class RemoteChunks {
 public:
  virtual ~RemoteChunks() = default;

  struct Fetch {
    std::uint64_t tag = 0;
    std::uint64_t where = 0;              // As the holder said; not checked.
    const ChunkRecord* record = nullptr;  // Of the chunk that is wanted; until Begin() returns.
    std::span<std::byte> slot;            // Of the chunk's size.
  };
  // Its end, if that is known at once, or nullopt, and then it is in TakeEnded().
  virtual std::optional<ReadEnd> Begin(const Fetch& fetch) = 0;

  struct Ended {
    std::uint64_t tag = 0;
    ReadEnd end = ReadEnd::kOk;
  };
  virtual void TakeEnded(std::vector<Ended>& /*ended*/) {}
  // Makes what was begun end soon, if need be as kLost. A slot is not written after its end.
  virtual void Cancel() {}
  // Why the holder can't be reached through this any more; empty while it can.
  virtual std::string Fault() const { return {}; }
};

// A connection that is being made. Confined to the client's thread.
class Dial {
 public:
  virtual ~Dial() = default;
  // A non-blocking stream socket that is connected or on its way, each time to another address of
  // the holder; nullopt if it is to be asked again in some ms; an error if nothing is left to try.
  virtual Result<std::optional<UniqueFd>> Next() = 0;
};

// Confined to the client's thread. Never blocks.
class PlaneDialer {
 public:
  virtual ~PlaneDialer() = default;

  virtual std::unique_ptr<Dial> Begin(const std::string& host, const std::string& offer) = 0;
  // Once it is connected, before anything is said.
  virtual Result<void> CheckConnection(int /*socket*/) { return {}; }
  // nullptr: the link carries the chunks. `descriptor` is what came along with OPENED, if anything
  // did. Cost: may map memory.
  virtual Result<std::unique_ptr<RemoteChunks>> Reach(const DataOpened& opened,
                                                      UniqueFd descriptor) = 0;

  // For a plane whose fetches go on by themselves: its descriptor, to be slept on only after
  // Arm() said that nothing has come; and what moves them on, true if it did.
  virtual int descriptor() const { return -1; }
  virtual bool Arm() { return true; }
  virtual bool Progress() { return false; }
};

}  // namespace terrace
