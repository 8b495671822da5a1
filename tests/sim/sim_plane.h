// A data plane between simulated nodes. Chunk by chunk it behaves as TCP does (the holder copies
// out of the slot, then the bytes travel) or as a mapping or a network card does (the asker reads
// the holder's memory some time after the holder said that it may).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/sim_network.h"
#include "tier/peer/data_plane.h"
#include "wire/chunk_record.h"

namespace terrace::sim {

class SimPlane final : public DataPlane {
 public:
  // Its offer is the host's name.
  SimPlane(Hub& hub, std::map<std::string, SimPlane*>& planes, std::string name, TierHost& host,
           LeaseTable& leases);
  ~SimPlane() override;

  PlaneKind kind() const override { return PlaneKind::kTcp; }
  std::string Offer() const override { return name_; }
  void Open(DataLinkId link, const std::string& host, const std::string& offer,
            const SessionToken& token, TimePoint deadline) override;
  void Read(DataLinkId link, std::span<const ChunkRead> reads) override;
  void Close(DataLinkId link) override;
  void Take(std::vector<DataEvent>& events) override;
  [[nodiscard]] bool Shutdown(std::chrono::milliseconds timeout) override;

 private:
  // The holder's side of a connection.
  struct Served {
    SessionId session;
    std::vector<LeaseId> reading;
  };
  // The asker's.
  struct Link {
    std::uint64_t connection;
    std::string holder;
    bool open = false;
    std::map<std::uint64_t, ChunkRead> reads;  // Under way, by tag.
    TimePoint last_request, last_chunk;
  };

  SimPlane* At(const std::string& name);
  void Serve(const std::string& asker, DataLinkId link, std::uint64_t connection,
             const ChunkRead& read);
  void Arrive(DataLinkId link, std::uint64_t tag, const ChunkRecord& record,
              const std::vector<std::byte>& bytes);
  void End(DataLinkId link, std::uint64_t tag, ReadEnd end);
  void EndServed(std::uint64_t connection);
  void EndOneRead(std::uint64_t connection, LeaseId lease);
  void Lose(DataLinkId link, const std::string& why);

  Hub& hub_;
  std::map<std::string, SimPlane*>& planes_;
  const std::string name_;
  TierHost& host_;
  LeaseTable& leases_;
  std::map<DataLinkId, Link> links_;
  std::map<std::uint64_t, Served> served_;  // By connection.
  std::vector<DataEvent> events_;
};

}  // namespace terrace::sim
