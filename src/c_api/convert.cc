#include "c_api/convert.h"

#include "c_api/sized_struct.h"
#include "c_api/thread_text.h"

namespace flashmla {

namespace {

// Sizes that the structs had in the version that introduced them, 0.1. They never change.
constexpr size_t kContextFirstSize = 48;
constexpr size_t kOptionsFirstSize = 24;
constexpr size_t kDecodeParamsFirstSize = 680;
constexpr size_t kDecodeShapeFirstSize = 104;
constexpr size_t kPrefillParamsFirstSize = 584;
constexpr size_t kPrefillShapeFirstSize = 72;
constexpr size_t kKernelChoiceFirstSize = 32;
constexpr size_t kAppendParamsFirstSize = 336;
constexpr size_t kMergeParamsFirstSize = 496;

// What is true of the structs today. A struct that grew no longer equals its first size: then the assertion goes.
static_assert(sizeof(void*) == 8 && sizeof(flashmla_tensor) == 80);
static_assert(sizeof(flashmla_context) == kContextFirstSize);
static_assert(sizeof(flashmla_decode_options) == kOptionsFirstSize);
static_assert(sizeof(flashmla_decode_shape) == kDecodeShapeFirstSize);
static_assert(sizeof(flashmla_prefill_params) == kPrefillParamsFirstSize);
static_assert(sizeof(flashmla_prefill_shape) == kPrefillShapeFirstSize);
static_assert(sizeof(flashmla_kernel_choice) == kKernelChoiceFirstSize);
static_assert(sizeof(flashmla_merge_states_params) == kMergeParamsFirstSize);

Status check_bool(std::string_view argument, int32_t value) {
  if (value == 0 || value == 1) return {};
  return invalid(argument, concat(value), "0 or 1");
}

Status check_reserved(std::string_view argument, int32_t value) {
  if (value == 0) return {};
  return invalid(concat(argument, ".reserved"), concat(value), "0");
}

// In C a field that nobody set is 0, and scale 0 would silently give the mean of the values.
Status check_scale_set(float scale) {
  if (scale != 0.0F) return {};
  return invalid("softmax_scale", "0, as in a struct where it was not set", "the model's finite scale, not 0");
}

std::string_view view_of(const char* text) { return text == nullptr ? std::string_view{} : std::string_view{text}; }

template <class View>
View view_from_c(const flashmla_tensor& tensor) {
  View view{tensor.data, static_cast<DType>(tensor.dtype), tensor.ndim, {}, {}};
  for (int d = 0; d < kMaxDims; ++d) {
    view.shape[d] = tensor.shape[d];
    view.stride[d] = tensor.stride[d];
  }
  return view;
}

ConstTensorView input(const flashmla_tensor& tensor) { return view_from_c<ConstTensorView>(tensor); }
TensorView output(const flashmla_tensor& tensor) { return view_from_c<TensorView>(tensor); }

}  // namespace

Result<Context> context_from_c(const flashmla_context* context) {
  if (context == nullptr) return Context{};
  flashmla_context c{};
  FLASHMLA_RETURN_IF_ERROR(read_struct("context", context, kContextFirstSize, c));
  FLASHMLA_RETURN_IF_ERROR(check_reserved("context", c.reserved));
  if (c.device_type != FLASHMLA_CPU && c.device_type != FLASHMLA_CUDA) {
    return invalid("context.device_type", concat(c.device_type), "0 (CPU) or 1 (CUDA)");
  }
  return Context{.device = {static_cast<DeviceType>(c.device_type), c.device_index},
                 .stream = c.stream,
                 .backend = view_of(c.backend),
                 .isa = view_of(c.isa),
                 .threads = c.threads};
}

Result<DecodeOptions> options_from_c(const flashmla_decode_options* options) {
  if (options == nullptr) return DecodeOptions{};
  flashmla_decode_options c{};
  FLASHMLA_RETURN_IF_ERROR(read_struct("options", options, kOptionsFirstSize, c));
  FLASHMLA_RETURN_IF_ERROR(check_bool("options.batch_invariant", c.batch_invariant));
  FLASHMLA_RETURN_IF_ERROR(check_bool("options.inputs_ready", c.inputs_ready));
  return DecodeOptions{.empty_lse = static_cast<EmptyLse>(c.empty_lse),
                       .batch_invariant = c.batch_invariant != 0,
                       .inputs_ready = c.inputs_ready != 0,
                       .splits = c.splits};
}

Result<DecodeParams> decode_params_from_c(const flashmla_decode_params* params) {
  flashmla_decode_params c{};
  FLASHMLA_RETURN_IF_ERROR(read_struct("params", params, kDecodeParamsFirstSize, c));
  FLASHMLA_RETURN_IF_ERROR(check_reserved("params", c.reserved));
  FLASHMLA_RETURN_IF_ERROR(check_bool("causal", c.causal));
  FLASHMLA_RETURN_IF_ERROR(check_scale_set(c.softmax_scale));
  const Result<DecodeOptions> options = options_from_c(c.options);
  if (!options.ok()) return options.status();
  return DecodeParams{.q = input(c.q),
                      .q_rope = input(c.q_rope),
                      .kv_cache = input(c.kv_cache),
                      .page_table = input(c.page_table),
                      .seq_lens = input(c.seq_lens),
                      .cu_seqlens_q = input(c.cu_seqlens_q),
                      .out = output(c.out),
                      .lse = output(c.lse),
                      .status = output(c.status),
                      .latent_dim = c.latent_dim,
                      .softmax_scale = c.softmax_scale,
                      .causal = c.causal != 0,
                      .kv_format = static_cast<KvFormat>(c.kv_format),
                      .options = options.value()};
}

Result<DecodeShape> decode_shape_from_c(const flashmla_decode_shape* shape) {
  flashmla_decode_shape c{};
  FLASHMLA_RETURN_IF_ERROR(read_struct("shape", shape, kDecodeShapeFirstSize, c));
  FLASHMLA_RETURN_IF_ERROR(check_bool("shape.ragged_q", c.ragged_q));
  FLASHMLA_RETURN_IF_ERROR(check_bool("shape.causal", c.causal));
  const auto dtype = static_cast<DType>(c.dtype);
  const auto format = static_cast<KvFormat>(c.kv_format);
  return DecodeShape{.batch = c.batch,
                     .seq_q = c.seq_q,
                     .total_q = c.total_q,
                     .heads_q = c.heads_q,
                     .heads_kv = c.heads_kv,
                     .latent_dim = c.latent_dim,
                     .rope_dim = c.rope_dim,
                     .page_size = c.page_size,
                     .pages = c.pages,
                     .table_width = c.table_width,
                     .dtype = dtype,
                     .kv_format = format == KvFormat::kFromDType ? plain_kv_format(dtype) : format,
                     .ragged_q = c.ragged_q != 0,
                     .causal = c.causal != 0};
}

Result<PrefillParams> prefill_params_from_c(const flashmla_prefill_params* params) {
  flashmla_prefill_params c{};
  FLASHMLA_RETURN_IF_ERROR(read_struct("params", params, kPrefillParamsFirstSize, c));
  FLASHMLA_RETURN_IF_ERROR(check_reserved("params", c.reserved));
  FLASHMLA_RETURN_IF_ERROR(check_bool("causal", c.causal));
  FLASHMLA_RETURN_IF_ERROR(check_scale_set(c.softmax_scale));
  return PrefillParams{.q = input(c.q),
                       .k = input(c.k),
                       .v = input(c.v),
                       .cu_seqlens_q = input(c.cu_seqlens_q),
                       .cu_seqlens_k = input(c.cu_seqlens_k),
                       .out = output(c.out),
                       .lse = output(c.lse),
                       .softmax_scale = c.softmax_scale,
                       .causal = c.causal != 0,
                       .empty_lse = static_cast<EmptyLse>(c.empty_lse)};
}

Result<PrefillShape> prefill_shape_from_c(const flashmla_prefill_shape* shape) {
  flashmla_prefill_shape c{};
  FLASHMLA_RETURN_IF_ERROR(read_struct("shape", shape, kPrefillShapeFirstSize, c));
  FLASHMLA_RETURN_IF_ERROR(check_bool("shape.causal", c.causal));
  return PrefillShape{.batch = c.batch,
                      .total_q = c.total_q,
                      .total_k = c.total_k,
                      .heads_q = c.heads_q,
                      .heads_kv = c.heads_kv,
                      .qk_dim = c.qk_dim,
                      .v_dim = c.v_dim,
                      .dtype = static_cast<DType>(c.dtype),
                      .causal = c.causal != 0};
}

Result<AppendKvParams> append_params_from_c(const flashmla_append_kv_params* params) {
  flashmla_append_kv_params c{};
  FLASHMLA_RETURN_IF_ERROR(read_struct("params", params, kAppendParamsFirstSize, c));
  FLASHMLA_RETURN_IF_ERROR(check_reserved("params", c.reserved));
  return AppendKvParams{.latent = input(c.latent),
                        .rope = input(c.rope),
                        .slot_mapping = input(c.slot_mapping),
                        .kv_cache = output(c.kv_cache),
                        .kv_format = static_cast<KvFormat>(c.kv_format),
                        .status = output(c.status)};
}

Result<MergeStatesParams> merge_params_from_c(const flashmla_merge_states_params* params) {
  flashmla_merge_states_params c{};
  FLASHMLA_RETURN_IF_ERROR(read_struct("params", params, kMergeParamsFirstSize, c));
  FLASHMLA_RETURN_IF_ERROR(check_reserved("params", c.reserved));
  return MergeStatesParams{.out_a = input(c.out_a),
                           .lse_a = input(c.lse_a),
                           .out_b = input(c.out_b),
                           .lse_b = input(c.lse_b),
                           .out = output(c.out),
                           .lse = output(c.lse),
                           .empty_lse = static_cast<EmptyLse>(c.empty_lse)};
}

Status write_decode_shape(const DecodeShape& from, flashmla_decode_shape* to) {
  const flashmla_decode_shape c{.struct_size = sizeof c,
                                .batch = from.batch,
                                .seq_q = from.seq_q,
                                .total_q = from.total_q,
                                .heads_q = from.heads_q,
                                .heads_kv = from.heads_kv,
                                .latent_dim = from.latent_dim,
                                .rope_dim = from.rope_dim,
                                .page_size = from.page_size,
                                .pages = from.pages,
                                .table_width = from.table_width,
                                .dtype = static_cast<flashmla_dtype>(from.dtype),
                                .kv_format = static_cast<flashmla_kv_format>(from.kv_format),
                                .ragged_q = from.ragged_q ? 1 : 0,
                                .causal = from.causal ? 1 : 0};
  return write_struct("shape", c, kDecodeShapeFirstSize, to);
}

Status write_prefill_shape(const PrefillShape& from, flashmla_prefill_shape* to) {
  const flashmla_prefill_shape c{.struct_size = sizeof c,
                                 .batch = from.batch,
                                 .total_q = from.total_q,
                                 .total_k = from.total_k,
                                 .heads_q = from.heads_q,
                                 .heads_kv = from.heads_kv,
                                 .qk_dim = from.qk_dim,
                                 .v_dim = from.v_dim,
                                 .dtype = static_cast<flashmla_dtype>(from.dtype),
                                 .causal = from.causal ? 1 : 0};
  return write_struct("shape", c, kPrefillShapeFirstSize, to);
}

Status write_kernel_choice(const KernelChoice& from, flashmla_kernel_choice* to) {
  static thread_local ThreadText backend;
  static thread_local ThreadText kernel;
  static thread_local ThreadText reason;
  const flashmla_kernel_choice c{.struct_size = sizeof c,
                                 .backend = backend.set(from.backend),
                                 .kernel = kernel.set(from.kernel),
                                 .reason = reason.set(from.reason)};
  return write_struct("choice", c, kKernelChoiceFirstSize, to);
}

}  // namespace flashmla
