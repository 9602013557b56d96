// C API of flashmla: the operations of the C++ API (decode.h, prefill.h, cache.h, merge.h) as a stable C99 ABI.
//
// Structs. Each one that a call takes by pointer begins with `struct_size`, set by the caller to its own sizeof.
// Structs grow only at the end and every later field has 0 as its default, so a program built against an older header
// runs with a newer library, which takes the missing fields as 0; one built against a newer header runs with an older
// library as long as the fields that the library does not know are 0. Initialise with the FLASHMLA_..._INIT macros, or
// zero the struct and set struct_size. flashmla_tensor has no size: its layout is fixed for the life of the major
// version.
//
// Errors. Every operation returns a flashmla_status. The text (argument, what was got, what is wanted, what is
// supported) belongs to the calling thread: flashmla_last_error(). A thread-local text was chosen over a buffer in
// every signature: it needs no memory from the caller, so no error is lost to a buffer that was too small or absent,
// and it is there also when memory is exhausted. Callers whose code moves between threads (Go, coroutines) read it
// before they yield.
//
// Nothing here throws, prints, exits or aborts. All functions may be called from several threads at once.
#ifndef FLASHMLA_C_H_
#define FLASHMLA_C_H_

#include <stddef.h>
#include <stdint.h>

#include "flashmla/export.h"
#include "flashmla/version.h"

#ifdef __cplusplus
extern "C" {
#endif

// Enumerations travel as int32_t: the size of a C enum is the compiler's choice.

typedef int32_t flashmla_status;
enum {
  FLASHMLA_OK = 0,
  FLASHMLA_INVALID_ARGUMENT = 1,     // a shape, stride, dtype, alignment, option or struct_size is wrong
  FLASHMLA_UNSUPPORTED = 2,          // a legal combination that the chosen back end does not compute
  FLASHMLA_OUT_OF_RANGE = 3,         // a value inside a tensor is wrong: a length, a page id, a slot
  FLASHMLA_WORKSPACE_TOO_SMALL = 4,  // the workspace is absent, misaligned or too small
  FLASHMLA_NOT_FOUND = 5,            // no back end of that name, or none for that device
  FLASHMLA_OUT_OF_MEMORY = 6,
  FLASHMLA_INTERNAL = 7
};

// What the optional `status` of decode and append_kv receives, as in flashmla/status.h: of several faults the highest.
typedef int32_t flashmla_bad_value;
enum {
  FLASHMLA_BAD_NONE = 0,
  FLASHMLA_BAD_PAGE_ID = 1,      // a page-table entry that a length uses lies outside the cache: its keys are masked
  FLASHMLA_BAD_TOKEN_START = 2,  // cu_seqlens_q does not begin with 0, falls, or rises above total_q: clamped
  FLASHMLA_BAD_SEQ_LEN = 3,      // a length below 0 or above width * page: clamped
  FLASHMLA_BAD_SLOT = 4  // a slot at or past pages * page_size: the token is skipped (a negative one is no fault)
};

typedef int32_t flashmla_dtype;
enum {
  FLASHMLA_FLOAT32 = 0,
  FLASHMLA_FLOAT16 = 1,
  FLASHMLA_BFLOAT16 = 2,
  FLASHMLA_FLOAT8_E4M3 = 3,
  FLASHMLA_INT32 = 4,
  FLASHMLA_INT64 = 5,
  FLASHMLA_UINT8 = 6
};

typedef int32_t flashmla_kv_format;
enum {
  FLASHMLA_KV_FROM_DTYPE = 0,  // the plain format of the cache tensor's dtype
  FLASHMLA_KV_BF16 = 1,
  FLASHMLA_KV_FP16 = 2,
  FLASHMLA_KV_FP32 = 3,
  FLASHMLA_KV_FP8_TENSOR = 4,
  FLASHMLA_KV_FP8_TILE128 = 5,
  FLASHMLA_KV_FP8_V4 = 6
};

typedef int32_t flashmla_device_type;
enum { FLASHMLA_CPU = 0, FLASHMLA_CUDA = 1 };

// Marker in `lse` of a row that sees no key (its output is 0).
typedef int32_t flashmla_empty_lse;
enum { FLASHMLA_EMPTY_LSE_PLUS_INF = 0, FLASHMLA_EMPTY_LSE_MINUS_INF = 1 };

enum { FLASHMLA_MAX_DIMS = 4, FLASHMLA_WORKSPACE_ALIGNMENT = 256, FLASHMLA_MAX_SPLITS = 64 };

// A strided view that the caller owns; it needs to live during the call only. Strides are in elements, and may be any
// value where the matching size is 0 or 1. ndim 0 means "not given". The memory of an input is never written.
typedef struct flashmla_tensor {
  void* data;
  flashmla_dtype dtype;
  int32_t ndim;
  int64_t shape[FLASHMLA_MAX_DIMS];
  int64_t stride[FLASHMLA_MAX_DIMS];
} flashmla_tensor;

// Where a call runs. A null pointer in its place means all defaults.
typedef struct flashmla_context {
  size_t struct_size;
  flashmla_device_type device_type;
  int32_t device_index;
  void* stream;         // a cudaStream_t; not used by CPU back ends
  const char* backend;  // null or "": FLASHMLA_BACKEND, else the best registered back end that takes the call
  const char*
      isa;  // back end "cpu": "scalar", "avx2", "avx512", "avx512_bf16"; null or "": FLASHMLA_ISA, else the best
  int32_t threads;   // back end "cpu"; 0: FLASHMLA_NUM_THREADS, else affinity and cgroup quota
  int32_t reserved;  // 0
} flashmla_context;
#define FLASHMLA_CONTEXT_INIT \
  { .struct_size = sizeof(flashmla_context) }

// A null pointer in its place means all defaults (0).
typedef struct flashmla_decode_options {
  size_t struct_size;
  flashmla_empty_lse empty_lse;
  int32_t batch_invariant;  // 1: a request's bits do not depend on the other requests or on b
  int32_t inputs_ready;  // 1: the kernel before this one on the stream wrote none of cache, table and lengths; GPU only
  int32_t splits;        // parts that each request's keys are cut into; 0: chosen by the back end
} flashmla_decode_options;
#define FLASHMLA_DECODE_OPTIONS_INIT \
  { .struct_size = sizeof(flashmla_decode_options) }

// Symbols, shapes and alignment as in flashmla/decode.h: b requests, s_q query tokens of a request, h_q query heads,
// h_kv KV heads, d_v = latent_dim, d_qk = latent_dim + rope_dim.
typedef struct flashmla_decode_params {
  size_t struct_size;
  flashmla_tensor q;             // [b, s_q, h_q, d_qk], or [total_q, h_q, d_qk] with cu_seqlens_q
  flashmla_tensor q_rope;        // optional: the RoPE part on its own, [.., rope_dim]; q then holds [.., d_v]
  flashmla_tensor kv_cache;      // [pages, page, h_kv, d_qk]
  flashmla_tensor page_table;    // int32 [b, width]
  flashmla_tensor seq_lens;      // int32 [b], cached tokens including the new ones
  flashmla_tensor cu_seqlens_q;  // optional int32 [b + 1]: first query token of each request, for ragged q
  flashmla_tensor out;           // [b, s_q, h_q, d_v] or [total_q, h_q, d_v], dtype of q; every element is written
  flashmla_tensor lse;           // optional fp32 [b, h_q, s_q] or [h_q, total_q], natural logarithm
  int64_t latent_dim;            // required: d_v, 512 for DeepSeek models
  float softmax_scale;           // required: the model's scale, YaRN factor included; finite and not 0
  int32_t causal;                // 1: query i of s_q sees the first seq_len - s_q + i + 1 keys
  flashmla_kv_format kv_format;
  int32_t reserved;                        // 0
  const flashmla_decode_options* options;  // null: defaults
  flashmla_tensor status;  // optional int32 [1] on the device, CUDA only: receives a flashmla_bad_value, 0 too
} flashmla_decode_params;
#define FLASHMLA_DECODE_PARAMS_INIT \
  { .struct_size = sizeof(flashmla_decode_params) }

// The sizes of a decode call, without pointers: what kernel choice and workspace depend on. There are no defaults: fill
// every field, or take them from a call with flashmla_decode_shape_of.
typedef struct flashmla_decode_shape {
  size_t struct_size;
  int64_t batch;
  int64_t seq_q;    // query tokens of each request; with ragged q: total_q, the most that one request may have
  int64_t total_q;  // query tokens of all requests
  int64_t heads_q;
  int64_t heads_kv;
  int64_t latent_dim;
  int64_t rope_dim;
  int64_t page_size;
  int64_t pages;
  int64_t table_width;  // pages that one row of the page table names
  flashmla_dtype dtype;
  flashmla_kv_format kv_format;  // FLASHMLA_KV_FROM_DTYPE: the plain format of dtype
  int32_t ragged_q;
  int32_t causal;
} flashmla_decode_shape;
#define FLASHMLA_DECODE_SHAPE_INIT \
  { .struct_size = sizeof(flashmla_decode_shape) }

// Prefill in MHA form, as in flashmla/prefill.h: sequence i has query tokens [cu_seqlens_q[i], cu_seqlens_q[i + 1]) and
// keys [cu_seqlens_k[i], cu_seqlens_k[i + 1]).
typedef struct flashmla_prefill_params {
  size_t struct_size;
  flashmla_tensor q;             // [total_q, h_q, d_qk]
  flashmla_tensor k;             // [total_k, h_kv, d_qk]
  flashmla_tensor v;             // [total_k, h_kv, d_v]
  flashmla_tensor cu_seqlens_q;  // int32 [b + 1]
  flashmla_tensor cu_seqlens_k;  // int32 [b + 1]
  flashmla_tensor out;           // [total_q, h_q, d_v], dtype of q; every element is written
  flashmla_tensor lse;           // optional fp32 [h_q, total_q], natural logarithm
  float softmax_scale;           // required: finite and not 0
  int32_t causal;                // 1: query i of s_q sees the first s_k - s_q + i + 1 keys
  flashmla_empty_lse empty_lse;
  int32_t reserved;  // 0
} flashmla_prefill_params;
#define FLASHMLA_PREFILL_PARAMS_INIT \
  { .struct_size = sizeof(flashmla_prefill_params) }

// The sizes of a prefill call; no defaults, as for flashmla_decode_shape.
typedef struct flashmla_prefill_shape {
  size_t struct_size;
  int64_t batch;
  int64_t total_q;
  int64_t total_k;
  int64_t heads_q;
  int64_t heads_kv;
  int64_t qk_dim;
  int64_t v_dim;
  flashmla_dtype dtype;
  int32_t causal;
} flashmla_prefill_shape;
#define FLASHMLA_PREFILL_SHAPE_INIT \
  { .struct_size = sizeof(flashmla_prefill_shape) }

// Which back end and kernel a call runs, and why that one. The texts live until the next flashmla_explain_... of the
// same thread.
typedef struct flashmla_kernel_choice {
  size_t struct_size;
  const char* backend;
  const char* kernel;
  const char* reason;
} flashmla_kernel_choice;
#define FLASHMLA_KERNEL_CHOICE_INIT \
  { .struct_size = sizeof(flashmla_kernel_choice) }

typedef struct flashmla_append_kv_params {
  size_t struct_size;
  flashmla_tensor latent;        // [T' >= T, d_v], the cache's dtype, last dimension contiguous
  flashmla_tensor rope;          // [T'' >= T, d_rope], as above; left out when the model has no RoPE part
  flashmla_tensor slot_mapping;  // int64 [T]: page * page_size + place in the page; negative: skip this token
  flashmla_tensor kv_cache;      // [pages, page, d_v + d_rope] or [pages, page, 1, d_v + d_rope]
  flashmla_kv_format kv_format;
  int32_t reserved;        // 0
  flashmla_tensor status;  // optional int32 [1] on the device, CUDA only: receives a flashmla_bad_value, 0 too
} flashmla_append_kv_params;
#define FLASHMLA_APPEND_KV_PARAMS_INIT \
  { .struct_size = sizeof(flashmla_append_kv_params) }

// out: [tokens, heads, width] in fp32, fp16 or bf16; lse: fp32 [heads, tokens], natural logarithm. Both +inf and -inf
// mean "empty": that side adds nothing. out and lse may alias out_a and lse_a (the same memory and strides).
typedef struct flashmla_merge_states_params {
  size_t struct_size;
  flashmla_tensor out_a;
  flashmla_tensor lse_a;
  flashmla_tensor out_b;
  flashmla_tensor lse_b;
  flashmla_tensor out;
  flashmla_tensor lse;           // optional
  flashmla_empty_lse empty_lse;  // written where both sides are empty
  int32_t reserved;              // 0
} flashmla_merge_states_params;
#define FLASHMLA_MERGE_STATES_PARAMS_INIT \
  { .struct_size = sizeof(flashmla_merge_states_params) }

// Of the library that runs, which may be newer than this header: "0.1.0", and 1000000 * major + 1000 * minor + patch.
FLASHMLA_API const char* flashmla_version(void);
FLASHMLA_API int32_t flashmla_version_number(void);

// The text of the calling thread's last flashmla_status: "" after FLASHMLA_OK. Lives until the thread's next call.
FLASHMLA_API const char* flashmla_last_error(void);
// "ok", "invalid argument", ...; "unknown" for any other value.
FLASHMLA_API const char* flashmla_status_name(flashmla_status status);

// Registered back ends, highest priority first. The name is null when `index` is out of range, else it lives until the
// process ends.
FLASHMLA_API int32_t flashmla_backend_count(void);
FLASHMLA_API const char* flashmla_backend_name(int32_t index);

// A row-major view of `ndim` sizes (0 .. FLASHMLA_MAX_DIMS; the operations refuse a view made with any other ndim).
FLASHMLA_API flashmla_tensor flashmla_contiguous(const void* data, flashmla_dtype dtype, int32_t ndim,
                                                 const int64_t* shape);

// Checks everything about a call that does not need a look into device memory, and fills `shape`.
FLASHMLA_API flashmla_status flashmla_decode_shape_of(const flashmla_decode_params* params,
                                                      flashmla_decode_shape* shape);

// Bytes of workspace that flashmla_decode needs. Depends on sizes only, never on lengths, and grows with every size.
FLASHMLA_API flashmla_status flashmla_decode_workspace_bytes(const flashmla_decode_shape* shape,
                                                             const flashmla_decode_options* options,
                                                             const flashmla_context* context, int64_t* bytes);

FLASHMLA_API flashmla_status flashmla_explain_decode(const flashmla_decode_shape* shape,
                                                     const flashmla_decode_options* options,
                                                     const flashmla_context* context, flashmla_kernel_choice* choice);

// Runs the attention. `workspace`: the caller's, aligned to FLASHMLA_WORKSPACE_ALIGNMENT, arbitrary on entry, one per
// concurrent call; null when 0 bytes are needed. Keeps no state; thread-safe with distinct workspaces and outputs.
// Errors: INVALID_ARGUMENT, UNSUPPORTED, OUT_OF_RANGE, WORKSPACE_TOO_SMALL, NOT_FOUND.
FLASHMLA_API flashmla_status flashmla_decode(const flashmla_decode_params* params, void* workspace,
                                             int64_t workspace_bytes, const flashmla_context* context);

// The same four for prefill; errors and workspace as for decode.
FLASHMLA_API flashmla_status flashmla_prefill_shape_of(const flashmla_prefill_params* params,
                                                       flashmla_prefill_shape* shape);
FLASHMLA_API flashmla_status flashmla_prefill_workspace_bytes(const flashmla_prefill_shape* shape,
                                                              const flashmla_context* context, int64_t* bytes);
FLASHMLA_API flashmla_status flashmla_explain_prefill(const flashmla_prefill_shape* shape,
                                                      const flashmla_context* context, flashmla_kernel_choice* choice);
FLASHMLA_API flashmla_status flashmla_prefill(const flashmla_prefill_params* params, void* workspace,
                                              int64_t workspace_bytes, const flashmla_context* context);

// Writes new tokens into the cache. Of duplicate slots one wins. Errors: INVALID_ARGUMENT, UNSUPPORTED (fp8 formats),
// OUT_OF_RANGE (CPU: a slot at or past pages * page_size: nothing is written then; a GPU skips the token and tells
// `status`), NOT_FOUND.
FLASHMLA_API flashmla_status flashmla_append_kv(const flashmla_append_kv_params* params,
                                                const flashmla_context* context);

// Merges partial attention results of the same rows over disjoint keys.
FLASHMLA_API flashmla_status flashmla_merge_states(const flashmla_merge_states_params* params,
                                                   const flashmla_context* context);

#ifdef __cplusplus
}
#endif

#endif  // FLASHMLA_C_H_
