#include "tier/peer/ucx_holder.h"

#ifdef TERRACE_WITH_UCX

#include <poll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/hash.h"
#include "base/log.h"
#include "wire/peer_data.h"

namespace terrace {
namespace {

// XXH3 of the rest (8), base (8), size of the worker's address (2), that, and the key.
constexpr std::size_t kChecksumSize = 8;
constexpr std::size_t kFrontSize = kChecksumSize + 8 + 2;

void Put(std::vector<std::byte>& out, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    out.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
  }
}

std::uint64_t Get(std::span<const std::byte> in, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value |= std::to_integer<std::uint64_t>(in[i]) << (8 * i);
  return value;
}

Error Corrupt() {
  return Error{ErrorCode::kCorrupt, "what the peer says about its memory is damaged"};
}

}  // namespace

std::vector<std::byte> EncodeUcxAccess(const UcxAccess& access) {
  std::vector<std::byte> rest;
  Put(rest, access.base, 8);
  Put(rest, access.worker.size(), 2);
  rest.insert(rest.end(), access.worker.begin(), access.worker.end());
  rest.insert(rest.end(), access.key.begin(), access.key.end());
  std::vector<std::byte> out;
  Put(out, Xxh3(rest), kChecksumSize);
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

Result<UcxAccess> DecodeUcxAccess(std::span<const std::byte> detail) {
  if (detail.size() < kFrontSize) return Corrupt();
  if (Get(detail, kChecksumSize) != Xxh3(detail.subspan(kChecksumSize))) return Corrupt();
  const std::size_t worker_size = Get(detail.subspan(kChecksumSize + 8), 2);
  const auto rest = detail.subspan(kFrontSize);
  if (worker_size == 0 || worker_size >= rest.size()) return Corrupt();
  const auto worker = rest.first(worker_size);
  const auto key = rest.subspan(worker_size);
  return UcxAccess{Get(detail.subspan(kChecksumSize), 8),
                   {worker.begin(), worker.end()},
                   {key.begin(), key.end()}};
}

UcxHolder::UcxHolder(std::shared_ptr<UcxContext> context, std::unique_ptr<UcxWorker> worker,
                     UniqueFd wake)
    : context_(std::move(context)), worker_(std::move(worker)), wake_(std::move(wake)) {}

Result<std::unique_ptr<UcxHolder>> UcxHolder::Start(
    std::shared_ptr<UcxContext> context, TierHost& host,
    std::function<void(std::vector<std::byte> detail)> registered) {
  auto worker = UcxWorker::Create(context);
  if (!worker.ok()) return std::move(worker).error();
  UniqueFd wake(KeepAwayFromStdio(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  if (!wake.valid()) return ErrnoError("start the UCX plane", errno);
  std::unique_ptr<UcxHolder> holder(
      new UcxHolder(std::move(context), std::move(worker).value(), std::move(wake)));
  auto started = holder->thread_.Start(
      "terrace-peer-", "up",
      [h = holder.get(), &host, registered = std::move(registered)] { h->Run(host, registered); });
  if (!started.ok()) return std::move(started).error();
  return holder;
}

UcxHolder::~UcxHolder() {
  TERRACE_CHECK(Shutdown(DeadlineIn(kDestructorPatience)), "a data plane's thread does not end");
}

bool UcxHolder::Shutdown(std::chrono::steady_clock::time_point deadline) {
  stopping_.store(true, std::memory_order_release);
  (void)::eventfd_write(wake_.get(), 1);
  return thread_.JoinUntil(deadline);
}

void UcxHolder::Run(TierHost& host, const std::function<void(std::vector<std::byte>)>& registered) {
  using Clock = std::chrono::steady_clock;
  // Waking a thread takes longer than what an asker needs for its next request.
  constexpr std::chrono::microseconds kSpin{50};
  Clock::time_point spin_until{};
  registered(Register(host.Memory()));
  while (!stopping_.load(std::memory_order_acquire)) {
    const auto now = Clock::now();
    if (worker_->Progress()) {
      spin_until = now + kSpin;
    } else if (now < spin_until) {
      std::this_thread::yield();
    } else if (worker_->Arm()) {
      Sleep();
    }
  }
  if (memory_ != nullptr) ucp_mem_unmap(context_->get(), memory_);
}

std::vector<std::byte> UcxHolder::Register(TierMemory memory) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.bytes.data();
  params.length = memory.bytes.size();
  ucs_status_t status = ucp_mem_map(context_->get(), &params, &memory_);
  void* key = nullptr;
  std::size_t key_size = 0;
  if (status == UCS_OK) status = ucp_rkey_pack(context_->get(), memory_, &key, &key_size);
  ucp_address_t* address = nullptr;
  std::size_t address_size = 0;
  if (status == UCS_OK) status = ucp_worker_get_address(worker_->get(), &address, &address_size);
  std::vector<std::byte> detail;
  if (status == UCS_OK) {
    const auto* const key_bytes = static_cast<const std::byte*>(key);
    const auto* const address_bytes = reinterpret_cast<const std::byte*>(address);
    detail = EncodeUcxAccess({reinterpret_cast<std::uint64_t>(memory.bytes.data()),
                              {address_bytes, address_bytes + address_size},
                              {key_bytes, key_bytes + key_size}});
  }
  if (address != nullptr) ucp_worker_release_address(worker_->get(), address);
  if (key != nullptr) ucp_rkey_buffer_release(key);
  if (detail.empty() || detail.size() > kDataDetailSizeMax) {
    TERRACE_LOG_WARN(
        "peer data plane ucx: host memory cannot be registered, peers will not be served over "
        "it: {}",
        detail.empty() ? ucs_status_string(status) : "UCX describes it with too many bytes");
    detail.clear();
  }
  return detail;
}

void UcxHolder::Sleep() {
  std::array<pollfd, 2> fds{{{worker_->descriptor(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
  constexpr int kLookAgainMs = 1'000;
  (void)::poll(fds.data(), fds.size(), kLookAgainMs);
}

}  // namespace terrace

#endif
