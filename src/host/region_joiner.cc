#include <fmt/format.h>

#include <string>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/same_user.h"
#include "host/region_setup.h"
#include "host/region_socket.h"

namespace terrace {
namespace {

constexpr std::chrono::milliseconds kRetryInterval{5};

class Joiner final : public RegionJoiner {
 public:
  explicit Joiner(const RegionSharing& sharing)
      : sharing_(sharing), deadline_(DeadlineIn(sharing.timeout)) {}

  Result<void> ReceiveOffer(const RegionHeader& expected) {
    std::string last = "nobody is creating it";
    while (true) {
      auto offered = TryOnce(last);
      if (!offered.ok()) return Failed(offered.error());
      if (offered.value()) break;
      if (std::chrono::steady_clock::now() >= deadline_) return Failed(TimedOut(last));
      std::this_thread::sleep_for(kRetryInterval);
    }
    if (auto checked = CheckRegionHeader(expected, header_); !checked.ok()) {
      ReportFailure(checked.error().message);
      return Failed(checked.error());
    }
    return {};
  }

  const RegionHeader& header() const override { return header_; }
  UniqueFd TakeMemory() override { return std::move(memory_); }

  Result<void> ReportMapped() override {
    Reach(RegionStage::kMapped);
    auto sent = Send(RegionMessage::Kind::kMapped, "");
    Reach(RegionStage::kReported);
    if (sent.ok()) return {};
    auto verdict = ReceiveVerdict();  // Why the creator does not listen any more.
    return verdict.ok() ? Failed(sent.error()) : verdict;
  }

  void ReportFailure(const std::string& why) override {
    IgnoreError(Send(RegionMessage::Kind::kFailed, why), "the creator may be gone");
  }

  Result<void> AwaitAll() override {
    if (!verdict_) verdict_ = ReceiveVerdict();
    return *verdict_;
  }

 private:
  void Reach(RegionStage stage) const {
    if (sharing_.at_stage) sharing_.at_stage(stage);
  }

  Error Failed(const Error& error) const {
    return {error.code, fmt::format("join host region \"{}\": {}", sharing_.name, error.message)};
  }
  Error TimedOut(const std::string& what) const {
    return {ErrorCode::kUnavailable, fmt::format("{}, for {} ms", what, sharing_.timeout.count())};
  }

  Result<void> Send(RegionMessage::Kind kind, const std::string& text) const {
    RegionMessage message;
    message.kind = kind;
    message.rank = sharing_.rank.value_or(RegionMessage::kNoRank);
    message.SetText(text);
    return SendRegionMessage(socket_.get(), message);
  }

  // False if it is worth another try; `last` says how far this one came.
  Result<bool> TryOnce(std::string& last) {
    auto socket = ConnectToRegion(sharing_.name);
    if (!socket.ok()) return std::move(socket).error();
    if (!socket.value()) return false;
    socket_ = std::move(*socket.value());
    auto creator = CheckSameUser(socket_.get());
    if (!creator.ok()) return std::move(creator).error();
    creator_pid_ = creator.value();
    Reach(RegionStage::kConnected);
    IgnoreError(Send(RegionMessage::Kind::kHello, sharing_.instance),
                "what there is to receive says why");
    if (!WaitUntilReadable(socket_.get(), deadline_)) {
      return TimedOut(fmt::format("its creator (pid {}) does not answer", creator_pid_));
    }
    auto received = ReceiveRegionMessage(socket_.get());
    if (!received.ok()) return std::move(received).error();
    if (!received.value()) {  // Perhaps the end of an earlier start: ours may come yet.
      last = fmt::format("its creator (pid {}) went away and no other came", creator_pid_);
      return false;
    }
    ReceivedRegionMessage& offer = *received.value();
    if (offer.message.kind == RegionMessage::Kind::kFailed) {
      return Error{ErrorCode::kUnavailable, offer.message.text};
    }
    if (offer.message.kind != RegionMessage::Kind::kOffer || !offer.memory.valid()) {
      return Error{ErrorCode::kIncompatible, "its creator offers no memory"};
    }
    header_ = offer.message.header;
    memory_ = std::move(offer.memory);
    Reach(RegionStage::kOffered);
    return true;
  }

  Result<void> ReceiveVerdict() {
    if (!WaitUntilReadable(socket_.get(), deadline_)) {
      const Error error = TimedOut("not all processes have mapped it");
      ReportFailure(error.message);
      return Failed(error);
    }
    auto received = ReceiveRegionMessage(socket_.get());
    if (!received.ok()) return Failed(received.error());
    if (!received.value()) {
      return Failed(
          {ErrorCode::kUnavailable,
           fmt::format("its creator (pid {}) went away before all processes had mapped it",
                       creator_pid_)});
    }
    const RegionMessage& message = received.value()->message;
    if (message.kind == RegionMessage::Kind::kComplete) return {};
    return Failed({ErrorCode::kUnavailable, message.text});
  }

  const RegionSharing sharing_;
  const std::chrono::steady_clock::time_point deadline_;
  UniqueFd socket_;
  pid_t creator_pid_ = 0;
  RegionHeader header_;
  UniqueFd memory_;
  std::optional<Result<void>> verdict_;
};

}  // namespace

Result<std::unique_ptr<RegionJoiner>> RegionJoiner::Connect(const RegionSharing& sharing,
                                                            const RegionHeader& expected) {
  auto joiner = std::make_unique<Joiner>(sharing);
  if (auto offered = joiner->ReceiveOffer(expected); !offered.ok()) {
    return std::move(offered).error();
  }
  return std::unique_ptr<RegionJoiner>(std::move(joiner));
}

}  // namespace terrace
