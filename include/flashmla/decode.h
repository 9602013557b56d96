// Decode attention over a paged latent cache: the core operation.
//
// Symbols: b requests, s_q query tokens of a request, h_q query heads, h_kv KV heads (1 in MLA; h_kv divides h_q and
// head h reads KV head h / (h_q / h_kv)), d_v = latent_dim (512), d_qk = latent_dim + rope_dim (576), page = tokens a
// page. K is a whole cache row; V is its first d_v values. See docs/math.md.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "flashmla/context.h"
#include "flashmla/export.h"
#include "flashmla/kv_format.h"
#include "flashmla/status.h"
#include "flashmla/tensor.h"

namespace flashmla {

// Marker of a row that sees no key (its output is 0): what `lse` holds there.
enum class EmptyLse : int32_t { kPlusInf = 0, kMinusInf = 1 };

struct DecodeOptions {
  EmptyLse empty_lse = EmptyLse::kPlusInf;
  // A request's bits do not depend on the other requests or on b, at equal h_q, s_q and options.
  bool batch_invariant = false;
  // Promise that the kernel before this one on the stream wrote none of cache, table and lengths. GPU only; no kernel
  // makes use of it yet.
  bool inputs_ready = false;
  // Parts that each request's keys are cut into; 0: chosen by the back end. At most kMaxSplits.
  int32_t splits = 0;
};

inline constexpr int32_t kMaxSplits = 64;

struct DecodeParams {
  // [b, s_q, h_q, d_qk], or [total_q, h_q, d_qk] with cu_seqlens_q. fp32, fp16 or bf16, the cache's dtype. Last
  // dimension contiguous, every other stride a multiple of 16 bytes, base 16-byte aligned.
  ConstTensorView q{};
  // Optional [b, s_q, h_q, rope_dim] or [total_q, h_q, rope_dim]: the RoPE part on its own; `q` then holds [.., d_v].
  ConstTensorView q_rope{};
  // [pages, page, h_kv, d_qk]; strides as for q, the page stride may span other layers. `pages` may be 0 if all lengths
  // are.
  ConstTensorView kv_cache{};
  ConstTensorView page_table{};    // int32 [b, width], free row stride; entries past a length are never used
  ConstTensorView seq_lens{};      // int32 [b], cached tokens including the new ones; 0 is legal
  ConstTensorView cu_seqlens_q{};  // optional int32 [b + 1]: first query token of each request, for ragged q
  // [b, s_q, h_q, d_v] or [total_q, h_q, d_v], dtype of q; last dimension contiguous. Every element is written.
  TensorView out{};
  // fp32 [b, h_q, s_q] or [h_q, total_q], free strides: natural log of the sum of exp(scaled scores). May be left out.
  TensorView lse{};
  // Optional int32 [1] on the device, CUDA only: receives a BadValue (status.h), kNone too, in stream order. What bad
  // values do to the result is the same with and without it; with it, two small kernels run first.
  TensorView status{};
  int64_t latent_dim = 512;  // d_v
  // The model's scale, YaRN factor included (docs/math.md). Required: there is no default.
  float softmax_scale = std::numeric_limits<float>::quiet_NaN();
  // Query i of s_q sees the first seq_len - s_q + i + 1 keys.
  bool causal = false;
  KvFormat kv_format = KvFormat::kFromDType;
  DecodeOptions options{};
};

// The sizes of a call, without pointers: what kernel choice and workspace depend on.
struct DecodeShape {
  int64_t batch = 0;
  int64_t seq_q = 0;    // query tokens of each request; with ragged q: total_q, the most that one request may have
  int64_t total_q = 0;  // query tokens of all requests
  int64_t heads_q = 0;
  int64_t heads_kv = 1;
  int64_t latent_dim = 512;
  int64_t rope_dim = 64;
  int64_t page_size = 64;
  int64_t pages = 0;
  int64_t table_width = 0;  // pages that one row of the page table names
  DType dtype = DType::kBFloat16;
  KvFormat kv_format = KvFormat::kBF16;
  bool ragged_q = false;
  bool causal = false;
};

// Which back end and kernel a call runs, and why that one.
struct KernelChoice {
  std::string backend;
  std::string kernel;
  std::string reason;
};

// Checks everything about a call that does not need a look into device memory. kInvalidArgument names the argument.
FLASHMLA_API Result<DecodeShape> decode_shape(const DecodeParams& params);

// Bytes of workspace that `decode` needs. Depends on sizes only, never on lengths, and grows with every size.
FLASHMLA_API Result<int64_t> workspace_bytes(const DecodeShape& shape, const DecodeOptions& options = {},
                                             const Context& context = {});

FLASHMLA_API Result<KernelChoice> explain_decode(const DecodeShape& shape, const DecodeOptions& options = {},
                                                 const Context& context = {});

// Runs the attention. Allocates nothing, keeps no state; thread-safe with distinct workspaces and outputs.
// Errors: kInvalidArgument (shapes, strides, dtypes, alignment, scale), kUnsupported (names the missing feature),
// kOutOfRange (CPU: a length below 0 or above width * page, a used page id outside the cache; a GPU clamps the length,
// masks the keys and tells `status`), kWorkspaceTooSmall, kNotFound.
FLASHMLA_API Status decode(const DecodeParams& params, Workspace workspace, const Context& context = {});

}  // namespace flashmla
