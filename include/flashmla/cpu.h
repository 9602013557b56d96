// What the "cpu" back end sees of this machine, and its threads.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "flashmla/export.h"

namespace flashmla {

struct CpuInfo {
  std::string model;              // the processor's name
  int32_t threads = 1;            // default threads: affinity and cgroup quota (or FLASHMLA_NUM_THREADS)
  std::vector<std::string> isas;  // usable instruction sets, best first: "avx512_bf16", "avx512", "avx2", "scalar"
  int64_t l2_bytes = 0;           // of one core; 0 when unknown
  int64_t l3_bytes = 0;           // as one core sees it; 0 when unknown
};

FLASHMLA_API CpuInfo cpu_info();

// Calls task(context, worker) once for each worker 0 .. threads-1 on the library's own threads, worker 0 on the calling
// one, and returns when all have returned. For programs that want one set of threads beside the library's: it is
// rebuilt in a forked child and joined when the library unloads. Any number of callers at once: while another call
// holds the threads (or none can be started), this call runs all workers one after the other on its own thread. Tasks
// must therefore not wait for each other, and must not throw.
using WorkerTask = void (*)(void* context, int32_t worker);
FLASHMLA_API void run_workers(int32_t threads, WorkerTask task, void* context);

template <class Task>
void run_workers(int32_t threads, Task&& task) {
  run_workers(
      threads, [](void* context, int32_t worker) { (*static_cast<std::remove_reference_t<Task>*>(context))(worker); },
      &task);
}

}  // namespace flashmla
