#include "tier/peer/tcp_plane.h"

#include <utility>

#include "tier/peer/stream_plane.h"
#include "tier/peer/tcp_socket.h"

namespace terrace {
namespace {

class TcpDialer final : public PlaneDialer {
 public:
  std::unique_ptr<Dial> Begin(const std::string& host, const std::string& offer) override {
    return DialTcpOffer(host, offer);
  }
  Result<std::unique_ptr<RemoteChunks>> Reach(const DataOpened& /*opened*/,
                                              UniqueFd /*descriptor*/) override {
    return std::unique_ptr<RemoteChunks>();
  }
};

}  // namespace

Result<std::unique_ptr<DataPlane>> CreateTcpPlane(const DataPlaneContext& context) {
  auto listener = ListenTcp(context.listen_host, context.listen_port);
  if (!listener.ok()) return std::move(listener).error();
  const auto port = PortOf(listener.value().get());
  if (!port.ok()) return port.error();
  auto server = DataServer::Start(std::move(listener).value(),
                                  {.plane = PlaneKind::kTcp, .links_max = context.links_max},
                                  *context.host, *context.leases, context.on_event);
  if (!server.ok()) return std::move(server).error();
  server.value()->Open({});
  auto client = DataClient::Start(PlaneKind::kTcp, std::make_unique<TcpDialer>(), *context.host,
                                  context.on_event);
  if (!client.ok()) return std::move(client).error();
  return std::unique_ptr<DataPlane>(
      std::make_unique<StreamPlane>(PlaneKind::kTcp, std::to_string(port.value()),
                                    std::move(server).value(), std::move(client).value()));
}

}  // namespace terrace
