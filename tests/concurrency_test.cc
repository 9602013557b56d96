// Several callers at once, each with its own workspace and outputs.
#include <atomic>
#include <thread>
#include <vector>

#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::DecodeProblem;
using cases::DecodeResult;

std::vector<DecodeCase> concurrent_cases() {
  std::vector<DecodeCase> list;
  for (int64_t batch : {1, 3, 8}) {
    for (int32_t splits : {0, 3}) {
      DecodeCase c = small_case();
      c.requests = cases::make_requests(batch, 300, cases::Lengths::kVaried, static_cast<uint64_t>(batch));
      c.heads_q = 4 * batch;
      c.options.splits = splits;
      list.push_back(c);
    }
  }
  return list;
}

TEST(Concurrency, CallersDoNotDisturbEachOther) {
  constexpr int kRounds = 20;
  const std::vector<DecodeCase> list = concurrent_cases();
  for (const Target& target : all_targets()) {
    std::vector<DecodeProblem> problems;
    std::vector<DecodeResult> expected;
    for (const DecodeCase& c : list) {
      problems.emplace_back(c);
      expected.push_back(run(problems.back(), target.context()));
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (size_t i = 0; i < problems.size(); ++i) {
      callers.emplace_back([&, i] {
        Context context = target.context();
        for (int round = 0; round < kRounds; ++round) {
          context.threads = round % 4;  // callers may ask for different numbers of threads at the same time
          if (!problems[i].run(context).ok() || !(problems[i].result() == expected[i])) ++wrong;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(wrong, 0) << target.name;
  }
}

// vLLM #57388: two decode calls interleave, each with its own workspace, while others append and merge.
TEST(Concurrency, DifferentOperationsAtOnce) {
  DecodeProblem problem(small_case());
  const DecodeResult expected = run(problem, {});
  std::atomic<bool> stop{false};
  std::atomic<int> failed{0};
  std::thread appender([&] {
    std::vector<uint16_t> rows(64 * 72), cache(64 * 72);
    std::vector<int64_t> slots(64);
    for (int64_t i = 0; i < 64; ++i) slots[i] = 63 - i;
    AppendKvParams params;
    params.latent = {rows.data(), DType::kBFloat16, 2, {64, 64}, {72, 1}};
    params.rope = {rows.data() + 64, DType::kBFloat16, 2, {64, 8}, {72, 1}};
    params.slot_mapping = ConstTensorView::contiguous(slots.data(), DType::kInt64, {64});
    params.kv_cache = TensorView::contiguous(cache.data(), DType::kBFloat16, {4, 16, 72});
    while (!stop) failed += append_kv(params).ok() ? 0 : 1;
  });
  std::thread merger([&] {
    std::vector<float> out(64 * 16), lse(64);
    MergeStatesParams params;
    params.out_a = params.out_b = ConstTensorView::contiguous(out.data(), DType::kFloat32, {64, 1, 16});
    params.lse_a = params.lse_b = ConstTensorView::contiguous(lse.data(), DType::kFloat32, {1, 64});
    std::vector<float> merged(64 * 16);
    params.out = TensorView::contiguous(merged.data(), DType::kFloat32, {64, 1, 16});
    while (!stop) failed += merge_states(params).ok() ? 0 : 1;
  });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(expected, run(problem, {}));
  stop = true;
  appender.join();
  merger.join();
  EXPECT_EQ(failed, 0);
}

TEST(Concurrency, RegisteringWhileCallsRun) {
  class Idle : public Backend {
   public:
    explicit Idle(std::string name) : name_(std::move(name)) {}
    std::string_view name() const override { return name_; }
    DeviceType device_type() const override { return DeviceType::kCPU; }
    int priority() const override { return 1; }

   private:
    std::string name_;
  };
  DecodeProblem problem(small_case());
  const DecodeResult expected = run(problem, {});
  std::thread registrar([] {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(register_backend(std::make_unique<Idle>("idle" + std::to_string(i))).ok());
  });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(expected, run(problem, {}));
  registrar.join();
  EXPECT_NE(find_backend("idle49"), nullptr);
}

}  // namespace
}  // namespace flashmla::tests
