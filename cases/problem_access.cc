// Where the elements of a DecodeProblem lie, and what a call left in them.
#include <algorithm>
#include <cstring>
#include <sstream>

#include "cases/problem.h"

namespace flashmla::cases {

namespace {

template <class Void>
Void* element(const BasicTensorView<Void>& view, const std::array<int64_t, kMaxDims>& index) {
  int64_t offset = 0;
  for (int d = 0; d < view.ndim; ++d) offset += index[d] * view.stride[d];
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  return static_cast<Byte*>(view.data) + offset * dtype_bytes(view.dtype);
}

// Row of query token `token` of the whole call, in a query-shaped view.
template <class Void>
std::byte* token_row(const BasicTensorView<Void>& view, int64_t token, int64_t head) {
  const Void* row = view.ndim == 3 ? element(view, {token, head, 0, 0})
                                   : element(view, {token / view.shape[1], token % view.shape[1], head, 0});
  return static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(row)));
}

float* token_lse(const TensorView& view, int64_t token, int64_t head) {
  return static_cast<float*>(view.ndim == 2 ? element(view, {head, token, 0, 0})
                                            : element(view, {token / view.shape[2], head, token % view.shape[2], 0}));
}

// Compares which elements of a buffer were written with which should have been.
class Written {
 public:
  Written(const char* name, const Buffer& buffer, DType dtype)
      : name_(name),
        buffer_(buffer),
        dtype_(dtype),
        owned_(static_cast<size_t>(buffer.bytes() / dtype_bytes(dtype)), 0) {}

  void own(const void* first, int64_t count) {
    const int64_t index = (static_cast<const std::byte*>(first) - buffer_.data()) / dtype_bytes(dtype_);
    std::fill_n(owned_.begin() + index, count, uint8_t{1});
  }

  std::string fault() const {
    for (size_t i = 0; i < owned_.size(); ++i) {
      const bool untouched = is_sentinel(buffer_.data(), dtype_, static_cast<int64_t>(i));
      if (untouched != (owned_[i] != 0)) continue;
      std::ostringstream text;
      text << name_ << ": element " << i << " of the buffer "
           << (untouched ? "was not written" : "lies outside the tensor and was written");
      return text.str();
    }
    return {};
  }

 private:
  const char* name_;
  const Buffer& buffer_;
  DType dtype_;
  std::vector<uint8_t> owned_;
};

}  // namespace

float DecodeResult::out_at(int64_t token, int64_t head, int64_t column) const {
  return load_element(out.data(), dtype, (token * heads_q + head) * latent_dim + column);
}

DecodeResult DecodeResult::tokens(int64_t begin, int64_t end) const {
  DecodeResult part{dtype, heads_q, latent_dim, {}, {}};
  const int64_t bytes = heads_q * latent_dim * dtype_bytes(dtype);
  part.out.assign(out.begin() + begin * bytes, out.begin() + end * bytes);
  if (!lse.empty()) part.lse.assign(lse.begin() + begin * heads_q, lse.begin() + end * heads_q);
  return part;
}

bool DecodeResult::operator==(const DecodeResult& other) const {
  return out == other.out && lse.size() == other.lse.size() &&
         std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0;
}

DecodeResult DecodeProblem::result() const {
  const int64_t row_bytes = case_.latent_dim * dtype_bytes(case_.dtype);
  const int64_t total = case_.total_q();
  DecodeResult result{case_.dtype, case_.heads_q, case_.latent_dim, {}, {}};
  result.out.resize(static_cast<size_t>(total * case_.heads_q * row_bytes));
  if (case_.want_lse) result.lse.resize(static_cast<size_t>(total * case_.heads_q));
  for (int64_t token = 0; token < total; ++token) {
    for (int64_t head = 0; head < case_.heads_q; ++head) {
      const int64_t row = token * case_.heads_q + head;
      std::memcpy(result.out.data() + row * row_bytes, token_row(params_.out, token, head),
                  static_cast<size_t>(row_bytes));
      if (case_.want_lse) result.lse[row] = *token_lse(params_.lse, token, head);
    }
  }
  return result;
}

std::string DecodeProblem::sentinel_fault() const {
  Written out("out", out_, case_.dtype);
  Written lse("lse", lse_, DType::kFloat32);
  for (int64_t token = 0; token < case_.total_q(); ++token) {
    for (int64_t head = 0; head < case_.heads_q; ++head) {
      out.own(token_row(params_.out, token, head), case_.latent_dim);
      if (case_.want_lse) lse.own(token_lse(params_.lse, token, head), 1);
    }
  }
  const std::string fault = out.fault();
  return fault.empty() ? lse.fault() : fault;
}

std::byte* DecodeProblem::key(int64_t index, int64_t position, int64_t head_kv) const {
  const int64_t page = table_row(index)[position / case_.page_size];
  return static_cast<std::byte*>(
      const_cast<void*>(element(params_.kv_cache, {page, position % case_.page_size, head_kv, 0})));
}

std::byte* DecodeProblem::query(int64_t index, int64_t token, int64_t head) const {
  return token_row(params_.q, first_token_[index] + token, head);
}

std::byte* DecodeProblem::query_rope(int64_t index, int64_t token, int64_t head) const {
  if (case_.split_q) return token_row(params_.q_rope, first_token_[index] + token, head);
  return query(index, token, head) + case_.latent_dim * dtype_bytes(case_.dtype);
}

int32_t* DecodeProblem::table_row(int64_t index) const {
  return reinterpret_cast<int32_t*>(table_.data()) + index * params_.page_table.stride[0];
}

int64_t DecodeProblem::visible_keys(int64_t index, int64_t token) const {
  const int64_t length = case_.requests[index].seq_len;
  return case_.causal ? std::clamp<int64_t>(length - case_.tokens_q(index) + token + 1, 0, length) : length;
}

}  // namespace flashmla::cases
