#include "tier/peer/ucx_dialer.h"

#ifdef TERRACE_WITH_UCX

#include <algorithm>
#include <chrono>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "tier/peer/tcp_socket.h"
#include "tier/peer/ucx_holder.h"

namespace terrace {
namespace {

// A holder's registered memory, through an endpoint of UCX.
class UcxChunks final : public RemoteChunks {
 public:
  static Result<std::unique_ptr<RemoteChunks>> Reach(UcxDialer& dialer, const UcxAccess& access,
                                                     std::uint64_t region_bytes) {
    std::unique_ptr<UcxChunks> chunks(new UcxChunks(dialer, access.base, region_bytes));
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(access.worker.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) {
      static_cast<UcxChunks*>(arg)->fault_ =
          std::string("UCX lost the holder: ") + ucs_status_string(status);
    };
    params.err_handler.arg = chunks.get();
    ucs_status_t status = ucp_ep_create(dialer.worker(), &params, &chunks->endpoint_);
    if (status != UCS_OK) {
      chunks->endpoint_ = nullptr;
      return UcxError("reach the holder over UCX", status);
    }
    status = ucp_ep_rkey_unpack(chunks->endpoint_, access.key.data(), &chunks->key_);
    if (status != UCS_OK) {
      chunks->key_ = nullptr;
      return UcxError("use the holder's key of its memory", status);
    }
    return std::unique_ptr<RemoteChunks>(std::move(chunks));
  }

  ~UcxChunks() override {
    TERRACE_CHECK(under_way_.empty(), "a slot may still be written");
    Cancel();
    if (key_ != nullptr) ucp_rkey_destroy(key_);
  }
  UcxChunks(const UcxChunks&) = delete;
  UcxChunks& operator=(const UcxChunks&) = delete;

  std::optional<ReadEnd> Begin(const Fetch& fetch) override {
    if (fetch.where > region_bytes_ || region_bytes_ - fetch.where < fetch.slot.size()) {
      return ReadEnd::kCorrupt;
    }
    auto one = std::make_unique<UnderWay>();
    one->chunks = this;
    one->tag = fetch.tag;
    one->from = base_ + fetch.where;
    one->slot = fetch.slot;
    one->checksum = fetch.record->payload_checksum;
    const auto end = GoOn(*one);
    if (!end) under_way_.emplace(fetch.tag, std::move(one));
    return end;
  }

  void TakeEnded(std::vector<Ended>& ended) override {
    ended.insert(ended.end(), ended_.begin(), ended_.end());
    ended_.clear();
  }

  void Cancel() override {
    if (endpoint_ != nullptr) dialer_.CloseEndpoint(std::exchange(endpoint_, nullptr));
  }

  std::string Fault() const override { return fault_; }

 private:
  // Of a chunk at a time: hashed while it is still in the cache.
  static constexpr std::size_t kPieceSize = 256 << 10;

  // Knows its place; its address is UCX's until it has called back.
  struct UnderWay {
    UcxChunks* chunks = nullptr;
    std::uint64_t tag = 0;
    std::uint64_t from = 0;  // The address of the chunk at the holder.
    std::span<std::byte> slot;
    std::uint64_t checksum = 0;
    std::size_t done = 0;  // Bytes that are there and hashed.
    Xxh3Stream hash;

    std::size_t NextSize() const { return std::min(kPieceSize, slot.size() - done); }
    void TakePiece() {
      const std::size_t size = NextSize();
      hash.Update(slot.subspan(done, size));
      done += size;
    }
  };

  UcxChunks(UcxDialer& dialer, std::uint64_t base, std::uint64_t region_bytes)
      : dialer_(dialer), base_(base), region_bytes_(region_bytes) {}

  // Gets pieces until one is under way, or nothing is left to get: its end.
  std::optional<ReadEnd> GoOn(UnderWay& one) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.cb.send = [](void* request, ucs_status_t status, void* user_data) {
      auto* const done = static_cast<UnderWay*>(user_data);
      done->chunks->OnComplete(*done, status);
      ucp_request_free(request);
    };
    params.user_data = &one;
    while (one.done < one.slot.size()) {
      if (endpoint_ == nullptr) return ReadEnd::kLost;
      const ucs_status_ptr_t request =
          ucp_get_nbx(endpoint_, one.slot.data() + one.done, one.NextSize(), one.from + one.done,
                      key_, &params);
      if (UCS_PTR_IS_ERR(request)) return ReadEnd::kLost;
      if (request != nullptr) return std::nullopt;
      one.TakePiece();
    }
    return one.hash.Value() == one.checksum ? ReadEnd::kOk : ReadEnd::kCorrupt;
  }
  void OnComplete(UnderWay& one, ucs_status_t status) {
    std::optional<ReadEnd> end = ReadEnd::kLost;
    if (status == UCS_OK) {
      one.TakePiece();
      end = GoOn(one);
    }
    if (!end) return;
    ended_.push_back({one.tag, *end});
    under_way_.erase(one.tag);
  }

  UcxDialer& dialer_;
  const std::uint64_t base_;
  const std::uint64_t region_bytes_;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  std::string fault_;
  std::unordered_map<std::uint64_t, std::unique_ptr<UnderWay>> under_way_;  // By tag.
  std::vector<Ended> ended_;
};

}  // namespace

Result<std::unique_ptr<PlaneDialer>> UcxDialer::Create(std::shared_ptr<UcxContext> context) {
  auto worker = UcxWorker::Create(std::move(context));
  if (!worker.ok()) return std::move(worker).error();
  return std::unique_ptr<PlaneDialer>(new UcxDialer(std::move(worker).value()));
}

UcxDialer::~UcxDialer() {
  constexpr std::chrono::seconds kPatience{1};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!closing_.empty() && std::chrono::steady_clock::now() < deadline) Progress();
}

std::unique_ptr<Dial> UcxDialer::Begin(const std::string& host, const std::string& offer) {
  return DialTcpOffer(host, offer);
}

Result<std::unique_ptr<RemoteChunks>> UcxDialer::Reach(const DataOpened& opened,
                                                       UniqueFd /*descriptor*/) {
  auto access = DecodeUcxAccess(opened.detail);
  if (!access.ok()) return std::move(access).error();
  return UcxChunks::Reach(*this, access.value(), opened.region_bytes);
}

bool UcxDialer::Progress() {
  const bool moved = worker_->Progress();
  std::erase_if(closing_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
  return moved;
}

void UcxDialer::CloseEndpoint(ucp_ep_h endpoint) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &params);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

}  // namespace terrace

#endif
