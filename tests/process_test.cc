// What a long-lived process needs: calls after fork(), no memory that grows, no allocation while a call runs.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "support.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// Counts every C++ allocation of the process, the library's included. Not inlined: where only the deletes are, g++
// takes `free` for the wrong partner of `new`.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::DecodeProblem;
using cases::DecodeResult;

DecodeCase split_case() {
  DecodeCase c = small_case();
  c.requests = requests_of({700, 3, 0, 150});
  c.heads_q = 16;
  c.options.splits = 4;
  return c;
}

// In a child: exit code 0 when `body` returns true.
template <class Body>
void expect_child(const Body& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a hang ends the child
    _exit(body() ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state)) << "the child ended by signal " << WTERMSIG(state);
  EXPECT_EQ(WEXITSTATUS(state), 0) << "the child's result was wrong";
}

TEST(Process, CallsWorkInParentAndChildOfFork) {
  for (const Target& target : host_targets()) {
    SCOPED_TRACE(target.name);
    DecodeProblem problem(split_case());
    Context context = target.context();
    context.threads = 3;
    const DecodeResult expected = run(problem, context);  // threads of the pool exist now
    const auto right = [&] { return problem.run(context).ok() && problem.result() == expected; };
    expect_child([&] { return right() && right(); });
    EXPECT_TRUE(right()) << "in the parent, afterwards";
    expect_child([&] {  // a grandchild as well
      const pid_t grandchild = fork();
      if (grandchild == 0) _exit(right() ? 0 : 1);
      int state = 0;
      return waitpid(grandchild, &state, 0) == grandchild && WIFEXITED(state) && WEXITSTATUS(state) == 0 && right();
    });
  }
}

// fork() while another thread is inside a call: the child must not wait for threads that it does not have.
TEST(Process, ForkDuringACall) {
  DecodeProblem busy(split_case());
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop) EXPECT_TRUE(busy.run({.threads = 3}).ok());
  });
  DecodeProblem problem(split_case());
  const DecodeResult expected = run(problem, {.threads = 3});
  for (int i = 0; i < 10; ++i) {
    expect_child([&] { return problem.run({.threads = 3}).ok() && problem.result() == expected; });
  }
  stop = true;
  caller.join();
}

// An OpenMP runtime binds the threads of its team, the calling one among them, to a processor each. Workers that
// inherited that would all share one.
TEST(Process, WorkersAreNotBoundToTheCallersProcessor) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "needs two processors: this process may use one";
  expect_child([&] {  // where no worker runs yet
    std::vector<int> processors;
    for (int p = 0; p < CPU_SETSIZE && processors.size() < 2; ++p) {
      if (CPU_ISSET(p, &allowed)) processors.push_back(p);
    }
    const auto bind = [](int processor) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(processor, &one);
      return sched_setaffinity(0, sizeof(one), &one) == 0;
    };
    std::atomic<bool> bound{false};
    std::atomic<bool> done{false};
    std::atomic<pid_t> other_thread{0};
    std::thread other([&] {
      other_thread = gettid();
      bound = bind(processors[1]);
      while (!done) usleep(1000);
    });
    while (!bound) usleep(1000);
    bool right = bind(processors[0]);
    run_workers(2, [](int32_t) {});
    int workers = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      const pid_t thread = std::stoi(task.path().filename().string());
      if (thread == getpid() || thread == other_thread) continue;
      cpu_set_t set;
      for (int wait = 0; wait < 1000; ++wait) {  // a worker widens its mask when it starts
        right = sched_getaffinity(thread, sizeof(set), &set) == 0 && right;
        if (CPU_COUNT(&set) == 2) break;
        usleep(1000);
      }
      right = right && CPU_COUNT(&set) == 2 && CPU_ISSET(processors[0], &set) && CPU_ISSET(processors[1], &set);
      ++workers;
    }
    done = true;
    other.join();
    return right && workers == 1;
  });
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// vllm-ascend #3774, FlashMLA's allocations inside calls: thousands of calls leave the memory as it was.
TEST(Process, TwoThousandCallsNeedNoMoreMemory) {
  DecodeCase c = split_case();
  c.requests = requests_of({150, 3, 0, 65});
  c.heads_q = 4;
  for (const Target& target : host_targets()) {
    DecodeProblem problem(c);
    const int64_t need =
        workspace_bytes(decode_shape(problem.params()).value(), problem.params().options, target.context()).value();
    const cases::Buffer workspace(need);
    const auto call = [&] { return decode(problem.params(), {workspace.data(), need}, target.context()).ok(); };
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(call());
    const int64_t before = resident_bytes();
    const int64_t allocated = allocations;
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(call());
    EXPECT_EQ(allocations - allocated, 0) << target.name << ": decode allocates";
    EXPECT_LT(resident_bytes() - before, 1 << 20) << target.name;
  }
}

TEST(Process, AppendAndMergeAllocateNothing) {
  for (const Target& target : all_backends()) {
    std::vector<uint16_t> rows(64 * 72), cache(64 * 72);
    std::vector<int64_t> slots(64);
    for (int64_t i = 0; i < 64; ++i) slots[i] = i;
    AppendKvParams append;
    append.latent = {rows.data(), DType::kBFloat16, 2, {64, 64}, {72, 1}};
    append.rope = {rows.data() + 64, DType::kBFloat16, 2, {64, 8}, {72, 1}};
    append.slot_mapping = ConstTensorView::contiguous(slots.data(), DType::kInt64, {64});
    append.kv_cache = TensorView::contiguous(cache.data(), DType::kBFloat16, {4, 16, 72});
    std::vector<float> out(64 * 16), lse(64);
    MergeStatesParams merge;
    merge.out_a = merge.out_b = ConstTensorView::contiguous(out.data(), DType::kFloat32, {64, 1, 16});
    merge.lse_a = merge.lse_b = ConstTensorView::contiguous(lse.data(), DType::kFloat32, {1, 64});
    merge.out = TensorView::contiguous(out.data(), DType::kFloat32, {64, 1, 16});
    ASSERT_TRUE(append_kv(append, target.context()).ok() && merge_states(merge, target.context()).ok());
    const int64_t allocated = allocations;
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(append_kv(append, target.context()).ok());
      ASSERT_TRUE(merge_states(merge, target.context()).ok());
    }
    EXPECT_EQ(allocations - allocated, 0) << target.name;
  }
}

}  // namespace
}  // namespace flashmla::tests
