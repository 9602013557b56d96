#include "core/host_decode.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/text.h"

namespace flashmla {

namespace {

int32_t int_at(const ConstTensorView& view, int64_t index) { return static_cast<const int32_t*>(view.data)[index]; }

}  // namespace

Result<HostDecode> HostDecode::make(const DecodeParams& params, const DecodeShape& shape) {
  HostDecode call(params, shape);
  FLASHMLA_RETURN_IF_ERROR(call.check_tokens());
  FLASHMLA_RETURN_IF_ERROR(call.check_lengths());
  return call;
}

Status HostDecode::check_tokens() const {
  if (!shape_.ragged_q) return {};
  int64_t previous = 0;
  for (int64_t i = 0; i <= shape_.batch; ++i) {
    const int64_t start = int_at(params_.cu_seqlens_q, i);
    if ((i == 0 && start != 0) || start < previous || start > shape_.total_q) {
      return out_of_range(concat("cu_seqlens_q[", i, "]"), start,
                          concat("0 first, then never below the entry before, at most total_q = ", shape_.total_q));
    }
    previous = start;
  }
  return {};
}

Status HostDecode::check_lengths() const {
  const int64_t capacity = shape_.table_width * shape_.page_size;
  const auto* table = static_cast<const int32_t*>(params_.page_table.data);
  for (int64_t i = 0; i < shape_.batch; ++i) {
    const int64_t length = int_at(params_.seq_lens, i);
    if (length < 0 || length > capacity) {
      return out_of_range(
          concat("seq_lens[", i, "]"), length,
          concat("0 .. ", capacity, " (page_table width ", shape_.table_width, " * page ", shape_.page_size, ")"));
    }
    const int64_t used = (length + shape_.page_size - 1) / shape_.page_size;
    for (int64_t p = 0; p < used; ++p) {
      const int64_t page = table[i * params_.page_table.stride[0] + p];
      if (page < 0 || page >= shape_.pages) {
        return out_of_range(concat("page_table[", i, "][", p, "]"), page,
                            concat("0 .. ", shape_.pages - 1, " (kv_cache has ", shape_.pages, " pages)"));
      }
    }
  }
  return {};
}

HostRequest HostDecode::request(int64_t index) const {
  HostRequest request;
  request.seq_len = int_at(params_.seq_lens, index);
  if (shape_.ragged_q) {
    request.first_token = int_at(params_.cu_seqlens_q, index);
    request.seq_q = int_at(params_.cu_seqlens_q, index + 1) - request.first_token;
  } else {
    request.seq_q = shape_.seq_q;
  }
  return request;
}

int64_t HostDecode::visible_keys(const HostRequest& request, int64_t token) const {
  if (!shape_.causal) return request.seq_len;
  return std::clamp<int64_t>(request.seq_len - request.seq_q + token + 1, 0, request.seq_len);
}

int64_t HostDecode::first_padded_token() const {
  return shape_.ragged_q ? int_at(params_.cu_seqlens_q, shape_.batch) : shape_.total_q;
}

int64_t HostDecode::query_offset(const ConstTensorView& view, int64_t index, const HostRequest& request, int64_t token,
                                 int64_t head) const {
  const int64_t elements = shape_.ragged_q ? (request.first_token + token) * view.stride[0] + head * view.stride[1]
                                           : index * view.stride[0] + token * view.stride[1] + head * view.stride[2];
  return elements * dtype_bytes(view.dtype);
}

const std::byte* HostDecode::q_latent(int64_t index, const HostRequest& request, int64_t token, int64_t head) const {
  return static_cast<const std::byte*>(params_.q.data) + query_offset(params_.q, index, request, token, head);
}

const std::byte* HostDecode::q_rope(int64_t index, const HostRequest& request, int64_t token, int64_t head) const {
  if (!params_.q_rope.given()) {
    return q_latent(index, request, token, head) + shape_.latent_dim * dtype_bytes(shape_.dtype);
  }
  return static_cast<const std::byte*>(params_.q_rope.data) + query_offset(params_.q_rope, index, request, token, head);
}

std::byte* HostDecode::out(int64_t index, const HostRequest& request, int64_t token, int64_t head) const {
  return static_cast<std::byte*>(params_.out.data) + query_offset(params_.out, index, request, token, head);
}

float* HostDecode::lse(int64_t index, const HostRequest& request, int64_t token, int64_t head) const {
  const TensorView& view = params_.lse;
  if (!view.given()) return nullptr;
  const int64_t offset = shape_.ragged_q ? head * view.stride[0] + (request.first_token + token) * view.stride[1]
                                         : index * view.stride[0] + head * view.stride[1] + token * view.stride[2];
  return static_cast<float*>(view.data) + offset;
}

KeyRows HostDecode::key_rows(int64_t index, int64_t head_kv) const {
  const ConstTensorView& cache = params_.kv_cache;
  const int64_t bytes = dtype_bytes(cache.dtype);
  return {.table = static_cast<const int32_t*>(params_.page_table.data) + index * params_.page_table.stride[0],
          .base = static_cast<const std::byte*>(cache.data) + head_kv * cache.stride[2] * bytes,
          .page_stride = cache.stride[0] * bytes,
          .token_stride = cache.stride[1] * bytes,
          .page_size = shape_.page_size};
}

float HostDecode::empty_lse() const {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  return params_.options.empty_lse == EmptyLse::kPlusInf ? kInf : -kInf;
}

void HostDecode::write_empty(int64_t index, const HostRequest& request, int64_t token, int64_t head) const {
  std::memset(out(index, request, token, head), 0, static_cast<size_t>(shape_.latent_dim * dtype_bytes(shape_.dtype)));
  if (float* row_lse = lse(index, request, token, head)) *row_lse = empty_lse();
}

void HostDecode::write_padding() const {
  const HostRequest all{0, shape_.total_q, 0};
  for (int64_t token = first_padded_token(); token < shape_.total_q; ++token) {
    for (int64_t head = 0; head < shape_.heads_q; ++head) write_empty(0, all, token, head);
  }
}

}  // namespace flashmla
