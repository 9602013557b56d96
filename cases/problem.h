// The tensors of a DecodeCase in host memory, deterministic in its seeds, and hostile: every byte that no valid token
// owns (page tails, unused pages, gaps between strides, workspace, old outputs) holds NaN and infinities, page-table
// entries past a length hold ids that must never be used, and physical pages are permuted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cases/memory.h"
#include "cases/shapes.h"
#include "flashmla/flashmla.h"

namespace flashmla::cases {

// Outputs of one call, without gaps. Two are equal when every bit is.
struct DecodeResult {
  DType dtype = DType::kBFloat16;
  int64_t heads_q = 0;
  int64_t latent_dim = 0;
  std::vector<std::byte> out;  // [total_q, h_q, d_v]
  std::vector<float> lse;      // [total_q, h_q]; empty when the case wants none

  float out_at(int64_t token, int64_t head, int64_t column) const;
  float lse_at(int64_t token, int64_t head) const { return lse[token * heads_q + head]; }
  // Rows of query tokens [begin, end).
  DecodeResult tokens(int64_t begin, int64_t end) const;
  bool operator==(const DecodeResult& other) const;
};

class DecodeProblem {
 public:
  explicit DecodeProblem(DecodeCase decode_case);

  const DecodeCase& decode_case() const { return case_; }
  // The call. Tests may change views and options, at their own risk.
  DecodeParams& params() { return params_; }
  const DecodeParams& params() const { return params_; }

  // Fills outputs with sentinel values that no kernel writes, poisons a fresh workspace, and decodes. On a GPU: copies
  // everything there, and the outputs back.
  Status run(const Context& context);
  // What the last `run` wrote.
  DecodeResult result() const;
  // Empty, or the first element of out or lse that the last `run` did not write, or a gap or guard that it did write.
  std::string sentinel_fault() const;
  void reset_outputs();

  // First query token of a request among all; `index` = batch gives the first padded token.
  int64_t first_token(int64_t index) const { return first_token_[index]; }
  // Address of the cache row that holds a valid token.
  std::byte* key(int64_t index, int64_t position, int64_t head_kv) const;
  // Address of the q row (split: the latent part) and of its RoPE part.
  std::byte* query(int64_t index, int64_t token, int64_t head) const;
  std::byte* query_rope(int64_t index, int64_t token, int64_t head) const;
  int32_t* table_row(int64_t index) const;
  int32_t* seq_lens() const { return reinterpret_cast<int32_t*>(lens_.data()); }
  // Keys that a query token sees.
  int64_t visible_keys(int64_t index, int64_t token) const;

 private:
  void fill_unowned(const Buffer& buffer, DType dtype) const;
  void make_queries();
  void make_cache();
  void make_outputs();
  Status run_on_device(const Buffer& workspace, const Context& context);

  DecodeCase case_;
  DecodeParams params_;
  std::vector<int64_t> first_token_;
  Buffer q_, q_rope_, cache_, table_, lens_, cu_, out_, lse_;
};

}  // namespace flashmla::cases
