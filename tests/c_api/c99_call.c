// Compiled as strict C99: the header needs nothing more, and the init macros and enumerators work in C.
#include "c99_call.h"

#include "flashmla/c.h"

flashmla_status c99_merge(const float* out_a, float lse_a, const float* out_b, float lse_b, int64_t width, float* out,
                          float* lse, const char* backend) {
  const int64_t shape[3] = {1, 1, width};
  const int64_t lse_shape[2] = {1, 1};

  flashmla_context context = FLASHMLA_CONTEXT_INIT;
  context.backend = backend;
  flashmla_merge_states_params params = FLASHMLA_MERGE_STATES_PARAMS_INIT;
  params.out_a = flashmla_contiguous(out_a, FLASHMLA_FLOAT32, 3, shape);
  params.lse_a = flashmla_contiguous(&lse_a, FLASHMLA_FLOAT32, 2, lse_shape);
  params.out_b = flashmla_contiguous(out_b, FLASHMLA_FLOAT32, 3, shape);
  params.lse_b = flashmla_contiguous(&lse_b, FLASHMLA_FLOAT32, 2, lse_shape);
  params.out = flashmla_contiguous(out, FLASHMLA_FLOAT32, 3, shape);
  params.lse = flashmla_contiguous(lse, FLASHMLA_FLOAT32, 2, lse_shape);
  return flashmla_merge_states(&params, &context);
}

size_t c99_sizes_initialised(void) {
  const flashmla_context context = FLASHMLA_CONTEXT_INIT;
  const flashmla_decode_options options = FLASHMLA_DECODE_OPTIONS_INIT;
  const flashmla_decode_params decode = FLASHMLA_DECODE_PARAMS_INIT;
  const flashmla_decode_shape shape = FLASHMLA_DECODE_SHAPE_INIT;
  const flashmla_prefill_params prefill = FLASHMLA_PREFILL_PARAMS_INIT;
  const flashmla_prefill_shape prefill_shape = FLASHMLA_PREFILL_SHAPE_INIT;
  const flashmla_kernel_choice choice = FLASHMLA_KERNEL_CHOICE_INIT;
  const flashmla_append_kv_params append = FLASHMLA_APPEND_KV_PARAMS_INIT;
  const flashmla_merge_states_params merge = FLASHMLA_MERGE_STATES_PARAMS_INIT;
  return (context.struct_size == sizeof context && context.backend == NULL) +
         (options.struct_size == sizeof options && options.splits == 0) +
         (decode.struct_size == sizeof decode && decode.options == NULL) +
         (shape.struct_size == sizeof shape && shape.batch == 0) +
         (prefill.struct_size == sizeof prefill && prefill.causal == 0) +
         (prefill_shape.struct_size == sizeof prefill_shape && prefill_shape.batch == 0) +
         (choice.struct_size == sizeof choice && choice.reason == NULL) +
         (append.struct_size == sizeof append && append.kv_format == FLASHMLA_KV_FROM_DTYPE) +
         (merge.struct_size == sizeof merge && merge.empty_lse == FLASHMLA_EMPTY_LSE_PLUS_INF);
}
