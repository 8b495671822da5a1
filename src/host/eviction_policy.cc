#include "terrace/eviction_policy.h"

#include <utility>

#include "base/mutex.h"
#include "host/arc_policy.h"
#include "host/lru_policy.h"
#include "host/s3fifo_policy.h"
#include "host/sieve_policy.h"

namespace terrace {
namespace {

template <typename Policy>
EvictionPolicyFactory FactoryOf() {
  return [](std::uint32_t slot_count) { return std::make_unique<Policy>(slot_count); };
}

// Thread-safe.
class Registry {
 public:
  static Registry& Instance() {
    static Registry registry;
    return registry;
  }

  bool Add(std::string_view name, EvictionPolicyFactory factory) {
    MutexLock lock(mutex_);
    for (const Entry& entry : entries_) {
      if (entry.name == name) return false;
    }
    entries_.push_back({std::string(name), std::move(factory)});
    return true;
  }

  // Empty if there is none of that name. A copy: it is called without the lock.
  EvictionPolicyFactory Find(std::string_view name) {
    MutexLock lock(mutex_);
    for (const Entry& entry : entries_) {
      if (entry.name == name) return entry.factory;
    }
    return {};
  }

  std::vector<std::string> Names() {
    MutexLock lock(mutex_);
    std::vector<std::string> names;
    for (const Entry& entry : entries_) names.push_back(entry.name);
    return names;
  }

 private:
  struct Entry {
    std::string name;
    EvictionPolicyFactory factory;
  };
  Mutex mutex_;
  std::vector<Entry> entries_ TERRACE_GUARDED_BY(mutex_) = {
      {"lru", FactoryOf<LruPolicy>()},
      {"arc", FactoryOf<ArcPolicy>()},
      {"s3fifo", FactoryOf<S3FifoPolicy>()},
      {"sieve", FactoryOf<SievePolicy>()},
  };
};

std::string QuotedNames() {
  std::string list;
  for (const std::string& name : EvictionPolicyNames()) {
    if (!list.empty()) list += ", ";
    list += '"' + name + '"';
  }
  return list;
}

}  // namespace

Result<void> RegisterEvictionPolicy(std::string_view name, EvictionPolicyFactory factory) {
  const std::string attempt = "register eviction policy \"" + std::string(name) + "\": ";
  if (name.empty()) return Error{ErrorCode::kInvalidArgument, attempt + "it has no name"};
  if (!factory) return Error{ErrorCode::kInvalidArgument, attempt + "it has no factory"};
  if (!Registry::Instance().Add(name, std::move(factory))) {
    return Error{ErrorCode::kInvalidArgument, attempt + "there is one of that name already"};
  }
  return {};
}

std::vector<std::string> EvictionPolicyNames() { return Registry::Instance().Names(); }

Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name,
                                                           std::uint32_t slot_count) {
  const std::string attempt = "make eviction policy \"" + std::string(name) + "\": ";
  const EvictionPolicyFactory factory = Registry::Instance().Find(name);
  if (!factory) {
    return Error{ErrorCode::kInvalidArgument, attempt + "there are " + QuotedNames()};
  }
  auto policy = factory(slot_count);
  if (policy == nullptr) {
    return Error{ErrorCode::kInvalidArgument, attempt + "its factory returned nothing"};
  }
  return policy;
}

}  // namespace terrace
