#include "py_tier.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <typeinfo>
#include <utility>

#include "convert.h"

namespace terrace_kv {

using terrace::ChunkKey;
using terrace::CopyOutcome;
using terrace::JobId;
using terrace::JobResult;
using terrace::LoadSource;
using terrace::Request;
using terrace::RequestId;
using terrace::StoreInterest;
using terrace::TierLookup;
using terrace::TransferJob;

namespace {

// Calls Python; what that raises leaves as a plain exception that needs no interpreter.
template <typename Call>
auto InPython(const Call& call) {
  nb::gil_scoped_acquire interpreter;
  std::string raised;
  try {
    return call();
  } catch (nb::python_error& error) {
    raised = error.what();  // May run Python: that must not get the interrupt.
    if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // For the main thread.
  } catch (const std::bad_cast&) {
    raised = "what it returned is of a wrong type, or a number out of range";
  } catch (const std::exception& error) {
    raised = error.what();
  }
  throw std::runtime_error(raised);
}

nb::list BytesOf(const std::vector<ChunkKey>& keys) {
  nb::list list;
  for (const ChunkKey& key : keys) list.append(terrace_kv::BytesOf(key));
  return list;
}

// Never negative, and no longer than a clock can tell.
std::chrono::nanoseconds Nanoseconds(double seconds) {
  return std::chrono::nanoseconds(
      static_cast<std::int64_t>(seconds > 0 ? std::min(seconds, 1e6) * 1e9 : 0));
}

// The same under the manager's lock.
template <typename Call>
auto Ask(RequestBook& book, const Call& call) {
  return InPython([&] {
    const RequestBook::Asking asking(book);
    return call();
  });
}

LoadSource SourceOf(const std::string& name) {
  for (std::size_t i = 0; i < terrace::kLoadSourceCount; ++i) {
    if (LoadSourceName(static_cast<LoadSource>(i)) == name) return static_cast<LoadSource>(i);
  }
  throw std::runtime_error("a tier's load_source is '" + name + "', which is none");
}

}  // namespace

PyTier::PyTier(nb::object adapter, std::shared_ptr<RequestBook> book)
    : adapter_(std::move(adapter)), book_(std::move(book)) {
  type_ = AttributeOf<std::string>(adapter_, "type");
  source_ = SourceOf(AttributeOf<std::string>(adapter_, "load_source"));
  serves_ = AttributeOf<bool>(adapter_, "serves_external_requests");
  serves_between_steps_ = AttributeOf<bool>(adapter_, "serves_between_steps");
  failed_jobs_are_faults_ = AttributeOf<bool>(adapter_, "failed_jobs_are_faults");
}

PyTier::~PyTier() {
  if (!nb::is_alive()) {
    adapter_.release();
    return;
  }
  nb::gil_scoped_acquire interpreter;
  adapter_.reset();
}

TierLookup PyTier::Lookup(const ChunkKey& key, const Request& request) {
  return Ask(*book_, [&] {
    const int answer =
        nb::cast<int>(adapter_.attr("lookup")(terrace_kv::BytesOf(key), book_->Find(request.id)));
    switch (answer) {
      case 0:
        return TierLookup::kMiss;
      case 1:
        return TierLookup::kHit;
      case 2:
        return TierLookup::kRetry;
    }
    throw std::runtime_error("lookup() answered " + std::to_string(answer) +
                             ", which is no answer");
  });
}

void PyTier::Submit(TransferJob job, bool is_store) {
  Ask(*book_, [&] {
    nb::list slots = ListOf(job.slots);
    const auto [entry, is_new] = jobs_.emplace(job.id, job.keys);
    try {
      adapter_.attr("submit")(job.id.value, BytesOf(job.keys), slots, !is_store,
                              book_->Find(job.request));
    } catch (...) {
      jobs_.erase(entry);
      throw;
    }
  });
}

void PyTier::TakeFinished(std::vector<JobResult>& results) {
  if (is_shut_) return;
  Ask(*book_, [&] {
    // (job, failed keys or None if all did, bytes, seconds): see tiers.py.
    // A copy: the tier may change its list while its items are looked at.
    const nb::tuple items(nb::cast<nb::list>(adapter_.attr("take_finished")()));
    for (nb::handle item : items) {
      const auto number = nb::cast<std::uint64_t>(item[0]);
      const auto job = jobs_.find(JobId(number));
      if (job == jobs_.end()) {  // The manager counts it.
        results.push_back({JobId(number), {}, 0, {}, {}});
        continue;
      }
      JobResult result{JobId(number), {}, nb::cast<std::uint64_t>(item[3]), {}, {}};
      const bool success = nb::cast<bool>(item[1]);
      const nb::object good = item[2];
      for (const ChunkKey& key : job->second) {
        int ok = success ? 1 : 0;
        if (!success && !good.is_none()) {
          ok = PySequence_Contains(good.ptr(), terrace_kv::BytesOf(key).ptr());
          if (ok < 0) throw nb::python_error();
        }
        result.outcomes.push_back(ok == 1 ? CopyOutcome::kOk : CopyOutcome::kFailed);
      }
      const nb::object seconds = item[4];
      if (!seconds.is_none()) {
        result.ended_at = std::chrono::steady_clock::now();
        result.started_at = result.ended_at - Nanoseconds(nb::cast<double>(seconds));
      }
      jobs_.erase(job);
      results.push_back(std::move(result));
    }
  });
}

StoreInterest PyTier::OnNewRequest(const Request& request) {
  return Ask(*book_, [&] {
    const bool whole = nb::cast<bool>(adapter_.attr("on_new_request")(book_->Hold(request.id)));
    return whole ? StoreInterest::kWholeRequest : StoreInterest::kNewChunks;
  });
}

void PyTier::OnRequestFinished(const Request& request) {
  Ask(*book_, [&] { adapter_.attr("on_request_finished")(book_->LetGo(request.id)); });
}

void PyTier::OnScheduleEnd() {
  Ask(*book_, [&] { adapter_.attr("on_schedule_end")(book_->step); });
}

bool PyTier::HasPendingWork() const {
  return Ask(*book_, [&] { return nb::cast<bool>(adapter_.attr("has_pending_work")()); });
}

void PyTier::ServeExternalRequests(terrace::TierServer& server) {
  Ask(*book_, [&] {
    nb::object handle = nb::cast(new PyServer(server, jobs_), nb::rv_policy::take_ownership);
    auto& native = nb::cast<PyServer&>(handle);
    try {
      adapter_.attr("serve_external_requests")(handle);
    } catch (...) {
      native.End();
      throw;
    }
    native.End();
  });
}

bool PyTier::Drain(std::chrono::milliseconds /*timeout*/) {
  InPython([&] { adapter_.attr("drain")(); });
  return true;
}

bool PyTier::Shutdown(std::chrono::milliseconds /*timeout*/) {
  if (std::exchange(is_shut_, true)) return true;
  if (nb::is_alive()) InPython([&] { adapter_.attr("shutdown")(); });
  return true;
}

terrace::TierServer& PyServer::server() {
  if (server_ == nullptr) {
    PyErr_SetString(PyExc_RuntimeError,
                    "the parent is valid only during serve_external_requests()");
    throw nb::python_error();
  }
  return *server_;
}

std::uint64_t PyServer::BeginRequest() { return server().BeginRequest().id.value; }

int PyServer::Lookup(nb::handle key, std::uint64_t request) {
  return static_cast<int>(server().Lookup(KeyOf(key), Request{RequestId(request)}));
}

nb::object PyServer::CreateStoreJob(nb::handle keys, std::uint64_t request) {
  Keys parsed;
  KeysOf(keys, parsed);
  auto job = server().CreateStoreJob(parsed.keys, Request{RequestId(request)});
  if (!job) return nb::none();
  jobs_.emplace(job->id, job->keys);
  return nb::make_tuple(job->id.value, ListOf(job->slots));
}

void PyServer::FinishRequest(std::uint64_t request) {
  server().FinishRequest(Request{RequestId(request)});
}

bool PyServer::ShouldYield() { return server().ShouldYield(); }

}  // namespace terrace_kv
