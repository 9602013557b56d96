// Worker threads of the "cpu" back end. One pool a process: rebuilt in a forked child, joined when the library unloads.
#pragma once

#include <cstdint>

namespace flashmla {

// Calls task(context, worker) once for each worker 0 .. threads-1, worker 0 on the calling thread, and returns when all
// have returned. Any number of callers at once: while another call holds the workers (or none can be started), this
// call runs all workers one after the other on its own thread. Tasks must therefore not wait for each other.
using WorkerTask = void (*)(void* context, int32_t worker);
void run_workers(int32_t threads, WorkerTask task, void* context);

template <class Task>
void run_workers(int32_t threads, Task&& task) {
  run_workers(
      threads, [](void* context, int32_t worker) { (*static_cast<Task*>(context))(worker); }, &task);
}

}  // namespace flashmla
