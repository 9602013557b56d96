#include "core/host_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/text.h"

namespace flashmla {

namespace {

// Packed keys are one page that holds every token.
constexpr int32_t kOnePage[1] = {0};
constexpr int64_t kEveryToken = std::numeric_limits<int64_t>::max();

// A size of 0 or 1 may carry any stride: 0 then, so that a loop may step past its last element. The strides of a tensor
// without elements reach no address at all, but their product may wrap.
int64_t byte_stride(const auto& view, int dimension) {
  if (view.shape[dimension] <= 1) return 0;
  return static_cast<int64_t>(static_cast<uint64_t>(view.stride[dimension]) *
                              static_cast<uint64_t>(dtype_bytes(view.dtype)));
}

const int32_t* ints(const ConstTensorView& view) { return static_cast<const int32_t*>(view.data); }

KeyRows packed_rows(const ConstTensorView& view) {
  return {.table = kOnePage,
          .base = static_cast<const std::byte*>(view.data),
          .page_stride = 0,
          .token_stride = byte_stride(view, 0),
          .page_size = kEveryToken};
}

}  // namespace

template <class Byte, class View>
HostAttention::Rows<Byte> HostAttention::token_rows(const View& view) {
  const int token = view.ndim - 3;  // the dimension of tokens: 0 when packed, 1 after the request's
  return {static_cast<Byte*>(view.data), token == 0 ? 0 : byte_stride(view, 0), byte_stride(view, token),
          byte_stride(view, token + 1)};
}

// [h_q, total_q] when packed, else [b, h_q, s_q].
HostAttention::Rows<std::byte> HostAttention::lse_rows(const TensorView& view) {
  if (!view.given()) return {};
  const int head = view.ndim - 2;
  return {static_cast<std::byte*>(view.data), head == 0 ? 0 : byte_stride(view, 0), byte_stride(view, head + 1),
          byte_stride(view, head)};
}

Result<HostAttention> HostAttention::make(const DecodeParams& params, const DecodeShape& shape) {
  HostAttention call;
  call.batch_ = shape.batch;
  call.total_q_ = shape.total_q;
  call.seq_q_ = shape.seq_q;
  call.heads_q_ = shape.heads_q;
  call.heads_kv_ = shape.heads_kv;
  call.first_dim_ = call.value_dim_ = shape.latent_dim;
  call.second_dim_ = shape.rope_dim;
  call.dtype_ = shape.dtype;
  call.softmax_scale_ = params.softmax_scale;
  call.causal_ = shape.causal;
  call.options_ = params.options;
  call.first_ = token_rows<const std::byte>(params.q);
  call.second_ = call.first_;
  if (params.q_rope.given() && shape.rope_dim > 0) {  // an empty tensor's strides mean nothing
    call.second_ = token_rows<const std::byte>(params.q_rope);
  } else if (call.second_.base != nullptr) {
    call.second_.base += shape.latent_dim * dtype_bytes(shape.dtype);
  }
  call.out_ = token_rows<std::byte>(params.out);
  call.lse_ = lse_rows(params.lse);
  call.starts_q_ = shape.ragged_q ? ints(params.cu_seqlens_q) : nullptr;
  call.seq_lens_ = ints(params.seq_lens);
  call.keys_ = {.table = ints(params.page_table),
                .base = static_cast<const std::byte*>(params.kv_cache.data),
                .page_stride = byte_stride(params.kv_cache, 0),
                .token_stride = byte_stride(params.kv_cache, 1),
                .page_size = shape.page_size};
  call.table_stride_ = params.page_table.stride[0];
  call.key_head_stride_ = byte_stride(params.kv_cache, 2);
  if (shape.ragged_q)
    FLASHMLA_RETURN_IF_ERROR(call.check_packed("cu_seqlens_q", call.starts_q_, "total_q", shape.total_q));
  FLASHMLA_RETURN_IF_ERROR(call.check_paged(params, shape));
  return call;
}

Result<HostAttention> HostAttention::make(const PrefillParams& params, const PrefillShape& shape) {
  HostAttention call;
  call.batch_ = shape.batch;
  call.total_q_ = shape.total_q;
  call.heads_q_ = shape.heads_q;
  call.heads_kv_ = shape.heads_kv;
  call.first_dim_ = shape.qk_dim;
  call.value_dim_ = shape.v_dim;
  call.dtype_ = shape.dtype;
  call.softmax_scale_ = params.softmax_scale;
  call.causal_ = shape.causal;
  call.options_.empty_lse = params.empty_lse;
  call.first_ = call.second_ = token_rows<const std::byte>(params.q);
  call.out_ = token_rows<std::byte>(params.out);
  call.lse_ = lse_rows(params.lse);
  call.starts_q_ = ints(params.cu_seqlens_q);
  call.starts_k_ = ints(params.cu_seqlens_k);
  call.keys_ = packed_rows(params.k);
  call.values_ = packed_rows(params.v);
  call.key_head_stride_ = byte_stride(params.k, 1);
  call.value_head_stride_ = byte_stride(params.v, 1);
  FLASHMLA_RETURN_IF_ERROR(call.check_packed("cu_seqlens_q", call.starts_q_, "total_q", shape.total_q));
  FLASHMLA_RETURN_IF_ERROR(call.check_packed("cu_seqlens_k", call.starts_k_, "total_k", shape.total_k));
  return call;
}

Status HostAttention::check_packed(const char* name, const int32_t* starts, const char* total, int64_t limit) const {
  int64_t previous = 0;
  for (int64_t i = 0; i <= batch_; ++i) {
    const int64_t start = starts[i];
    if ((i == 0 && start != 0) || start < previous || start > limit) {
      return out_of_range(concat(name, "[", i, "]"), start,
                          concat("0 first, then never below the entry before, at most ", total, " = ", limit));
    }
    previous = start;
  }
  return {};
}

Status HostAttention::check_paged(const DecodeParams& params, const DecodeShape& shape) const {
  const int64_t capacity = shape.table_width * shape.page_size;
  for (int64_t i = 0; i < shape.batch; ++i) {
    const int64_t length = seq_lens_[i];
    if (length < 0 || length > capacity) {
      return out_of_range(
          concat("seq_lens[", i, "]"), length,
          concat("0 .. ", capacity, " (page_table width ", shape.table_width, " * page ", shape.page_size, ")"));
    }
    const int64_t used = (length + shape.page_size - 1) / shape.page_size;
    for (int64_t p = 0; p < used; ++p) {
      const int64_t page = ints(params.page_table)[i * table_stride_ + p];
      if (page < 0 || page >= shape.pages) {
        return out_of_range(concat("page_table[", i, "][", p, "]"), page,
                            concat("0 .. ", shape.pages - 1, " (kv_cache has ", shape.pages, " pages)"));
      }
    }
  }
  return {};
}

HostRequest HostAttention::request(int64_t index) const {
  HostRequest request;
  request.seq_q = seq_q_;
  if (starts_q_ != nullptr) {
    request.first_token = starts_q_[index];
    request.seq_q = starts_q_[index + 1] - request.first_token;
  }
  if (starts_k_ != nullptr) {
    request.first_key = starts_k_[index];
    request.seq_len = starts_k_[index + 1] - request.first_key;
  } else {
    request.seq_len = seq_lens_[index];
  }
  return request;
}

int64_t HostAttention::visible_keys(const HostRequest& request, int64_t token) const {
  if (!causal_) return request.seq_len;
  return std::clamp<int64_t>(request.seq_len - request.seq_q + token + 1, 0, request.seq_len);
}

const std::byte* HostAttention::query_first(int64_t index, const HostRequest& request, int64_t token,
                                            int64_t head) const {
  return first_.at(index, request, token, head);
}

const std::byte* HostAttention::query_second(int64_t index, const HostRequest& request, int64_t token,
                                             int64_t head) const {
  return second_.at(index, request, token, head);
}

std::byte* HostAttention::out(int64_t index, const HostRequest& request, int64_t token, int64_t head) const {
  return out_.at(index, request, token, head);
}

float* HostAttention::lse(int64_t index, const HostRequest& request, int64_t token, int64_t head) const {
  return lse_.base == nullptr ? nullptr : reinterpret_cast<float*>(lse_.at(index, request, token, head));
}

KeyRows HostAttention::key_rows(int64_t index, const HostRequest& request, int64_t head_kv) const {
  KeyRows rows = keys_;
  rows.base += head_kv * key_head_stride_ + request.first_key * keys_.token_stride;
  rows.table += index * table_stride_;
  return rows;
}

KeyRows HostAttention::value_rows(const HostRequest& request, int64_t head_kv) const {
  if (starts_k_ == nullptr) return {};
  KeyRows rows = values_;
  rows.base += head_kv * value_head_stride_ + request.first_key * values_.token_stride;
  return rows;
}

void HostAttention::write_empty(int64_t index, const HostRequest& request, int64_t token, int64_t head) const {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::memset(out(index, request, token, head), 0, static_cast<size_t>(value_dim_ * dtype_bytes(dtype_)));
  if (float* marker = lse(index, request, token, head)) {
    *marker = options_.empty_lse == EmptyLse::kPlusInf ? kInf : -kInf;
  }
}

void HostAttention::write_padding() const {
  if (starts_q_ == nullptr) return;
  const HostRequest all{};
  for (int64_t token = starts_q_[batch_]; token < total_q_; ++token) {
    for (int64_t head = 0; head < heads_q_; ++head) write_empty(0, all, token, head);
  }
}

}  // namespace flashmla
