// An attention call (decode or prefill) whose tensors lie in host memory: values checked, strides turned into byte
// offsets. What the "reference" and "cpu" back ends compute from.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/key_rows.h"
#include "flashmla/decode.h"
#include "flashmla/prefill.h"

namespace flashmla {

// One request: its query tokens and the keys that they may see.
struct HostRequest {
  int64_t first_token = 0;  // index into the query tokens of the call, 0 unless packed
  int64_t seq_q = 0;
  int64_t first_key = 0;  // index into the keys of the call, 0 when they are paged
  int64_t seq_len = 0;
};

class HostAttention {
 public:
  // kOutOfRange when a length, a used page id or a cu_seqlens is wrong; then nothing has been written.
  static Result<HostAttention> make(const DecodeParams& params, const DecodeShape& shape);
  static Result<HostAttention> make(const PrefillParams& params, const PrefillShape& shape);

  int64_t batch() const { return batch_; }
  int64_t total_q() const { return total_q_; }
  int64_t heads_q() const { return heads_q_; }
  int64_t heads_kv() const { return heads_kv_; }
  int64_t group() const { return heads_q_ / heads_kv_; }
  // A query lies in two parts, [0, first_dim) and [first_dim, qk_dim) of a key's width.
  int64_t first_dim() const { return first_dim_; }
  int64_t second_dim() const { return second_dim_; }
  int64_t value_dim() const { return value_dim_; }
  DType dtype() const { return dtype_; }
  float softmax_scale() const { return softmax_scale_; }
  const DecodeOptions& options() const { return options_; }

  HostRequest request(int64_t index) const;
  // Keys that query token `token` of the request sees, counted from key 0.
  int64_t visible_keys(const HostRequest& request, int64_t token) const;

  // Byte addresses. `index` is the request's, `token` counts within the request.
  const std::byte* query_first(int64_t index, const HostRequest& request, int64_t token, int64_t head) const;
  const std::byte* query_second(int64_t index, const HostRequest& request, int64_t token, int64_t head) const;
  std::byte* out(int64_t index, const HostRequest& request, int64_t token, int64_t head) const;
  float* lse(int64_t index, const HostRequest& request, int64_t token, int64_t head) const;  // nullptr: not wanted
  KeyRows key_rows(int64_t index, const HostRequest& request, int64_t head_kv) const;
  // Without a base where a value is the beginning of its key row (MLA).
  KeyRows value_rows(const HostRequest& request, int64_t head_kv) const;

  // Writes out = 0 and the marker of an empty row.
  void write_empty(int64_t index, const HostRequest& request, int64_t token, int64_t head) const;
  // Writes the query tokens past the last request of a packed call as empty rows.
  void write_padding() const;

 private:
  // A tensor [request, token, head, ..] or, packed, [token, head, ..]; strides in bytes.
  template <class Byte>
  struct Rows {
    Byte* base = nullptr;
    int64_t request_stride = 0;
    int64_t token_stride = 0;
    int64_t head_stride = 0;

    Byte* at(int64_t index, const HostRequest& request, int64_t token, int64_t head) const {
      return base + index * request_stride + (request.first_token + token) * token_stride + head * head_stride;
    }
  };
  template <class Byte, class View>
  static Rows<Byte> token_rows(const View& view);
  static Rows<std::byte> lse_rows(const TensorView& view);

  Status check_packed(const char* name, const int32_t* starts, const char* total, int64_t limit) const;
  Status check_paged(const DecodeParams& params, const DecodeShape& shape) const;

  int64_t batch_ = 0;
  int64_t total_q_ = 0;
  int64_t seq_q_ = 0;
  int64_t heads_q_ = 0;
  int64_t heads_kv_ = 1;
  int64_t first_dim_ = 0;
  int64_t second_dim_ = 0;
  int64_t value_dim_ = 0;
  DType dtype_ = DType::kBFloat16;
  float softmax_scale_ = 0;
  bool causal_ = false;
  DecodeOptions options_{};

  Rows<const std::byte> first_{}, second_{};
  Rows<std::byte> out_{}, lse_{};
  const int32_t* starts_q_ = nullptr;  // packed queries
  const int32_t* starts_k_ = nullptr;  // packed keys
  const int32_t* seq_lens_ = nullptr;  // paged keys
  int64_t table_stride_ = 0;
  int64_t key_head_stride_ = 0;
  int64_t value_head_stride_ = 0;
  KeyRows keys_{};  // of request 0, KV head 0
  KeyRows values_{};
};

}  // namespace flashmla
