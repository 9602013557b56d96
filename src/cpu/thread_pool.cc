// One pool of worker threads a process (flashmla/cpu.h, run_workers).
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "cpu/topology.h"
#include "flashmla/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flashmla {

namespace {

// Looks at the job number this often before a worker sleeps: a decode step of a model calls again within microseconds.
constexpr int kSpins = 4000;

// A worker that wakes on the processor of the thread it works for would take turns with it, and on a busy machine it
// may be milliseconds before the scheduler parts them: ask for any other of the processors that it may use. Measured: a
// call of 3.5 ms on two threads took 7 ms whenever another thread pool had run before it.
void leave_processor(int processor) {
  if (processor < 0 || sched_getcpu() != processor) return;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t others = allowed;
  CPU_CLR(processor, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return;
  sched_setaffinity(0, sizeof(allowed), &allowed);
}

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

class Pool {
 public:
  bool try_run(int32_t threads, WorkerTask task, void* context) {
    const std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy.owns_lock() || closed_) return false;
    grow(threads - 1);
    if (workers_.empty()) return false;
    task_ = task;
    context_ = context;
    next_.store(0, std::memory_order_relaxed);
    threads_ = threads;
    caller_processor_ = sched_getcpu();
    {
      const std::lock_guard lock(mutex_);
      const uint64_t job = job_.load(std::memory_order_relaxed) + 1;
      open_job_.store(job);
      job_.store(job, std::memory_order_release);
    }
    wake_.notify_all();
    take_workers();
    // Every worker number is taken: who has not come yet is not waited for. Either a worker sees that the job is
    // closed, or this thread sees it inside (both sequentially consistent).
    open_job_.store(0);
    for (int spin = 0; inside_.load() != 0; ++spin) {
      if (spin < kSpins)
        pause();
      else
        std::this_thread::yield();
    }
    return true;
  }

  void close() {
    const std::lock_guard busy(busy_);
    closed_ = true;
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

 private:
  // Starts workers until there are `count`; fewer when the system refuses. A worker may run wherever the process may,
  // also where the thread that starts it is bound to one processor.
  void grow(int32_t count) {
    if (static_cast<int32_t>(workers_.size()) >= count) return;
    cpu_set_t processors;
    const bool known = process_affinity(&processors);
    while (static_cast<int32_t>(workers_.size()) < count) {
      try {
        workers_.emplace_back([this, known, processors, seen = job_.load(std::memory_order_relaxed)] {
          if (known) sched_setaffinity(0, sizeof(processors), &processors);
          serve(seen);
        });
      } catch (const std::exception&) {  // no thread or no memory for one: go on with those there are
        return;
      }
    }
  }

  void serve(uint64_t seen) {
    for (;;) {
      for (int spin = 0; spin < kSpins && job_.load(std::memory_order_acquire) == seen; ++spin) pause();
      if (job_.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || job_.load(std::memory_order_acquire) != seen; });
        if (stop_) return;
      }
      seen = job_.load(std::memory_order_acquire);
      inside_.fetch_add(1);
      if (open_job_.load() == seen) {
        leave_processor(caller_processor_);
        take_workers();
      }
      inside_.fetch_sub(1);
    }
  }

  void take_workers() {
    for (int32_t w = next_.fetch_add(1, std::memory_order_relaxed); w < threads_;
         w = next_.fetch_add(1, std::memory_order_relaxed)) {
      task_(context_, w);
    }
  }

  std::mutex busy_;  // held by the caller whose job runs
  bool closed_ = false;
  std::vector<std::thread> workers_;

  std::mutex mutex_;  // guards sleeping
  std::condition_variable wake_;
  std::atomic<uint64_t> job_{0};
  bool stop_ = false;

  WorkerTask task_ = nullptr;
  void* context_ = nullptr;
  int32_t threads_ = 0;
  int caller_processor_ = -1;
  std::atomic<int32_t> next_{0};
  std::atomic<uint64_t> open_job_{0};  // that may still be joined; 0: none
  std::atomic<int32_t> inside_{0};     // workers that look at the job or work on it
};

std::atomic<Pool*> current_pool{nullptr};

// In the child of a fork the workers are gone and the locks may be held by threads that are gone: start afresh. The old
// pool's memory stays, it cannot be taken apart safely.
void forget_pool() { current_pool.store(nullptr, std::memory_order_relaxed); }

Pool& pool() {
  if (Pool* ready = current_pool.load(std::memory_order_acquire)) return *ready;
  static const bool handler_set = pthread_atfork(nullptr, nullptr, forget_pool) == 0;
  (void)handler_set;
  auto* fresh = new Pool;
  Pool* expected = nullptr;
  if (current_pool.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *expected;
}

// Runs when the library is unloaded or the process exits: a worker must not outlive the code that it runs.
__attribute__((destructor)) void close_pool() {
  if (Pool* last = current_pool.load(std::memory_order_acquire)) last->close();
}

}  // namespace

void run_workers(int32_t threads, WorkerTask task, void* context) {
  if (threads > 1 && pool().try_run(threads, task, context)) return;
  for (int32_t worker = 0; worker < threads; ++worker) task(context, worker);
}

}  // namespace flashmla
