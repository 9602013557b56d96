#include "api/registry.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "core/guard.h"
#include "core/text.h"
#include "cpu/backend.h"
#ifdef FLASHMLA_HAS_CUDA
#include "cuda/backend.h"
#endif
#include "reference/backend.h"

namespace flashmla {

namespace {

using BackendList = std::vector<const Backend*>;

struct Registry {
  std::mutex mutex;  // held by writers only: readers take the published list
  std::atomic<const BackendList*> published{nullptr};
  std::vector<std::unique_ptr<const BackendList>> lists;  // all that ever were published

  Registry() {
    add(make_reference_backend());
    add(make_cpu_backend());
#ifdef FLASHMLA_HAS_CUDA
    add(make_cuda_backend());
#endif
  }

  // Lists and back ends live until the process ends: a reader may hold either at any time.
  void add(std::unique_ptr<Backend> backend) {
    auto list = std::make_unique<BackendList>();
    if (const BackendList* old = published.load(std::memory_order_acquire)) *list = *old;
    list->push_back(backend.get());
    std::ranges::stable_sort(*list, std::ranges::greater{}, [](const Backend* b) { return b->priority(); });
    lists.push_back(std::move(list));
    published.store(lists.back().get(), std::memory_order_release);
    backend.release();  // NOLINT(bugprone-unused-return-value): from here on the list leads to it
  }
};

Registry& registry() {
  static auto* instance = new Registry;  // never destroyed: calls may come from other threads during exit
  return *instance;
}

}  // namespace

const std::vector<const Backend*>& registered_backends() {
  return *registry().published.load(std::memory_order_acquire);
}

std::string_view device_name(DeviceType type) { return type == DeviceType::kCPU ? "CPU" : "CUDA"; }

Status no_backend_named(std::string_view name) {
  std::string names;
  for (const Backend* backend : registered_backends()) names += concat(names.empty() ? "" : ", ", backend->name());
  return {StatusCode::kNotFound, concat("backend: got '", name, "'; want one of: ", names)};
}

Status no_backend_for(DeviceType type) {
  return {StatusCode::kNotFound, concat("device: got ", device_name(type), ", for which this build has no back end")};
}

Status wrong_device(const Backend& backend, DeviceType type) {
  return invalid("backend", concat("'", backend.name(), "' for a call on ", device_name(type)),
                 concat("tensors on ", device_name(backend.device_type())));
}

Status register_backend(std::unique_ptr<Backend> backend) {
  return guarded([&]() -> Status {
    if (backend == nullptr || backend->name().empty()) {
      return invalid("backend", "none or one without a name", "a back end with a name of its own");
    }
    const std::lock_guard lock(registry().mutex);
    if (find_backend(backend->name()) != nullptr) {
      return invalid("backend", concat("'", backend->name(), "', which is registered already"), "a name of its own");
    }
    registry().add(std::move(backend));
    return {};
  });
}

std::vector<const Backend*> backends() { return registered_backends(); }

const Backend* find_backend(std::string_view name) {
  for (const Backend* backend : registered_backends()) {
    if (backend->name() == name) return backend;
  }
  return nullptr;
}

}  // namespace flashmla
