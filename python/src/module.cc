// terrace_kv._core: what Python sees of the library. _core.pyi describes it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "convert.h"
#include "py_manager.h"
#include "py_tier.h"
#include "stats_feed.h"
#include "terrace/block_copier.h"
#include "terrace/cache_identity.h"
#include "terrace/host_memory.h"
#include "terrace/node.h"
#include "terrace/node_config.h"
#include "terrace/version.h"

namespace terrace_kv {
namespace {

using terrace::BlockCopier;
using terrace::BlockJob;
using terrace::CacheIdentity;
using terrace::HostMemory;
using terrace::HostSharing;
using terrace::JobId;
using terrace::NodeConfig;
using terrace::SlotId;
using terrace::TierConfig;

// What a Py_buffer of the memory points to.
struct Shape {
  Py_ssize_t shape[2];
  Py_ssize_t strides[2];
};

// memoryview(memory): rows of bytes, writable.
int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
  if (!nb::inst_ready(self)) {
    PyErr_SetString(PyExc_BufferError, "this host memory was not made by create() or share()");
    return -1;
  }
  const terrace::HostSlots slots = nb::inst_ptr<HostMemory>(nb::handle(self))->slots();
  auto* shape = new Shape{
      {static_cast<Py_ssize_t>(slots.slot_count), static_cast<Py_ssize_t>(slots.stride_bytes)},
      {static_cast<Py_ssize_t>(slots.stride_bytes), 1}};
  static char format[] = "b";
  *view = Py_buffer{};
  view->buf = slots.base;
  view->obj = Py_NewRef(self);
  view->len = static_cast<Py_ssize_t>(slots.slot_count * slots.stride_bytes);
  view->itemsize = 1;
  view->readonly = 0;
  view->ndim = 2;
  view->format = (flags & PyBUF_FORMAT) == PyBUF_FORMAT ? format : nullptr;
  view->shape = shape->shape;
  view->strides = shape->strides;
  view->internal = shape;
  return 0;
}

void ReleaseBuffer(PyObject* /*self*/, Py_buffer* view) {
  delete static_cast<Shape*>(view->internal);
}

PyType_Slot memory_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(GetBuffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(ReleaseBuffer)},
    {0, nullptr},
};

CacheIdentity IdentityOf(nb::kwargs fields) {
  terrace::CacheIdentityFields out;
  for (auto [key, value] : fields) {
    const auto name = nb::cast<std::string>(key);
    const auto text = [&](std::string& field) { field = nb::cast<std::string>(value); };
    const auto number = [&](auto& field) {
      field = nb::cast<std::remove_reference_t<decltype(field)>>(value);
    };
    if (name == "model") {
      text(out.model);
    } else if (name == "revision") {
      text(out.revision);
    } else if (name == "dtype") {
      text(out.dtype);
    } else if (name == "layout") {
      text(out.layout);
    } else if (name == "layout_version") {
      number(out.layout_version);
    } else if (name == "tokens_per_chunk") {
      number(out.tokens_per_chunk);
    } else if (name == "chunk_bytes") {
      number(out.chunk_bytes);
    } else if (name == "shard_index") {
      number(out.shard_index);
    } else if (name == "shard_count") {
      number(out.shard_count);
    } else if (name == "engine") {
      text(out.engine);
    } else {
      throw nb::type_error(("an identity has no field '" + name + "'").c_str());
    }
  }
  return ValueOrRaise(CacheIdentity::Create(std::move(out)));
}

HostSharing SharingOf(std::string name, std::uint32_t rank_count, std::uint32_t process_count,
                      std::optional<std::uint32_t> rank, double timeout_s, std::string instance) {
  return {std::move(name),         rank_count,         process_count, rank,
          Milliseconds(timeout_s), std::move(instance)};
}

// A node, and what of it Python must not lose before it ends.
struct PyNode {
  std::shared_ptr<terrace::Node> node;
  std::shared_ptr<PyManager> manager;
};

struct PyManagerLock {
  std::shared_ptr<PyManager> manager;
};

// `tiers`: (place among all tiers, adapter) of those in Python, in order of place.
PyNode MakeNode(const std::string& config_json, const CacheIdentity& identity,
                std::shared_ptr<HostMemory> memory,
                const std::vector<std::pair<std::size_t, nb::object>>& tiers, nb::object answers,
                nb::object make_context) {
  NodeConfig config = ValueOrRaise(terrace::ParseNodeConfig(config_json));
  auto book = std::make_shared<RequestBook>(std::move(make_context));
  for (const auto& [place, adapter] : tiers) {
    if (place > config.secondary_tiers.size()) {
      throw nb::value_error("a tier's place is behind those of the other tiers");
    }
    auto made = std::make_shared<std::unique_ptr<terrace::SecondaryTier>>(
        std::make_unique<PyTier>(adapter, book));
    TierConfig tier;
    tier.type = TierConfig::Type::kCustom;
    tier.custom.type = std::string((*made)->type());
    tier.custom.load_source = (*made)->load_source();
    tier.backpressure = AttributeOf<std::string>(adapter, "backpressure");
    tier.backpressure_ms_per_mib = AttributeOf<std::uint32_t>(adapter, "backpressure_ms_per_mib");
    tier.custom.make = [made](terrace::TierHost&) {
      return terrace::Result<std::unique_ptr<terrace::SecondaryTier>>(std::move(*made));
    };
    config.secondary_tiers.insert(
        config.secondary_tiers.begin() + static_cast<std::ptrdiff_t>(place), std::move(tier));
    book->any_tier = true;
  }
  auto made = [&] {
    const WithoutInterpreter released;
    return terrace::Node::Create(config, identity, std::move(memory));
  }();
  PyNode node;
  node.node = std::shared_ptr<terrace::Node>(ValueOrRaise(std::move(made)).release(),
                                             [forks = Forks()](terrace::Node* dying) {
                                               // Its threads are another process's.
                                               if (Forks() != forks) return;
                                               // Its threads may be waiting for the interpreter.
                                               if (nb::is_alive()) {
                                                 const WithoutInterpreter released;
                                                 delete dying;
                                               }
                                             });
  const PyManager::Options options{config.enable_kv_events, config.store_threshold};
  node.manager =
      std::make_shared<PyManager>(node.node, book, nb::cast<nb::sequence>(answers), options);
  return node;
}

using PyTensor = std::tuple<std::uintptr_t, std::size_t, std::size_t, std::size_t>;
using PyGroup = std::vector<std::pair<std::uint32_t, std::size_t>>;

std::shared_ptr<BlockCopier> MakeCopier(const std::shared_ptr<HostMemory>& memory,
                                        std::uint32_t rank, const std::vector<PyTensor>& tensors,
                                        const std::vector<PyGroup>& groups,
                                        std::uint32_t blocks_per_chunk, std::uint32_t threads,
                                        int device) {
  if (rank >= memory->rank_count()) throw nb::value_error("the memory has no such rank");
  terrace::BlockCopierOptions options;
  for (const auto& [base, count, stride, page] : tensors) {
    options.tensors.push_back({reinterpret_cast<std::byte*>(base), count, stride, page});
  }
  for (const PyGroup& group : groups) {
    options.groups.emplace_back();
    for (const auto& [tensor, bytes] : group) options.groups.back().push_back({tensor, bytes});
  }
  options.blocks_per_chunk = blocks_per_chunk;
  options.threads = threads;
  options.device = device;
  auto created = [&] {
    const WithoutInterpreter released;
    return BlockCopier::Create(memory->rank_slots(rank), std::move(options));
  }();
  auto made = ValueOrRaise(std::move(created));
  return std::shared_ptr<BlockCopier>(made.release(), [memory](BlockCopier* dying) {
    if (nb::is_alive() && PyGILState_Check() != 0) {
      const WithoutInterpreter released;
      delete dying;
    } else {
      delete dying;
    }
  });
}

// A contiguous buffer of 4-byte integers, as numpy's int32.
std::vector<std::uint32_t> Integers(nb::handle object) {
  std::vector<std::uint32_t> out;
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0) {
    const bool good = view.itemsize == 4 && view.format != nullptr &&
                      (view.format[0] == 'i' || view.format[0] == 'I' || view.format[0] == 'l');
    if (good) {
      const auto* data = static_cast<const std::uint32_t*>(view.buf);
      out.assign(data, data + view.len / 4);
    }
    PyBuffer_Release(&view);
    if (!good) throw nb::type_error("integers must be int32");
    return out;
  }
  PyErr_Clear();
  return nb::cast<std::vector<std::uint32_t>>(object);
}

void SubmitJob(BlockCopier& copier, std::uint64_t job_id, bool is_store, nb::handle block_ids,
               const std::vector<std::uint32_t>& group_sizes,
               const std::vector<std::uint32_t>& first_blocks, nb::handle slot_ids,
               std::uint32_t blocks_per_chunk, bool urgent, std::uintptr_t after_event) {
  const std::vector<std::uint32_t> blocks = Integers(block_ids);
  const std::vector<std::uint32_t> slots = Integers(slot_ids);
  if (blocks_per_chunk == 0) throw nb::value_error("blocks_per_chunk is 0");
  if (group_sizes.size() != first_blocks.size()) {
    throw nb::value_error("group_sizes and first_blocks are of different lengths");
  }
  BlockJob job;
  job.id = JobId(job_id);
  job.direction = is_store ? BlockJob::Direction::kStore : BlockJob::Direction::kLoad;
  job.urgent = urgent;
  job.after_event = after_event;
  std::size_t block = 0;
  std::size_t slot = 0;
  for (std::size_t g = 0; g < group_sizes.size(); ++g) {
    terrace::GroupBlocks group;
    if (group_sizes[g] > 0) {
      group.first_in_chunk = first_blocks[g] % blocks_per_chunk;
      const std::size_t slot_count =
          (group.first_in_chunk + std::size_t{group_sizes[g]} + blocks_per_chunk - 1) /
          blocks_per_chunk;
      if (block + group_sizes[g] > blocks.size() || slot + slot_count > slots.size()) {
        throw nb::value_error("the groups have more blocks or chunks than the job");
      }
      group.blocks.assign(blocks.begin() + static_cast<std::ptrdiff_t>(block),
                          blocks.begin() + static_cast<std::ptrdiff_t>(block + group_sizes[g]));
      for (std::size_t i = 0; i < slot_count; ++i) group.slots.emplace_back(slots[slot + i]);
      block += group_sizes[g];
      slot += slot_count;
    }
    job.groups.push_back(std::move(group));
  }
  if (block != blocks.size() || slot != slots.size()) {
    throw nb::value_error("the groups have fewer blocks or chunks than the job");
  }
  const auto done = [&] {
    const WithoutInterpreter released;
    return copier.Submit(std::move(job));
  }();
  OkOrRaise(done);
}

void BindMemory(nb::module_& m) {
  nb::class_<CacheIdentity>(m, "CacheIdentity")
      .def("__init__", [](CacheIdentity* self,
                          nb::kwargs fields) { new (self) CacheIdentity(IdentityOf(fields)); })
      .def_prop_ro("hex", &CacheIdentity::ToHex)
      .def_prop_ro("model", [](const CacheIdentity& i) { return i.fields().model; })
      .def_prop_ro("chunk_bytes", [](const CacheIdentity& i) { return i.fields().chunk_bytes; });

  using Shared = std::shared_ptr<HostMemory>;
  nb::class_<HostMemory>(m, "HostMemory", nb::type_slots(memory_slots))
      .def_static("create",
                  [](const std::string& config, const CacheIdentity& identity) {
                    const NodeConfig parsed = ValueOrRaise(terrace::ParseNodeConfig(config));
                    return Shared(ValueOrRaise(HostMemory::Create(parsed, identity)));
                  })
      .def_static(
          "share",
          [](const std::string& config, const CacheIdentity& identity, std::string name,
             std::uint32_t rank_count, std::uint32_t process_count,
             std::optional<std::uint32_t> rank, double timeout_s, bool create,
             std::string instance) {
            const NodeConfig parsed = ValueOrRaise(terrace::ParseNodeConfig(config));
            const HostSharing sharing = SharingOf(std::move(name), rank_count, process_count, rank,
                                                  timeout_s, std::move(instance));
            auto made = [&] {
              const WithoutInterpreter released;
              return create ? HostMemory::CreateShared(parsed, identity, sharing)
                            : HostMemory::Join(parsed, identity, sharing);
            }();
            return Shared(ValueOrRaise(std::move(made)));
          },
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
          nb::arg(), nb::arg("instance") = "")
      .def("await_all",
           [](HostMemory& memory) {
             auto done = [&] {
               const WithoutInterpreter released;
               return memory.AwaitAll();
             }();
             OkOrRaise(done);
           })
      .def_prop_ro("slot_count", [](HostMemory& m) { return m.slots().slot_count; })
      .def_prop_ro("stride_bytes", [](HostMemory& m) { return m.slots().stride_bytes; })
      .def_prop_ro("chunk_bytes", [](HostMemory& m) { return m.slots().chunk_bytes; })
      .def_prop_ro("rank_count", [](HostMemory& m) { return m.rank_count(); })
      .def_prop_ro("address",
                   [](Shared& m) { return reinterpret_cast<std::uintptr_t>(m->slots().base); });
}

// Manager.lookup(key, request), which is called for each chunk: without nanobind's conversions.
PyObject* CallLookup(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_Format(PyExc_TypeError, "lookup() takes a key and a request, not %zd arguments", count);
    return nullptr;
  }
  if (!nb::inst_ready(self)) {
    PyErr_SetString(PyExc_TypeError, "this manager was not made by a node");
    return nullptr;
  }
  try {
    return nb::inst_ptr<PyManager>(self)->Lookup(arguments[0], arguments[1]).release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyMethodDef manager_methods[] = {
    {"lookup", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(CallLookup)),
     METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot manager_slots[] = {{Py_tp_methods, manager_methods}, {0, nullptr}};

void BindNode(nb::module_& m) {
  nb::class_<PyNode>(m, "Node")
      .def(
          "__init__",
          [](PyNode* self, const std::string& config, const CacheIdentity& identity,
             std::shared_ptr<HostMemory> memory,
             const std::vector<std::pair<std::size_t, nb::object>>& tiers, nb::object answers,
             nb::object make_context) {
            new (self) PyNode(MakeNode(config, identity, std::move(memory), tiers,
                                       std::move(answers), std::move(make_context)));
          },
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
      .def_ro("manager", &PyNode::manager)
      .def_prop_ro("metrics_address", [](PyNode& n) { return n.node->metrics_address(); })
      .def("wait_for_progress", [](PyNode& n, double timeout_s) {
        const WithoutInterpreter released;
        return n.node->WaitForProgress(Milliseconds(timeout_s));
      });

  nb::class_<PyManagerLock>(m, "ManagerLock")
      .def("__enter__",
           [](nb::handle self) {
             nb::cast<PyManagerLock&>(self).manager->Lock();
             return nb::borrow(self);
           })
      .def(
          "__exit__",
          [](PyManagerLock& lock, nb::handle, nb::handle, nb::handle) { lock.manager->Unlock(); },
          nb::arg().none(), nb::arg().none(), nb::arg().none())
      .def(
          "acquire",
          [](PyManagerLock& lock, bool blocking, double timeout) {
            if (!blocking) return lock.manager->TryLockFor(0);
            if (std::isnan(timeout)) throw nb::value_error("timeout is not a number");
            if (timeout >= 0) return lock.manager->TryLockFor(timeout);
            lock.manager->Lock();
            return true;
          },
          nb::arg("blocking") = true, nb::arg("timeout") = -1.0)
      .def("release", [](PyManagerLock& lock) { lock.manager->Unlock(); });

  nb::class_<PyManager>(m, "Manager", nb::type_slots(manager_slots))
      .def_prop_ro("lock",
                   [](std::shared_ptr<PyManager> self) { return PyManagerLock{std::move(self)}; })
      .def("holds_lock", &PyManager::HoldsLock)
      .def("on_new_request", &PyManager::OnNewRequest, nb::arg(), nb::arg() = ~std::uint32_t{0},
           nb::arg().none() = nb::none())
      .def("get_load_source", &PyManager::GetLoadSource)
      .def("prepare_load", &PyManager::PrepareLoad, nb::arg(), nb::arg(),
           nb::arg("ends").none() = nb::none(), nb::arg("packed") = false)
      .def("complete_load", &PyManager::CompleteLoad)
      .def("touch", &PyManager::Touch)
      .def("prepare_store", &PyManager::PrepareStore, nb::arg(), nb::arg(),
           nb::arg("is_sequence") = true, nb::arg("ends").none() = nb::none(),
           nb::arg("packed") = false)
      .def("complete_store", &PyManager::CompleteStore, nb::arg(), nb::arg(),
           nb::arg("success") = true)
      .def("on_request_finished", &PyManager::OnRequestFinished)
      .def("on_schedule_end", &PyManager::OnScheduleEnd, nb::arg().none() = nb::none())
      .def("has_pending_work", &PyManager::HasPendingWork)
      .def("take_events", &PyManager::TakeEvents)
      .def("ready_chunks", &PyManager::ReadyChunks)
      .def("reset_cache", &PyManager::ResetCache)
      .def("on_reset_flushed", &PyManager::OnResetFlushed)
      .def("stats", &PyManager::Stats)
      .def("drain", &PyManager::Drain)
      .def("shutdown", &PyManager::Shutdown);

  nb::class_<StatsFeed>(m, "StatsFeed")
      .def("__init__",
           [](StatsFeed* self, std::shared_ptr<PyManager> manager, nb::object counter,
              nb::object gauge, nb::object histogram, nb::dict metrics) {
             new (self) StatsFeed(std::move(manager), {std::move(counter), std::move(gauge),
                                                       std::move(histogram), std::move(metrics)});
           })
      .def("take", &StatsFeed::Take);

  nb::class_<PyServer>(m, "TierServer")
      .def("begin_request", &PyServer::BeginRequest)
      .def("lookup", &PyServer::Lookup)
      .def("create_store_job", &PyServer::CreateStoreJob)
      .def("finish_request", &PyServer::FinishRequest)
      .def("should_yield", &PyServer::ShouldYield);
}

void BindCopier(nb::module_& m) {
  nb::class_<BlockCopier>(m, "BlockCopier")
      .def_static("create", &MakeCopier, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
                  nb::arg(), nb::arg("device") = -1)
      .def("submit", &SubmitJob, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg("after_event") = 0)
      .def("take_finished",
           [](BlockCopier& copier) {
             nb::list results;
             for (const terrace::BlockResult& one : copier.TakeFinished()) {
               const bool failed = one.outcome == terrace::CopyOutcome::kFailed;
               const nb::object error = failed ? nb::cast(one.error) : nb::none();
               results.append(nb::make_tuple(one.id.value, one.bytes, one.seconds, error));
             }
             return results;
           })
      .def("wait_for",
           [](BlockCopier& copier, const std::vector<std::uint64_t>& jobs, double timeout_s) {
             std::vector<JobId> ids;
             for (const std::uint64_t job : jobs) ids.emplace_back(job);
             const WithoutInterpreter released;
             return copier.WaitFor(ids, Milliseconds(timeout_s));
           });
}

NB_MODULE(_core, m) {
  // An engine's objects live until the interpreter ends, and with them ours.
  nb::set_leak_warnings(false);
  m.attr("version") = std::string(terrace::Version());
  m.def("check_config",
        [](const std::string& json) { ValueOrRaise(terrace::ParseNodeConfig(json)); });
  m.def("cpu_bytes_to_use", [](const std::string& json) {
    return ValueOrRaise(terrace::ParseNodeConfig(json)).cpu_bytes_to_use;
  });
  m.def("config_schema", &terrace::NodeConfigSchema);
  BindMemory(m);
  BindNode(m);
  BindCopier(m);
}

}  // namespace
}  // namespace terrace_kv
