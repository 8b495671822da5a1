// Right use of a manager and of results, and, chosen by a macro, one misuse that must not compile.
// See CMakeLists.txt.
#include "terrace/chunk_key.h"
#include "terrace/offloading_manager.h"
#include "terrace/result.h"

namespace terrace {

Result<void> Write();

void UseManager(OffloadingManager& manager, const ChunkKey& key, const Request& request) {
#ifdef CALL_WITHOUT_LOCK
  manager.OnScheduleEnd();
#endif
  {
    ManagerRegion region(manager);
#ifdef LOCK_TWICE
    ManagerRegion second(manager);
#endif
#ifdef SHUTDOWN_INSIDE_REGION
    manager.Shutdown();
#endif
    if (manager.Lookup(key, request) == LookupResult::kHit) {
      SlotId slot;
      if (manager.PrepareLoad({&key, 1}, request, {&slot, 1})) {
        manager.CompleteLoad({&slot, 1}, request);
      }
    }
#ifdef DROP_STORE_PLAN
    StorePlan plan;
    manager.PrepareStore({&key, 1}, request, plan);
#endif
    manager.OnScheduleEnd();
  }
#ifdef CALL_AFTER_REGION
  manager.HasPendingWork();
#endif
  manager.Shutdown();
}

void LockByHand(OffloadingManager& manager) {
  manager.Lock();
  manager.OnScheduleEnd();
#ifndef LOCK_LEFT_HELD
  manager.Unlock();
#endif
}

void UseResult() {
#ifdef DROP_RESULT
  Write();
#endif
  IgnoreError(Write(), "the control case drops it on purpose");
  if (auto written = Write(); !written.ok()) return;
}

}  // namespace terrace
