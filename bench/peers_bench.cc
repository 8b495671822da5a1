// peers: what a peer's chunks cost to fetch over each data plane, beside the plane's raw copy
//
// Two processes, as peers are: the holder is forked and leases all of its slots; this one fetches
// them in batches into its own. The raw copy of the same bytes between the same two processes is
// taken in turn with that, so that what else runs on the machine touches both: for TCP a loop of
// send() and recv() on sockets with the same options, for shared memory a copy from the mapping
// with non-temporal stores, and for UCX the same ucp_get. A fetch also hashes every byte at the
// asker. The holder knows its chunks' checksums, as a node does that stored or fetched them;
// "unhashed" is of one that has to take them first, as one of vLLM does for each chunk once.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/fd.h"
#include "base/hash.h"
#include "bench/report.h"
#include "tests/contract/fake_tier_host.h"
#include "tests/support/keys.h"
#include "tier/peer/shm_plane.h"
#include "tier/peer/tcp_plane.h"
#include "tier/peer/tcp_socket.h"
#include "tier/peer/ucx_context.h"
#include "tier/peer/ucx_holder.h"
#include "tier/peer/ucx_plane.h"

namespace terrace::bench {
namespace {

using Clock = std::chrono::steady_clock;
using testing::FakeTierHost;

constexpr std::size_t kChunk = 2 << 20;
constexpr std::uint32_t kChunks = 128;
constexpr std::uint32_t kPromptChunks = 4;
constexpr double kGoal = 0.8;
constexpr std::size_t kReceiveAtOnce = 256 << 10;
constexpr DataLinkId kLink(1);

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }
double GigabytesPerSecond(std::size_t bytes, Clock::duration time) {
  return static_cast<double>(bytes) / Seconds(time) / 1e9;
}
double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

SessionToken Token() {
  SessionToken token{};
  token.fill(7);
  return token;
}

void WriteLine(int fd, const std::string& line) { (void)!::write(fd, line.data(), line.size()); }
std::string ReadLine(int fd) {
  std::string line;
  for (char c = 0; ::read(fd, &c, 1) == 1 && c != '\n';) line.push_back(c);
  return line;
}

struct Plane {
  const char* name;
  Result<std::unique_ptr<DataPlane>> (*create)(const DataPlaneContext&);
};

#ifdef TERRACE_WITH_UCX
// Lets UCX reach the memory of `host`, besides the plane. Says how on `to`.
std::unique_ptr<UcxHolder> HoldRawUcx(FakeTierHost& host, int to) {
  return UcxHolder::Start(UcxContext::Create().value(), host,
                          [to](std::vector<std::byte> detail) {
                            WriteLine(to, HexEncode({reinterpret_cast<std::uint8_t*>(detail.data()),
                                                     detail.size()}) +
                                              "\n");
                          })
      .value();
}
#endif

// The holder's process. Answers on `to`: the offer, the port of the raw sender.
[[noreturn]] void Hold(const Plane& plane, FakeTierHost& host, int to) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  LeaseTable leases({.lease_time = std::chrono::hours(1), .life_max = std::chrono::hours(1)});
  DataPlaneContext context;
  context.host = &host;
  context.leases = &leases;
  auto created = plane.create(context);
  if (!created.ok()) {
    WriteLine(to, "! " + created.error().message + "\n");
    ::_exit(1);
  }
  leases.AddSession(SessionId(1), Token());
  const auto keys = testing_support::Keys(0, kChunks);
  TransferJob job;
  job.keys = keys;
  for (std::uint32_t i = 0; i < kChunks; ++i) job.slots.push_back(SlotId(i));
  leases.Add(SessionId(1), keys, {&job, 1}, Clock::now());
  auto listener = ListenTcp("127.0.0.1", 0);
  WriteLine(to, created.value()->Offer() + "\n");
  WriteLine(to, std::to_string(PortOf(listener.value().get()).value()) + "\n");
#ifdef TERRACE_WITH_UCX
  std::unique_ptr<UcxHolder> raw_ucx;
  if (created.value()->kind() == PlaneKind::kUcx) raw_ucx = HoldRawUcx(host, to);
#endif
  // Raw: all slots for every byte that comes.
  UniqueFd raw;
  while (!raw.valid()) {
    raw = UniqueFd(::accept4(listener.value().get(), nullptr, nullptr, SOCK_CLOEXEC));
    ::usleep(1'000);
  }
  const auto bytes = host.Memory().bytes;
  for (char c = 0; ::recv(raw.get(), &c, 1, 0) == 1;) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(raw.get(), bytes.data() + sent,
                               std::min(kChunk, bytes.size() - sent), MSG_NOSIGNAL);
      if (n <= 0) ::_exit(0);
      sent += static_cast<std::size_t>(n);
    }
  }
  ::_exit(0);
}

// A holder in a process of its own, and this process's end.
class Pair {
 public:
  // `hashed`: whether the holder knows its chunks' checksums.
  Pair(const Plane& plane, bool hashed) : theirs_(kChunks, kChunk), ours_(kChunks, kChunk) {
    std::memset(theirs_.Memory().bytes.data(), 0x5a, theirs_.Memory().bytes.size());
    if (hashed) {
      SlotChecksums& known = theirs_.RememberChecksums();
      for (std::uint32_t i = 0; i < kChunks; ++i) {
        known.Note(SlotId(i), Xxh3(theirs_.Slot(SlotId(i))));
      }
    }
    std::memset(ours_.Memory().bytes.data(), 1, ours_.Memory().bytes.size());
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return;
    holder_ = ::fork();
    if (holder_ == 0) Hold(plane, theirs_, ends[1]);
    ::close(ends[1]);
    const UniqueFd from(ends[0]);
    const std::string offer = ReadLine(from.get());
    if (offer.empty() || offer[0] == '!') {
      Progress(std::string("  ") + plane.name + ": " + offer);
      return;
    }
    Connect(plane, offer);
    auto dial = DialTcp("127.0.0.1", static_cast<std::uint16_t>(std::stoi(ReadLine(from.get()))));
    auto next = dial->Next();
    raw_ = std::move(*next.value());
    const int flags = ::fcntl(raw_.get(), F_GETFL);
    ::fcntl(raw_.get(), F_SETFL, flags & ~O_NONBLOCK);
    if (plane_->kind() == PlaneKind::kUcx) ucx_detail_ = ReadLine(from.get());
    ::usleep(10'000);
  }
  ~Pair() {
    if (plane_ != nullptr && !plane_->Shutdown(std::chrono::seconds(10))) std::abort();
    if (holder_ <= 0) return;
    ::kill(holder_, SIGKILL);
    ::waitpid(holder_, nullptr, 0);
  }
  bool ok() const { return opened_; }
  FakeTierHost& theirs() { return theirs_; }
  FakeTierHost& ours() { return ours_; }
  // What HoldRawUcx() said.
  const std::string& ucx_detail() const { return ucx_detail_; }

  // `count` chunks from `first` on; false if one did not come.
  bool Fetch(std::uint32_t first, std::uint32_t count) {
    std::vector<ChunkRead> reads;
    for (std::uint32_t i = first; i < first + count; ++i) {
      reads.push_back({next_tag_++, LeaseId(1), i, testing_support::Key(i), SlotId(i)});
    }
    plane_->Read(kLink, reads);
    bool ok = true;
    for (std::uint32_t ended = 0; ended < count;) {
      for (const DataEvent& event : Await()) {
        ok = ok && event.kind == DataEvent::Kind::kRead && event.end == ReadEnd::kOk;
        ++ended;
      }
    }
    return ok;
  }

  // The raw TCP loop.
  bool ReceiveRaw() {
    const auto bytes = ours_.Memory().bytes;
    if (::send(raw_.get(), "x", 1, MSG_NOSIGNAL) != 1) return false;
    for (std::size_t got = 0; got < bytes.size();) {
      const ssize_t n =
          ::recv(raw_.get(), bytes.data() + got, std::min(kReceiveAtOnce, bytes.size() - got), 0);
      if (n <= 0) return false;
      got += static_cast<std::size_t>(n);
    }
    return true;
  }

 private:
  void Connect(const Plane& plane, const std::string& offer) {
    DataPlaneContext context;
    context.host = &ours_;
    context.leases = &leases_;
    context.on_event = [this] {
      MutexLock lock(mutex_);
      rung_ = true;
      bell_.NotifyAll();
    };
    auto created = plane.create(context);
    if (!created.ok()) return;
    plane_ = std::move(created).value();
    plane_->Open(kLink, "127.0.0.1", offer, Token(), Clock::now() + std::chrono::seconds(30));
    const auto events = Await();
    opened_ = events.at(0).kind == DataEvent::Kind::kOpened;
    if (!opened_) Progress(std::string("  ") + plane.name + ": " + events.at(0).why);
  }
  // What has happened, at least one thing.
  std::vector<DataEvent> Await() {
    std::vector<DataEvent> events;
    while (true) {
      plane_->Take(events);
      if (!events.empty()) return events;
      MutexLock lock(mutex_);
      while (!rung_) bell_.Wait(mutex_);
      rung_ = false;
    }
  }

  FakeTierHost theirs_, ours_;
  LeaseTable leases_{LeaseTable::Options()};
  pid_t holder_ = -1;
  std::unique_ptr<DataPlane> plane_;
  UniqueFd raw_;
  std::string ucx_detail_;
  bool opened_ = false;
  std::uint64_t next_tag_ = 1;
  Mutex mutex_;
  CondVar bell_;
  bool rung_ TERRACE_GUARDED_BY(mutex_) = false;
};

#if defined(__x86_64__)
__attribute__((target("avx2"))) void StreamAvx2(std::byte* to, const std::byte* from,
                                                std::size_t size) {
  for (std::size_t at = 0; at < size; at += 64) {
    const auto* const in = reinterpret_cast<const __m256i*>(from + at);
    auto* const out = reinterpret_cast<__m256i*>(to + at);
    const __m256i low = _mm256_load_si256(in), high = _mm256_load_si256(in + 1);
    _mm256_stream_si256(out, low);
    _mm256_stream_si256(out + 1, high);
  }
  _mm_sfence();
}
#endif

// The best plain copy of this machine.
void CopyRaw(std::byte* to, const std::byte* from, std::size_t size) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return StreamAvx2(to, from, size);
#endif
  std::memcpy(to, from, size);
}

bool CopyMapping(Pair& pair) {
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    CopyRaw(pair.ours().Slot(SlotId(i)).data(), pair.theirs().Slot(SlotId(i)).data(), kChunk);
  }
  return true;
}

#ifdef TERRACE_WITH_UCX
// An endpoint of the same kind, used as fast as it goes: it spins, and looks at no byte.
class RawUcx {
 public:
  bool Read(Pair& pair) {
    if (worker_ == nullptr && !Connect(pair.ucx_detail())) return false;
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      while (under_way_ >= kWindow) ucp_worker_progress(worker_->get());
      ucp_request_param_t params{};
      params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
      params.cb.send = [](void* request, ucs_status_t, void* self) {
        --static_cast<RawUcx*>(self)->under_way_;
        ucp_request_free(request);
      };
      params.user_data = this;
      const auto slot = pair.ours().Slot(SlotId(i));
      const auto request = ucp_get_nbx(endpoint_, slot.data(), slot.size(),
                                       access_.base + i * kChunk, key_, &params);
      if (UCS_PTR_IS_ERR(request)) return false;
      if (request != nullptr) ++under_way_;
    }
    while (under_way_ > 0) ucp_worker_progress(worker_->get());
    return true;
  }
  RawUcx() = default;
  RawUcx(const RawUcx&) = delete;
  ~RawUcx() {
    if (key_ != nullptr) ucp_rkey_destroy(key_);
    if (endpoint_ == nullptr) return;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const auto request = ucp_ep_close_nbx(endpoint_, &params);
    while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS) {
      ucp_worker_progress(worker_->get());
    }
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }

 private:
  static constexpr int kWindow = 4;

  bool Connect(const std::string& hex) {
    std::vector<std::uint8_t> detail(hex.size() / 2);
    if (!HexDecode(hex, detail)) return false;
    auto access = DecodeUcxAccess(std::as_bytes(std::span(detail)));
    if (!access.ok()) return false;
    access_ = std::move(access).value();
    worker_ = UcxWorker::Create(UcxContext::Create().value()).value();
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(access_.worker.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    return ucp_ep_create(worker_->get(), &params, &endpoint_) == UCS_OK &&
           ucp_ep_rkey_unpack(endpoint_, access_.key.data(), &key_) == UCS_OK;
  }

  UcxAccess access_;
  std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  int under_way_ = 0;
};
#endif

// False if something did not work.
bool Measure(const Plane& plane, bool hashed, const std::function<bool(Pair&)>& raw, int rounds,
             Report& report) {
  Progress(std::string("  ") + plane.name + (hashed ? "" : ", unhashed"));
  Pair pair(plane, hashed);
  if (!pair.ok()) return false;
  constexpr std::size_t kAll = kChunk * kChunks;
  std::vector<double> fetch_rates, raw_rates, prompt_rates, latencies;
  for (int round = -1; round < rounds; ++round) {
    const auto begin = Clock::now();
    if (!raw(pair)) return false;
    const auto middle = Clock::now();
    if (!pair.Fetch(0, kChunks)) return false;
    const auto end = Clock::now();
    if (round < 0) continue;  // The first touch.
    raw_rates.push_back(GigabytesPerSecond(kAll, middle - begin));
    fetch_rates.push_back(GigabytesPerSecond(kAll, end - middle));
    // Other chunks each time: those of a prompt are in no cache.
    for (std::uint32_t at = 0; at < kChunks; at += kPromptChunks) {
      const auto prompt = Clock::now();
      if (!pair.Fetch(at, kPromptChunks)) return false;
      prompt_rates.push_back(GigabytesPerSecond(kPromptChunks * kChunk, Clock::now() - prompt));
    }
    for (int i = 0; i < 20; ++i) {
      const auto one = Clock::now();
      if (!pair.Fetch(0, 1)) return false;
      latencies.push_back(Seconds(Clock::now() - one) * 1e6);
    }
  }
  const std::string prefix = std::string("peers.") + plane.name + '.';
  if (!hashed) {
    report.Add({prefix + "fetch_unhashed", Median(fetch_rates), "GB/s", Median(raw_rates),
                Row::Goal::kNone, 0});
    return true;
  }
  report.Add({prefix + "fetch", Median(fetch_rates), "GB/s", Median(raw_rates), Row::Goal::kAtLeast,
              kGoal});
  report.Add({prefix + "prompt_8mib", Median(prompt_rates), "GB/s", Median(raw_rates),
              Row::Goal::kNone, 0});
  report.Add({prefix + "one_chunk", Median(latencies), "us", {}, Row::Goal::kNone, 0});
  return true;
}

int Main(int argc, char** argv) {
  const Arguments arguments = ParseArguments(argc, argv);
  if (!arguments.rest.empty()) {
    Progress("usage: bench/run peers [--quick] [--json FILE]");
    return 2;
  }
  const int rounds = arguments.quick ? 5 : 25;
  Report report;
  bool ok = true;
  for (const bool hashed : {true, false}) {
    const auto measure = [&](const Plane& plane, const std::function<bool(Pair&)>& raw) {
      ok = Measure(plane, hashed, raw, rounds, report) && ok;
    };
    measure({"tcp", CreateTcpPlane}, &Pair::ReceiveRaw);
    measure({"shared_memory", CreateShmPlane}, CopyMapping);
#ifdef TERRACE_WITH_UCX
    RawUcx raw_ucx;
    measure({"ucx", CreateUcxPlane}, [&](Pair& pair) { return raw_ucx.Read(pair); });
#endif
  }
  report.Print();
  if (!arguments.json.empty() && !report.WriteJson(arguments.json)) return 1;
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) { return terrace::bench::Main(argc, argv); }
