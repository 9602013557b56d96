// Products cut into tasks that threads take in turn. Which thread computes a row, and with which others, changes no
// result: every (row, token) is summed in one order (linear_tile.h).
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "flashmla/cpu.h"
#include "runner/linear/linear_kernel.h"

namespace flashmla::runner {

namespace {

constexpr int64_t kLine = 64;

// Below this many weight bytes or multiply-adds, waking another thread costs more than it saves
// (docs/kernels/cpu-linear.md).
constexpr int64_t kAloneBytes = 128 << 10;
constexpr int64_t kAloneMultiplyAdds = 512 << 10;
// Weight bytes of one task with few tokens: a few microseconds of reading, long enough for the hardware to prefetch in.
constexpr int64_t kTaskBytes = 64 << 10;
// Tasks that each thread should find at least, so that the last ones end together.
constexpr int64_t kTasksAThread = 8;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

// One allocation, kept by its thread for the next call: a step of a model makes hundreds of calls of the same sizes.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }
  std::byte* at_least(int64_t bytes) {
    if (bytes > bytes_) {
      std::free(data_);
      data_ = nullptr;
      bytes_ = 0;
      data_ = static_cast<std::byte*>(std::aligned_alloc(kLine, static_cast<size_t>(round_up(bytes, kLine))));
      if (data_ == nullptr) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return data_;
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

struct Job {
  const Product* product = nullptr;
  WeightRows w;
  FewKernel few = nullptr;  // one of the two
  const ManyKernel* many = nullptr;
  int64_t packed_offset = 0;  // bytes in the scratch; with `many`
  int64_t pack_tiles = 0;     // to be packed; 0 when an earlier job has the same activations
  int64_t task_rows = 0;
  int64_t first_task = 0;  // of the multiplying tasks of all jobs
  int64_t first_pack = 0;  // of the packing tasks
};

struct Plan {
  std::vector<Job> jobs;
  int64_t tasks = 0;
  int64_t packs = 0;
  int64_t packed_bytes = 0;
  int32_t threads = 1;
};

bool same_activations(const Job& a, const Job& b) {
  return a.many != nullptr && b.many != nullptr && a.many->pack == b.many->pack && a.product->x == b.product->x &&
         a.product->x_stride == b.product->x_stride && a.product->tokens == b.product->tokens && a.w.cols == b.w.cols;
}

void choose_kernel(const LinearKernel& kernel, Job& job) {
  const auto type = static_cast<size_t>(job.product->w->type);
  const bool few = job.product->tokens <= kFewTokens;
  if (few && kernel.few[type] != nullptr)
    job.few = kernel.few[type];
  else if (few && kernel.exact[type].pack != nullptr)
    job.many = &kernel.exact[type];
  else
    job.many = &kernel.many[type];
}

void plan_packing(Plan& plan, Job& job) {
  job.first_pack = plan.packs;
  if (job.many == nullptr) return;
  if (!plan.jobs.empty() && same_activations(plan.jobs.back(), job)) {  // gate and up of one expert
    job.packed_offset = plan.jobs.back().packed_offset;
    return;
  }
  const int64_t tokens = job.product->tokens;
  job.packed_offset = plan.packed_bytes;
  job.pack_tiles = ceil_div(tokens, job.many->tile_tokens);
  plan.packs += job.pack_tiles;
  plan.packed_bytes += round_up(job.many->packed_bytes(tokens, job.w.cols), kLine);
}

Plan make_plan(const LinearKernel& kernel, const Product* products, int64_t count, int32_t threads) {
  Plan plan;
  int64_t bytes = 0;
  int64_t multiply_adds = 0;
  int64_t rows = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Product& product = products[i];
    const Matrix& w = *product.w;
    if (product.tokens <= 0 || w.rows <= 0) continue;
    Job job;
    job.product = &product;
    job.w = {w.data, w.type == WeightType::kInt8 ? w.row_scale : nullptr, w.rows, w.cols};
    choose_kernel(kernel, job);
    plan_packing(plan, job);
    plan.jobs.push_back(job);
    bytes += w.rows * w.cols * element_bytes(w.type);
    multiply_adds += w.rows * w.cols * product.tokens;
    rows += w.rows;
  }
  plan.threads = bytes < kAloneBytes && multiply_adds < kAloneMultiplyAdds ? 1 : threads;
  for (Job& job : plan.jobs) {
    const int64_t row_bytes = std::max<int64_t>(job.w.cols * element_bytes(job.product->w->type), 1);
    const int64_t share = rows / (plan.threads * kTasksAThread);
    const int64_t most = job.many != nullptr ? kPanelRows : std::max(kTileRows, kTaskBytes / row_bytes);
    job.task_rows = plan.threads == 1 && job.few != nullptr
                        ? round_up(job.product->w->rows, kTileRows)
                        : round_up(std::clamp(share, kTileRows, std::max(most, kTileRows)), kTileRows);
    if (job.many != nullptr) job.task_rows = std::min(job.task_rows, kPanelRows);
    job.first_task = plan.tasks;
    plan.tasks += ceil_div(job.product->w->rows, job.task_rows);
  }
  return plan;
}

void run_task(const Plan& plan, int64_t task, const std::byte* packed, std::byte* panel) {
  const auto after = std::upper_bound(plan.jobs.begin(), plan.jobs.end(), task,
                                      [](int64_t t, const Job& job) { return t < job.first_task; });
  const Job& job = *(after - 1);
  const Product& product = *job.product;
  const int64_t first = (task - job.first_task) * job.task_rows;
  const int64_t last = std::min(first + job.task_rows, product.w->rows);
  if (job.few != nullptr) {
    job.few(job.w, first, last, product.x, product.x_stride, product.tokens, product.y, product.y_stride);
  } else {
    job.many->multiply(job.w, first, last, packed + job.packed_offset, product.tokens, product.y, product.y_stride,
                       panel);
  }
}

void run_pack(const Plan& plan, int64_t task, std::byte* packed) {
  const auto after = std::upper_bound(plan.jobs.begin(), plan.jobs.end(), task,
                                      [](int64_t t, const Job& job) { return t < job.first_pack; });
  const Job& job = *(after - 1);
  job.many->pack(job.product->x, job.product->x_stride, job.product->tokens, job.w.cols, task - job.first_pack,
                 packed + job.packed_offset);
}

// Calls work(task, worker) once for each task. Each worker goes through its own share in order, since what a task reads
// follows what the one before has read, then helps with the others'.
template <class Work>
void run_tasks(int64_t tasks, int32_t threads, const Work& work) {
  const auto workers = static_cast<int32_t>(std::min<int64_t>(threads, tasks));
  if (workers <= 1) {
    for (int64_t task = 0; task < tasks; ++task) work(task, 0);
    return;
  }
  struct alignas(kLine) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Range> ranges(static_cast<size_t>(workers));
  for (int64_t i = 0; i < workers; ++i) {
    ranges[static_cast<size_t>(i)].next = tasks * i / workers;
    ranges[static_cast<size_t>(i)].end = tasks * (i + 1) / workers;
  }
  run_workers(workers, [&](int32_t worker) {
    for (int32_t i = 0; i < workers; ++i) {
      Range& range = ranges[static_cast<size_t>((worker + i) % workers)];
      for (int64_t task = range.next++; task < range.end; task = range.next++) work(task, worker);
    }
  });
}

int32_t default_threads() {
  static const int32_t threads = std::max(cpu_info().threads, 1);
  return threads;
}

}  // namespace

void multiply_all_with(const LinearKernel& kernel, const Product* products, int64_t count, int32_t threads) {
  const Plan plan = make_plan(kernel, products, count, threads > 0 ? threads : default_threads());
  thread_local Scratch scratch;
  const int64_t panels = plan.packed_bytes > 0 ? plan.threads * kPanelBytes : 0;
  std::byte* packed = scratch.at_least(plan.packed_bytes + panels);
  std::byte* panel = packed + plan.packed_bytes;
  run_tasks(plan.packs, plan.threads, [&](int64_t task, int32_t) { run_pack(plan, task, packed); });
  run_tasks(plan.tasks, plan.threads,
            [&](int64_t task, int32_t worker) { run_task(plan, task, packed, panel + worker * kPanelBytes); });
}

void multiply_all(const Product* products, int64_t count, int32_t threads) {
  multiply_all_with(default_linear_kernel(), products, count, threads);
}

void multiply(const Matrix& w, const float* x, int64_t x_stride, int64_t tokens, float* y, int64_t y_stride,
              int32_t threads) {
  const Product product = {&w, x, x_stride, tokens, y, y_stride};
  multiply_all(&product, 1, threads);
}

}  // namespace flashmla::runner
