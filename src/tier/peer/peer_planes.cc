#include "tier/peer/peer_planes.h"

#include <utility>

#include "base/log.h"
#include "tier/peer/shm_plane.h"
#include "tier/peer/tcp_plane.h"
#include "tier/peer/ucx_plane.h"

namespace terrace {
namespace {

struct PlaneMaker {
  PlaneKind kind;
  Result<std::unique_ptr<DataPlane>> (*make)(const DataPlaneContext& context);
};

// Best first.
constexpr PlaneMaker kMakers[] = {
    {PlaneKind::kSharedMemory, CreateShmPlane},
#ifdef TERRACE_WITH_UCX
    {PlaneKind::kUcx, CreateUcxPlane},
#endif
    {PlaneKind::kTcp, CreateTcpPlane},
};

}  // namespace

std::string DataPlaneNames() {
  std::string names;
  for (const PlaneMaker& maker : kMakers) {
    names += (names.empty() ? "" : ", ") + std::string(PlaneName(maker.kind));
  }
  return names;
}

Result<std::vector<std::unique_ptr<DataPlane>>> MakeDataPlanes(const std::string& wanted,
                                                               const DataPlaneContext& context) {
  const bool any = wanted == "auto";
  std::vector<std::unique_ptr<DataPlane>> planes;
  std::string why = "make data plane \"" + wanted + "\": this build has none of that name";
  ErrorCode code = ErrorCode::kInvalidArgument;
  for (const PlaneMaker& maker : kMakers) {
    if (!any && PlaneName(maker.kind) != wanted) continue;
    auto plane = maker.make(context);
    if (plane.ok()) {
      planes.push_back(std::move(plane).value());
      continue;
    }
    code = plane.error().code;
    why = plane.error().message;
    if (any) TERRACE_LOG_WARN("peer tier: no data plane {}: {}", PlaneName(maker.kind), why);
  }
  if (planes.empty()) return Error{code, why};
  return planes;
}

}  // namespace terrace
