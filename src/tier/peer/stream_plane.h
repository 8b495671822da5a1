// A data plane that is a server and a client of data links.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "tier/peer/data_client.h"
#include "tier/peer/data_plane.h"
#include "tier/peer/data_server.h"

namespace terrace {

// Thread-safe, but for Shutdown(), which one thread calls.
class StreamPlane : public DataPlane {
 public:
  StreamPlane(PlaneKind kind, std::string offer, std::unique_ptr<DataServer> server,
              std::unique_ptr<DataClient> client)
      : kind_(kind),
        offer_(std::move(offer)),
        server_(std::move(server)),
        client_(std::move(client)) {}

  PlaneKind kind() const final { return kind_; }
  std::string Offer() const final { return offer_; }
  void Open(DataLinkId link, const std::string& host, const std::string& offer,
            const SessionToken& token, std::chrono::steady_clock::time_point deadline) final {
    client_->Open(link, host, offer, token, deadline);
  }
  void Read(DataLinkId link, std::span<const ChunkRead> reads) final { client_->Read(link, reads); }
  void Close(DataLinkId link) final { client_->Close(link); }
  void Take(std::vector<DataEvent>& events) final { client_->Take(events); }
  std::uint64_t refused_connections() const final { return server_->refused_connections(); }
  bool Shutdown(std::chrono::milliseconds timeout) override {
    const auto deadline = DeadlineIn(timeout);
    const bool asks_no_more = client_->Shutdown(deadline);
    return server_->Shutdown(deadline) && asks_no_more;
  }

 protected:
  DataServer& server() { return *server_; }

 private:
  const PlaneKind kind_;
  const std::string offer_;
  const std::unique_ptr<DataServer> server_;
  const std::unique_ptr<DataClient> client_;
};

}  // namespace terrace
