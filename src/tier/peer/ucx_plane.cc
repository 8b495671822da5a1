#include "tier/peer/ucx_plane.h"

#include <utility>

#ifdef TERRACE_WITH_UCX
#include "tier/peer/stream_plane.h"
#include "tier/peer/tcp_socket.h"
#include "tier/peer/ucx_context.h"
#include "tier/peer/ucx_dialer.h"
#include "tier/peer/ucx_holder.h"
#endif

namespace terrace {

#ifdef TERRACE_WITH_UCX

namespace {

class UcxPlane final : public DataPlane {
 public:
  UcxPlane(std::string port, std::unique_ptr<DataServer> server, std::unique_ptr<DataClient> client,
           std::unique_ptr<UcxHolder> holder)
      : holder_(std::move(holder)),
        links_(PlaneKind::kUcx, std::move(port), std::move(server), std::move(client)) {}

  PlaneKind kind() const override { return links_.kind(); }
  std::string Offer() const override { return links_.Offer(); }
  void Open(DataLinkId link, const std::string& host, const std::string& offer,
            const SessionToken& token, std::chrono::steady_clock::time_point deadline) override {
    links_.Open(link, host, offer, token, deadline);
  }
  void Read(DataLinkId link, std::span<const ChunkRead> reads) override {
    links_.Read(link, reads);
  }
  void Close(DataLinkId link) override { links_.Close(link); }
  void Take(std::vector<DataEvent>& events) override { links_.Take(events); }
  std::uint64_t refused_connections() const override { return links_.refused_connections(); }
  bool Shutdown(std::chrono::milliseconds timeout) override {
    const auto deadline = DeadlineIn(timeout);
    const bool no_links = links_.Shutdown(timeout);
    return holder_->Shutdown(deadline) && no_links;
  }

 private:
  // The holder first: while it registers it refers to the server.
  const std::unique_ptr<UcxHolder> holder_;
  StreamPlane links_;
};

}  // namespace

Result<std::unique_ptr<DataPlane>> CreateUcxPlane(const DataPlaneContext& context) {
  auto ucx = UcxContext::Create();
  if (!ucx.ok()) return std::move(ucx).error();
  auto listener = ListenTcp(context.listen_host, 0);
  if (!listener.ok()) return std::move(listener).error();
  const auto port = PortOf(listener.value().get());
  if (!port.ok()) return port.error();
  auto dialer = UcxDialer::Create(ucx.value());
  if (!dialer.ok()) return std::move(dialer).error();
  auto client = DataClient::Start(PlaneKind::kUcx, std::move(dialer).value(), *context.host,
                                  context.on_event);
  if (!client.ok()) return std::move(client).error();
  auto server = DataServer::Start(std::move(listener).value(),
                                  {.plane = PlaneKind::kUcx,
                                   .payload = DataServerOptions::Payload::kFetched,
                                   .links_max = context.links_max},
                                  *context.host, *context.leases, context.on_event);
  if (!server.ok()) return std::move(server).error();
  auto holder = UcxHolder::Start(ucx.value(), *context.host,
                                 [s = server.value().get()](std::vector<std::byte> detail) {
                                   if (detail.empty())
                                     return s->Refuse("host memory is not registered with UCX");
                                   s->Open(std::move(detail));
                                 });
  if (!holder.ok()) return std::move(holder).error();
  return std::unique_ptr<DataPlane>(
      std::make_unique<UcxPlane>(std::to_string(port.value()), std::move(server).value(),
                                 std::move(client).value(), std::move(holder).value()));
}

#else

Result<std::unique_ptr<DataPlane>> CreateUcxPlane(const DataPlaneContext& /*context*/) {
  return Error{ErrorCode::kUnavailable, "this build has no UCX"};
}

#endif

}  // namespace terrace
