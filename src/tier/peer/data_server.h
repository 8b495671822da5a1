// The holder's side of a data plane: one thread that answers the reads of all askers.
//
// A connection has a short time to show a session's token; one that shows anything else is closed,
// and how many may be in that state is bounded, so that whoever dials this port costs the links
// that are open nothing but the time to accept and to close. A link's turn is one piece of a chunk,
// so that no link waits for another one's batch.
//
// A chunk is leased (LeaseTable) while its bytes are being sent, or, where the asker fetches by
// itself, until it says that it is done, or the lease has ended: what it fetches too late, its
// record tells.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/thread.h"
#include "terrace/result.h"
#include "terrace/tier_host.h"
#include "tier/peer/data_plane.h"
#include "tier/peer/lease_table.h"

namespace terrace {

struct DataServerOptions {
  PlaneKind plane = PlaneKind::kTcp;
  // How the bytes go: behind the answer on the link itself, or fetched by the asker.
  enum class Payload : std::uint8_t { kOnLink, kFetched };
  Payload payload = Payload::kOnLink;
  std::uint32_t links_max = 64;
  // Connections that have not shown a token yet; the oldest gives way to one more.
  std::uint32_t strangers_max = 64;
  std::chrono::milliseconds stranger_time{2'000};
  // Once, on a new connection; what it says is wrong closes it. May be empty.
  std::function<Result<void>(int socket)> check_connection{};
  // Passed to every asker along with OPENED, on a UNIX socket; may be none.
  UniqueFd descriptor{};
};

// Thread-safe.
class DataServer {
 public:
  // `listener` is a non-blocking stream socket that listens. `on_event`: as in DataPlaneContext.
  static Result<std::unique_ptr<DataServer>> Start(UniqueFd listener, DataServerOptions options,
                                                   TierHost& host, LeaseTable& leases,
                                                   std::function<void()> on_event);
  // Pre: Shutdown() returned true, or nobody waits for longer than kDestructorPatience.
  ~DataServer();
  DataServer(const DataServer&) = delete;
  DataServer& operator=(const DataServer&) = delete;

  // Askers are answered from now on; until then they wait. `detail`: what their plane needs.
  void Open(std::vector<std::byte> detail);
  // Instead: they are hung up on.
  void Refuse(std::string why);

  // Connections that did not become a link, since it began.
  std::uint64_t refused_connections() const;

  // Closes every link and ends the thread. False if that takes longer than until `deadline`.
  [[nodiscard]] bool Shutdown(std::chrono::steady_clock::time_point deadline);

 private:
  class Loop;

  explicit DataServer(UniqueFd wake);

  const UniqueFd wake_;  // An eventfd.
  std::unique_ptr<Loop> loop_;
  EndingThread thread_;
};

}  // namespace terrace
