#include "tier/peer/ucx_context.h"

#ifdef TERRACE_WITH_UCX

#include <ucs/debug/debug.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "base/log.h"

namespace terrace {
namespace {

struct Setting {
  const char* name;
  const char* value;
};
// Without the first one, UCX leaves shared memory out where the death of a peer is to be noticed,
// which costs two thirds of the bandwidth on one host. The second bounds how long it takes.
constexpr std::array kSettings{
    Setting{"MM_ERROR_HANDLING", "y"},
    Setting{"KEEPALIVE_INTERVAL", "1s"},
};

// UCX puts handlers of its own on fatal signals when it is loaded. In a library that an engine
// embeds they are the engine's to set, unless the user has asked for UCX's.
const bool kSignalsAreTheEngines = [] {
  if (std::getenv("UCX_HANDLE_ERRORS") != nullptr) return false;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ucs_debug_disable_signal(signal);
  return true;
}();

}  // namespace

Error UcxError(const std::string& attempt, ucs_status_t status) {
  return Error{ErrorCode::kUnavailable, attempt + ": " + ucs_status_string(status)};
}

Result<std::shared_ptr<UcxContext>> UcxContext::Create() {
  static_cast<void>(kSignalsAreTheEngines);
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxError("read the settings of UCX", status);
  for (const Setting& setting : kSettings) {
    if (std::getenv((std::string("UCX_") + setting.name).c_str()) != nullptr) continue;
    if (status = ucp_config_modify(config, setting.name, setting.value); status != UCS_OK) {
      TERRACE_LOG_WARN("peer data plane ucx: this UCX does not know {}: {}", setting.name,
                       ucs_status_string(status));
    }
  }
  ucp_params_t params{};
  params.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  params.name = "terrace";
  ucp_context_h context = nullptr;
  status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (status != UCS_OK) return UcxError("start UCX", status);
  return std::shared_ptr<UcxContext>(new UcxContext(context));
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::Create(std::shared_ptr<UcxContext> context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  ucs_status_t status = ucp_worker_create(context->get(), &params, &worker);
  if (status != UCS_OK) return UcxError("make a worker of UCX", status);
  int descriptor = -1;
  if (status = ucp_worker_get_efd(worker, &descriptor); status != UCS_OK) {
    ucp_worker_destroy(worker);
    return UcxError("get the descriptor of a worker of UCX", status);
  }
  return std::unique_ptr<UcxWorker>(new UcxWorker(std::move(context), worker, descriptor));
}

}  // namespace terrace

#endif
