// A decode call whose tensors lie in host memory: values checked, strides turned into byte offsets. Shared by the
// "reference" and "cpu" back ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/key_rows.h"
#include "flashmla/decode.h"

namespace flashmla {

// One request: its query tokens and the keys that they may see.
struct HostRequest {
  int64_t first_token = 0;  // index into the query tokens of the call, 0 unless ragged
  int64_t seq_q = 0;
  int64_t seq_len = 0;
};

class HostDecode {
 public:
  // kOutOfRange when a length, a used page id or cu_seqlens_q is wrong; then nothing has been written.
  static Result<HostDecode> make(const DecodeParams& params, const DecodeShape& shape);

  const DecodeShape& shape() const { return shape_; }
  int64_t group() const { return shape_.heads_q / shape_.heads_kv; }
  float softmax_scale() const { return params_.softmax_scale; }
  const DecodeOptions& options() const { return params_.options; }
  HostRequest request(int64_t index) const;
  // Keys that query token `token` of the request sees, counted from key 0.
  int64_t visible_keys(const HostRequest& request, int64_t token) const;
  // Query tokens past the last request of a padded ragged batch: to be written as empty rows.
  int64_t first_padded_token() const;

  // Byte addresses. `token` counts within the request.
  const std::byte* q_latent(int64_t index, const HostRequest& request, int64_t token, int64_t head) const;
  const std::byte* q_rope(int64_t index, const HostRequest& request, int64_t token, int64_t head) const;
  std::byte* out(int64_t index, const HostRequest& request, int64_t token, int64_t head) const;
  float* lse(int64_t index, const HostRequest& request, int64_t token, int64_t head) const;  // nullptr: not wanted
  KeyRows key_rows(int64_t index, int64_t head_kv) const;

  float empty_lse() const;

  // Writes out = 0 and the marker for one (token, head) row.
  void write_empty(int64_t index, const HostRequest& request, int64_t token, int64_t head) const;
  // Writes the rows of every padded token.
  void write_padding() const;

 private:
  HostDecode(const DecodeParams& params, const DecodeShape& shape) : params_(params), shape_(shape) {}
  Status check_lengths() const;
  Status check_tokens() const;
  int64_t query_offset(const ConstTensorView& view, int64_t index, const HostRequest& request, int64_t token,
                       int64_t head) const;

  DecodeParams params_;
  DecodeShape shape_;
};

}  // namespace flashmla
