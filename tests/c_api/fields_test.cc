// Every field of the C structs reaches a back end as the matching C++ field.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "flashmla/flashmla.h"
#include "small_call.h"

namespace flashmla::c_api_test {
namespace {

// What the last call handed to the back end.
struct Record {
  DecodeParams decode{};
  DecodeShape shape{};
  DecodeOptions options{};
  PrefillParams prefill{};
  PrefillShape prefill_shape{};
  AppendKvParams append{};
  MergeStatesParams merge{};
  Workspace workspace{};
  Device device{};
  void* stream = nullptr;
  std::string isa;
  int32_t threads = 0;
};

class RecordingBackend final : public Backend {
 public:
  std::string_view name() const override { return "recording"; }
  DeviceType device_type() const override { return DeviceType::kCUDA; }
  int priority() const override { return -1; }
  Result<KernelChoice> choose_decode(const DecodeShape& shape, const DecodeOptions& options,
                                     const Context& context) const override {
    note(context);
    record.shape = shape;
    record.options = options;
    return KernelChoice{"a back end", "a kernel", "a reason"};
  }
  Status decode(const DecodeParams& params, const DecodeShape&, Workspace workspace,
                const Context& context) const override {
    note(context);
    record.decode = params;
    record.workspace = workspace;
    return {};
  }
  Result<KernelChoice> choose_prefill(const PrefillShape& shape, const Context& context) const override {
    note(context);
    record.prefill_shape = shape;
    return KernelChoice{"a back end", "a kernel", "a reason"};
  }
  Result<int64_t> prefill_workspace_bytes(const PrefillShape&, const Context&) const override { return int64_t{768}; }
  Status prefill(const PrefillParams& params, const PrefillShape&, Workspace workspace,
                 const Context& context) const override {
    note(context);
    record.prefill = params;
    record.workspace = workspace;
    return {};
  }
  Status append_kv(const AppendKvParams& params, const Context& context) const override {
    note(context);
    record.append = params;
    return {};
  }
  Status merge_states(const MergeStatesParams& params, const Context& context) const override {
    note(context);
    record.merge = params;
    return {};
  }

  static inline Record record;

 private:
  static void note(const Context& context) {
    record.device = context.device;
    record.stream = context.stream;
    record.isa = context.isa;
    record.threads = context.threads;
  }
};

class CApiFields : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(register_backend(std::make_unique<RecordingBackend>()).ok()); }

  CApiFields() {
    RecordingBackend::record = {};
    call.context.device_type = FLASHMLA_CUDA;
    call.context.device_index = 3;
    call.context.stream = &call;
    call.context.isa = "an isa";
    call.context.threads = 5;
  }

  void expect_context() const {
    EXPECT_EQ(record().device.type, DeviceType::kCUDA);
    EXPECT_EQ(record().device.index, 3);
    EXPECT_EQ(record().stream, &call);
    EXPECT_EQ(record().isa, "an isa");
    EXPECT_EQ(record().threads, 5);
  }

  static void expect_view(const ConstTensorView& got, const flashmla_tensor& want) {
    EXPECT_EQ(got.data, want.data);
    EXPECT_EQ(static_cast<int32_t>(got.dtype), want.dtype);
    ASSERT_EQ(got.ndim, want.ndim);
    for (int d = 0; d < got.ndim; ++d) {
      EXPECT_EQ(got.shape[static_cast<size_t>(d)], want.shape[d]);
      EXPECT_EQ(got.stride[static_cast<size_t>(d)], want.stride[d]);
    }
  }

  static const Record& record() { return RecordingBackend::record; }

  SmallCall call{"recording"};
};

TEST_F(CApiFields, Decode) {
  auto options = sized<flashmla_decode_options>();
  options.empty_lse = FLASHMLA_EMPTY_LSE_MINUS_INF;
  options.batch_invariant = 1;
  options.inputs_ready = 1;
  options.splits = 7;
  call.params.options = &options;
  call.params.causal = 1;
  call.params.kv_format = FLASHMLA_KV_FP32;
  // a call with every tensor: ragged queries in two parts
  const std::array<int32_t, 3> starts{0, 1, 2};
  call.params.q = tensor(call.q.data(), FLASHMLA_FLOAT32, {2, 2, SmallCall::kLatent});
  call.params.q_rope = tensor(call.cache.data(), FLASHMLA_FLOAT32, {2, 2, SmallCall::kRope});
  call.params.cu_seqlens_q = tensor(starts.data(), FLASHMLA_INT32, {3});
  call.params.out = tensor(call.out.data(), FLASHMLA_FLOAT32, {2, 2, SmallCall::kLatent});
  call.params.lse = tensor(call.lse.data(), FLASHMLA_FLOAT32, {2, 2});
  int32_t code = 0;
  call.params.status = tensor(&code, FLASHMLA_INT32, {1});
  const AlignedMemory workspace = aligned_memory(512);
  ASSERT_EQ(flashmla_decode(&call.params, workspace.get(), 512, &call.context), FLASHMLA_OK) << flashmla_last_error();

  expect_context();
  const DecodeParams& got = record().decode;
  expect_view(got.q, call.params.q);
  expect_view(got.q_rope, call.params.q_rope);
  expect_view(got.kv_cache, call.params.kv_cache);
  expect_view(got.page_table, call.params.page_table);
  expect_view(got.seq_lens, call.params.seq_lens);
  expect_view(got.cu_seqlens_q, call.params.cu_seqlens_q);
  expect_view(got.out, call.params.out);
  expect_view(got.lse, call.params.lse);
  expect_view(got.status, call.params.status);
  EXPECT_EQ(got.latent_dim, SmallCall::kLatent);
  EXPECT_EQ(got.softmax_scale, 0.25F);
  EXPECT_TRUE(got.causal);
  EXPECT_EQ(got.kv_format, KvFormat::kFP32);
  EXPECT_EQ(got.options.empty_lse, EmptyLse::kMinusInf);
  EXPECT_TRUE(got.options.batch_invariant);
  EXPECT_TRUE(got.options.inputs_ready);
  EXPECT_EQ(got.options.splits, 7);
  EXPECT_EQ(record().workspace.data, workspace.get());
  EXPECT_EQ(record().workspace.bytes, 512);
}

TEST_F(CApiFields, ShapeAndChoice) {
  auto options = sized<flashmla_decode_options>();
  options.splits = 9;
  auto shape = sized<flashmla_decode_shape>();
  shape.batch = 2;
  shape.seq_q = 3;
  shape.total_q = 3;
  shape.heads_q = 8;
  shape.heads_kv = 4;
  shape.latent_dim = 16;
  shape.rope_dim = 24;
  shape.page_size = 5;
  shape.pages = 6;
  shape.table_width = 7;
  shape.dtype = FLASHMLA_FLOAT16;
  shape.kv_format = FLASHMLA_KV_FP16;
  shape.ragged_q = 1;
  shape.causal = 1;
  auto choice = sized<flashmla_kernel_choice>();
  ASSERT_EQ(flashmla_explain_decode(&shape, &options, &call.context, &choice), FLASHMLA_OK) << flashmla_last_error();

  expect_context();
  const DecodeShape& got = record().shape;
  EXPECT_EQ(got.batch, 2);
  EXPECT_EQ(got.seq_q, 3);
  EXPECT_EQ(got.total_q, 3);
  EXPECT_EQ(got.heads_q, 8);
  EXPECT_EQ(got.heads_kv, 4);
  EXPECT_EQ(got.latent_dim, 16);
  EXPECT_EQ(got.rope_dim, 24);
  EXPECT_EQ(got.page_size, 5);
  EXPECT_EQ(got.pages, 6);
  EXPECT_EQ(got.table_width, 7);
  EXPECT_EQ(got.dtype, DType::kFloat16);
  EXPECT_EQ(got.kv_format, KvFormat::kFP16);
  EXPECT_TRUE(got.ragged_q);
  EXPECT_TRUE(got.causal);
  EXPECT_EQ(record().options.splits, 9);
  EXPECT_STREQ(choice.backend, "a back end");
  EXPECT_STREQ(choice.kernel, "a kernel");
  EXPECT_STREQ(choice.reason, "a reason");
}

TEST_F(CApiFields, Prefill) {
  const std::array<int32_t, 2> q_starts{0, 2};
  const std::array<int32_t, 2> k_starts{0, 3};
  auto params = sized<flashmla_prefill_params>();
  params.q = tensor(call.q.data(), FLASHMLA_FLOAT32, {2, 2, 24});
  params.k = tensor(call.cache.data(), FLASHMLA_FLOAT32, {3, 1, 24});
  params.v = tensor(call.cache.data() + 128, FLASHMLA_FLOAT32, {3, 1, 16});
  params.cu_seqlens_q = tensor(q_starts.data(), FLASHMLA_INT32, {2});
  params.cu_seqlens_k = tensor(k_starts.data(), FLASHMLA_INT32, {2});
  params.out = tensor(call.out.data(), FLASHMLA_FLOAT32, {2, 2, 16});
  params.lse = tensor(call.lse.data(), FLASHMLA_FLOAT32, {2, 2});
  params.softmax_scale = 0.5F;
  params.causal = 1;
  params.empty_lse = FLASHMLA_EMPTY_LSE_MINUS_INF;
  auto shape = sized<flashmla_prefill_shape>();
  ASSERT_EQ(flashmla_prefill_shape_of(&params, &shape), FLASHMLA_OK) << flashmla_last_error();
  int64_t bytes = 0;
  ASSERT_EQ(flashmla_prefill_workspace_bytes(&shape, &call.context, &bytes), FLASHMLA_OK) << flashmla_last_error();
  EXPECT_EQ(bytes, 768);
  const AlignedMemory workspace = aligned_memory(bytes);
  ASSERT_EQ(flashmla_prefill(&params, workspace.get(), bytes, &call.context), FLASHMLA_OK) << flashmla_last_error();

  expect_context();
  const PrefillParams& got = record().prefill;
  expect_view(got.q, params.q);
  expect_view(got.k, params.k);
  expect_view(got.v, params.v);
  expect_view(got.cu_seqlens_q, params.cu_seqlens_q);
  expect_view(got.cu_seqlens_k, params.cu_seqlens_k);
  expect_view(got.out, params.out);
  expect_view(got.lse, params.lse);
  EXPECT_EQ(got.softmax_scale, 0.5F);
  EXPECT_TRUE(got.causal);
  EXPECT_EQ(got.empty_lse, EmptyLse::kMinusInf);
  EXPECT_EQ(record().workspace.data, workspace.get());
  EXPECT_EQ(record().workspace.bytes, 768);
}

TEST_F(CApiFields, PrefillShapeAndChoice) {
  auto shape = sized<flashmla_prefill_shape>();
  shape.batch = 2;
  shape.total_q = 3;
  shape.total_k = 4;
  shape.heads_q = 10;
  shape.heads_kv = 5;
  shape.qk_dim = 24;
  shape.v_dim = 16;
  shape.dtype = FLASHMLA_FLOAT16;
  shape.causal = 1;
  auto choice = sized<flashmla_kernel_choice>();
  ASSERT_EQ(flashmla_explain_prefill(&shape, &call.context, &choice), FLASHMLA_OK) << flashmla_last_error();
  expect_context();
  const PrefillShape& got = record().prefill_shape;
  EXPECT_EQ(got.batch, 2);
  EXPECT_EQ(got.total_q, 3);
  EXPECT_EQ(got.total_k, 4);
  EXPECT_EQ(got.heads_q, 10);
  EXPECT_EQ(got.heads_kv, 5);
  EXPECT_EQ(got.qk_dim, 24);
  EXPECT_EQ(got.v_dim, 16);
  EXPECT_EQ(got.dtype, DType::kFloat16);
  EXPECT_TRUE(got.causal);
  EXPECT_STREQ(choice.kernel, "a kernel");
}

TEST_F(CApiFields, AppendKv) {
  alignas(16) std::array<float, 32> latent{};
  alignas(16) std::array<float, 16> rope{};
  const std::array<int64_t, 2> slots{0, 1};
  auto params = sized<flashmla_append_kv_params>();
  params.latent = tensor(latent.data(), FLASHMLA_FLOAT32, {2, SmallCall::kLatent});
  params.rope = tensor(rope.data(), FLASHMLA_FLOAT32, {2, SmallCall::kRope});
  params.slot_mapping = tensor(slots.data(), FLASHMLA_INT64, {2});
  params.kv_cache = call.params.kv_cache;
  params.kv_format = FLASHMLA_KV_FP32;
  int32_t code = 0;
  params.status = tensor(&code, FLASHMLA_INT32, {1});
  ASSERT_EQ(flashmla_append_kv(&params, &call.context), FLASHMLA_OK) << flashmla_last_error();
  expect_context();
  expect_view(record().append.latent, params.latent);
  expect_view(record().append.rope, params.rope);
  expect_view(record().append.slot_mapping, params.slot_mapping);
  expect_view(record().append.kv_cache, params.kv_cache);
  expect_view(record().append.status, params.status);
  EXPECT_EQ(record().append.kv_format, KvFormat::kFP32);
}

TEST_F(CApiFields, MergeStates) {
  std::array<float, 18> out{};
  std::array<float, 6> lse{};
  auto params = sized<flashmla_merge_states_params>();
  params.out_a = tensor(out.data(), FLASHMLA_FLOAT32, {2, 1, 3});
  params.out_b = tensor(out.data() + 6, FLASHMLA_FLOAT32, {2, 1, 3});
  params.out = tensor(out.data() + 12, FLASHMLA_FLOAT32, {2, 1, 3});
  params.lse_a = tensor(lse.data(), FLASHMLA_FLOAT32, {1, 2});
  params.lse_b = tensor(lse.data() + 2, FLASHMLA_FLOAT32, {1, 2});
  params.lse = tensor(lse.data() + 4, FLASHMLA_FLOAT32, {1, 2});
  params.empty_lse = FLASHMLA_EMPTY_LSE_MINUS_INF;
  ASSERT_EQ(flashmla_merge_states(&params, &call.context), FLASHMLA_OK) << flashmla_last_error();
  expect_context();
  expect_view(record().merge.out_a, params.out_a);
  expect_view(record().merge.lse_a, params.lse_a);
  expect_view(record().merge.out_b, params.out_b);
  expect_view(record().merge.lse_b, params.lse_b);
  expect_view(record().merge.out, params.out);
  expect_view(record().merge.lse, params.lse);
  EXPECT_EQ(record().merge.empty_lse, EmptyLse::kMinusInf);
}

}  // namespace
}  // namespace flashmla::c_api_test
