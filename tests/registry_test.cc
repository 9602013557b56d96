// A back end that the library knows nothing of: registered here, chosen by priority, free to refuse.
#include "support.h"

namespace flashmla::tests {
namespace {

// Takes decode calls of exactly this many heads, so that other tests of the process never meet it.
constexpr int64_t kItsHeads = 7777;
constexpr float kItsLse = 42.0f;

class TestBackend : public Backend {
 public:
  TestBackend(std::string name, int priority) : name_(std::move(name)), priority_(priority) {}
  std::string_view name() const override { return name_; }
  DeviceType device_type() const override { return DeviceType::kCPU; }
  int priority() const override { return priority_; }
  Result<KernelChoice> choose_decode(const DecodeShape& shape, const DecodeOptions&, const Context&) const override {
    if (shape.heads_q != kItsHeads) return Status{StatusCode::kUnsupported, name_ + ": takes 7777 heads only"};
    return KernelChoice{name_, "constant", "because there are 7777 heads"};
  }
  Status decode(const DecodeParams& params, const DecodeShape&, Workspace, const Context&) const override {
    *static_cast<float*>(params.lse.data) = kItsLse;
    return {};
  }

 private:
  std::string name_;
  int priority_;
};

// Registered once in this process, whichever test comes first.
void register_test_backend() {
  static const Status status = register_backend(std::make_unique<TestBackend>("test", 1000));
  ASSERT_TRUE(status.ok()) << status.text();
}

DecodeShape shape_of(int64_t heads) {
  return {.batch = 1, .seq_q = 1, .total_q = 1, .heads_q = heads, .pages = 1, .table_width = 1};
}

TEST(Registry, ListsHighestPriorityFirst) {
  register_test_backend();
  const std::vector<const Backend*> list = backends();
  ASSERT_GE(list.size(), 3u);
  EXPECT_EQ(list.front()->name(), "test");
  EXPECT_EQ(list.back()->name(), "reference");
  for (size_t i = 1; i < list.size(); ++i) EXPECT_GE(list[i - 1]->priority(), list[i]->priority());
  EXPECT_EQ(find_backend("cpu")->priority(), 100);
  EXPECT_EQ(find_backend("nope"), nullptr);
}

TEST(Registry, PriorityDecidesAndTheReasonIsReadable) {
  register_test_backend();
  const KernelChoice its = explain_decode(shape_of(kItsHeads)).value();
  EXPECT_EQ(its.backend, "test");
  EXPECT_EQ(its.kernel, "constant");
  EXPECT_EQ(its.reason, "because there are 7777 heads");
  const KernelChoice named = explain_decode(shape_of(kItsHeads), {}, {.backend = "cpu"}).value();
  EXPECT_EQ(named.backend, "cpu");
}

TEST(Registry, RefusedCallsGoToTheNextBackend) {
  register_test_backend();
  const KernelChoice choice = explain_decode(shape_of(16)).value();
  EXPECT_EQ(choice.backend, "cpu");
  EXPECT_NE(choice.reason, "");
  // Asked for by name it answers itself, and nothing else computes the call.
  expect_error(explain_decode(shape_of(16), {}, {.backend = "test"}).status(), StatusCode::kUnsupported,
               {"7777 heads only"});
  cases::DecodeProblem problem(small_case());
  expect_error(problem.run({.backend = "test"}), StatusCode::kUnsupported, {"7777 heads only"});
  const cases::DecodeResult ours = run(problem, {});
  EXPECT_EQ(ours, run(problem, {.backend = "cpu"}));
}

TEST(Registry, RunsTheCallItself) {
  register_test_backend();
  cases::DecodeCase c = small_case();
  c.requests = requests_of({1});
  c.heads_q = kItsHeads;
  c.latent_dim = 8;
  c.rope_dim = 0;
  cases::DecodeProblem problem(c);
  ASSERT_TRUE(problem.run({}).ok());
  EXPECT_EQ(problem.result().lse[0], kItsLse);
}

TEST(Registry, OperationsThatItDoesNotOfferAreRefusedByName) {
  register_test_backend();
  std::vector<uint16_t> row(64);
  const int64_t slot = 0;
  AppendKvParams append;
  append.latent = ConstTensorView::contiguous(row.data(), DType::kBFloat16, {1, 64});
  append.slot_mapping = ConstTensorView::contiguous(&slot, DType::kInt64, {1});
  std::vector<uint16_t> cache(64);
  append.kv_cache = TensorView::contiguous(cache.data(), DType::kBFloat16, {1, 1, 64});
  expect_error(append_kv(append, {.backend = "test"}), StatusCode::kUnsupported,
               {"append_kv", "'test'", "does not offer it"});
  const Status ours = append_kv(append);  // falls through to the next back end
  EXPECT_TRUE(ours.ok()) << ours.text();
  float values[2] = {};
  MergeStatesParams merge;
  merge.out_a = merge.out_b = ConstTensorView::contiguous(values, DType::kFloat32, {1, 1, 1});
  merge.lse_a = merge.lse_b = ConstTensorView::contiguous(values, DType::kFloat32, {1, 1});
  merge.out = TensorView::contiguous(values + 1, DType::kFloat32, {1, 1, 1});
  expect_error(merge_states(merge, {.backend = "test"}), StatusCode::kUnsupported, {"merge_states", "'test'"});
}

TEST(Registry, RefusesNamesThatAreTakenOrMissing) {
  register_test_backend();
  expect_error(register_backend(nullptr), StatusCode::kInvalidArgument, {"backend", "none", "a name of its own"});
  expect_error(register_backend(std::make_unique<TestBackend>("", 1)), StatusCode::kInvalidArgument,
               {"without a name"});
  for (const char* name : {"test", "cpu", "reference"}) {
    expect_error(register_backend(std::make_unique<TestBackend>(name, 1)), StatusCode::kInvalidArgument,
                 {std::string(name) + "', which is registered already"});
  }
}

// FLASHMLA_BACKEND stands in for a name that the call does not give.
TEST(Registry, EnvironmentNamesTheDefault) {
  ASSERT_EQ(setenv("FLASHMLA_BACKEND", "reference", 1), 0);
  const KernelChoice choice = explain_decode(shape_of(16)).value();
  const KernelChoice named = explain_decode(shape_of(16), {}, {.backend = "cpu"}).value();
  ASSERT_EQ(setenv("FLASHMLA_BACKEND", "nope", 1), 0);
  const Status unknown = explain_decode(shape_of(16)).status();
  ASSERT_EQ(unsetenv("FLASHMLA_BACKEND"), 0);
  EXPECT_EQ(choice.backend, "reference");
  EXPECT_EQ(named.backend, "cpu");
  expect_error(unknown, StatusCode::kNotFound, {"'nope'", "reference"});
}

// A back end of priority 0, such as the oracle, runs only when it is named: a refusal never turns into a slow path.
TEST(Registry, PriorityZeroIsNeverAFallback) {
  class Slow : public TestBackend {
   public:
    Slow() : TestBackend("slow", 0) {}
    DeviceType device_type() const override { return DeviceType::kCUDA; }  // where nothing else answers
  };
  static const Status registered = register_backend(std::make_unique<Slow>());
  ASSERT_TRUE(registered.ok()) << registered.text();
  const Device cuda{DeviceType::kCUDA, 0};
  DecodeShape shape = shape_of(kItsHeads);
  shape.dtype = DType::kFloat32;  // which back end "cuda" refuses
  shape.kv_format = KvFormat::kFP32;
  const Status refused = explain_decode(shape, {}, {.device = cuda}).status();
  if (find_backend("cuda") == nullptr) {
    expect_error(refused, StatusCode::kNotFound, {"device: got CUDA", "no back end"});
  } else if (gpu_targets().empty()) {
    expect_error(refused, StatusCode::kNotFound, {"device: got CUDA", "want an NVIDIA GPU"});
  } else {
    expect_error(refused, StatusCode::kUnsupported, {"dtype: got fp32", "back end 'cuda'"});
  }
  EXPECT_TRUE(explain_decode(shape, {}, {.device = cuda, .backend = "slow"}).ok());
}

TEST(Registry, ReferenceSaysThatItIsTheOracle) {
  const KernelChoice named = explain_decode(shape_of(16), {}, {.backend = "reference"}).value();
  EXPECT_EQ(named.backend, "reference");
  EXPECT_NE(named.reason.find("oracle"), std::string::npos) << named.reason;
}

}  // namespace
}  // namespace flashmla::tests
