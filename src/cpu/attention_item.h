// What the scheduler hands to an attention kernel: plain pointers and sizes, no tensors.
//
// An item is one row tile (query rows of one request and KV head) over one range of keys. The kernel walks the range in
// blocks of kBlockKeys and keeps for every row the running maximum m, sum l and un-normalised output o
// (Flash-Decoding). Scores are kept times log2(e), so that weights are powers of two: p = 2^(s - m).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/key_rows.h"
#include "flashmla/tensor.h"

namespace flashmla {

inline constexpr int kBlockKeys = 64;     // keys scored, soft-maxed and accumulated at a time
inline constexpr int kMaxTileRows = 128;  // rows of a tile: 128 heads read each cache line once
inline constexpr int kRowPad = 16;        // row counts are padded to this: lanes of the widest vector

struct ItemShape {
  int32_t rows = 0;
  int32_t padded_rows = 0;  // rows rounded up to kRowPad
  int32_t first_dim = 0;    // a query lies in two parts (MLA: latent and RoPE)
  int32_t second_dim = 0;
  int32_t value_dim = 0;   // columns of the output
  int32_t padded_dim = 0;  // the wider of key and value, rounded up to kColumnPad
  int32_t out_stride = 0;  // floats from one row of `Partial::o` to the next: value_dim rounded up to kColumnPad
  DType dtype = DType::kBFloat16;
  double score_scale = 0;  // softmax_scale * log2(e); in fp32 its rounding alone would spend the bound of an fp32 lse

  constexpr int32_t qk_dim() const { return first_dim + second_dim; }
};
inline constexpr int kColumnPad = 32;

// Running state of the rows of an item, arbitrary before the first block.
struct Partial {
  float* m = nullptr;  // [padded_rows]
  float* l = nullptr;  // [padded_rows]
  float* o = nullptr;  // [rows][out_stride]
};

// Buffers of one thread, arbitrary on entry; sizes in ScratchLayout (attention_layout.h).
struct Scratch {
  void* queries = nullptr;     // packed by load_queries
  float* scores = nullptr;     // kBlockKeys for each padded row
  void* weights = nullptr;     // as many, as the kernel multiplies them
  std::byte* rows = nullptr;   // [kBlockKeys][padded_dim] widened keys; one zero row follows
  float* rescale = nullptr;    // [padded_rows]
  int32_t* visible = nullptr;  // [padded_rows] keys that each row sees, counted from the first key of the block
};

// Keys [first, first + count) of an item.
struct Block {
  int64_t first = 0;
  int32_t count = 0;   // at most kBlockKeys
  int32_t ahead = 0;   // keys after them that the next call will add, at most kBlockKeys
  bool fresh = false;  // the first block of the item
};

// Rows that see at most this many keys have their scores summed in double (AttentionKernel::few_keys).
inline constexpr int64_t kFewKeys = 32;

struct AttentionKernel {
  const char* name;
  // Packs the rows' queries (first and second part by row) into scratch.queries.
  void (*load_queries)(const ItemShape& shape, const Scratch& scratch, const std::byte* const* first,
                       const std::byte* const* second);
  // Adds a block of keys to `partial`; row r sees those below visible[r], counted from key 0. Values without a base are
  // the beginnings of the key rows.
  void (*attend)(const ItemShape& shape, const Scratch& scratch, const KeyRows& keys, const KeyRows& values,
                 const Block& block, const int64_t* visible, const Partial& partial);
  // What replaces this kernel where rows see few keys: their lse may be near 0, and fp32 sums of large terms that
  // cancel would miss its bound. Null: this kernel sums in double itself.
  const AttentionKernel* few_keys = nullptr;
};

// By instruction set, for every dtype.
const AttentionKernel& scalar_kernel();
const AttentionKernel& avx2_kernel();
const AttentionKernel& avx512_kernel();
// For bf16 alone.
const AttentionKernel& avx512_bf16_kernel();

}  // namespace flashmla
