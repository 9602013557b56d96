// A decode call on device memory for the benches: tensors, and the comparison with the device oracle.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cases/naive_decode.h"
#include "core/float16.h"
#include "flashmla/flashmla.h"
#include "gpu_timing.h"

namespace flashmla::bench {

// Lengths and heads to time, with what is aimed at.
struct Case {
  std::string name;
  int64_t heads_q = 1;
  std::vector<int32_t> lengths;
  double target_us = 0;
  double peer_us = 0;  // best peer on an H200, docs/kernels/decode-hopper.md
  int64_t seq_q = 1;
};

// Element type, and tokens of a page; 0: a page holds a request's whole sequence, as a contiguous cache does.
struct CacheForm {
  DType dtype = DType::kBFloat16;
  int64_t page = 64;
};

// Device tensors of a case, which outlives it: several page tables over one pool, so that the keys of a call are not in
// L2.
class Problem {
 public:
  explicit Problem(const Case& c, const CacheForm& form = {}) : case_(c), dtype_(form.dtype), page_(form.page) {
    if (page_ == 0) page_ = (*std::max_element(c.lengths.begin(), c.lengths.end()) + 63) / 64 * 64;
    const auto batch = static_cast<int64_t>(c.lengths.size());
    int64_t pages = 0;
    for (int32_t length : c.lengths) {
      width_ = std::max<int64_t>(width_, (length + page_ - 1) / page_);
      pages += (length + page_ - 1) / page_;
    }
    copies_ = static_cast<int>(std::min<int64_t>(64, kRotationBytes / (pages * page_ * kWidth * 2) + 2));
    pool_ = allocate(copies_ * pages * page_ * kWidth * 2);
    fill_normal(pool_, dtype_, copies_ * pages * page_ * kWidth, 1);
    q_ = allocate(batch * c.seq_q * c.heads_q * kWidth * 2);
    fill_normal(q_, dtype_, batch * c.seq_q * c.heads_q * kWidth, 2);
    out_bytes_ = batch * c.seq_q * c.heads_q * kLatent * 2;
    out_ = allocate(out_bytes_);
    lse_ = allocate(batch * c.seq_q * c.heads_q * 4);
    lens_ = upload(c.lengths);
    std::vector<int32_t> order(static_cast<size_t>(copies_ * pages));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    uint64_t state = 7;
    for (size_t i = order.size(); i > 1; --i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i - 1], order[(state >> 33) % i]);
    }
    size_t next = 0;
    for (int copy = 0; copy < copies_; ++copy) {
      std::vector<int32_t> table(static_cast<size_t>(batch * width_), -1);
      for (int64_t i = 0; i < batch; ++i) {
        for (int64_t p = 0; p < (c.lengths[i] + page_ - 1) / page_; ++p) table[i * width_ + p] = order[next++];
      }
      tables_.push_back(upload(table));
    }
    pages_ = copies_ * pages;
    const Result<DecodeShape> shape = decode_shape(params(0));
    if (!shape.ok()) throw std::runtime_error(shape.status().text());
    shape_ = shape.value();
  }
  ~Problem() {
    for (void* memory : memory_) cudaFree(memory);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  void prepare(const Context& context) {
    const Result<int64_t> bytes = workspace_bytes(shape_, {}, context);
    if (!bytes.ok()) throw std::runtime_error(bytes.status().text());
    workspace_ = {allocate(bytes.value()), bytes.value()};
    check(cudaMemset(workspace_.data, 0xff, static_cast<size_t>(bytes.value())), "poison");
  }

  DecodeParams params(int copy) const {
    const auto batch = static_cast<int64_t>(case_.lengths.size());
    DecodeParams p;
    p.q = ConstTensorView::contiguous(q_, dtype_, {batch, case_.seq_q, case_.heads_q, kWidth});
    p.kv_cache = ConstTensorView::contiguous(pool_, dtype_, {pages_, page_, 1, kWidth});
    p.page_table =
        ConstTensorView::contiguous(tables_[static_cast<size_t>(copy % copies_)], DType::kInt32, {batch, width_});
    p.seq_lens = ConstTensorView::contiguous(lens_, DType::kInt32, {batch});
    p.out = TensorView::contiguous(out_, dtype_, {batch, case_.seq_q, case_.heads_q, kLatent});
    p.lse = TensorView::contiguous(lse_, DType::kFloat32, {batch, case_.heads_q, case_.seq_q});
    p.causal = case_.seq_q > 1;
    p.softmax_scale = 0.0416667f;  // 576^-0.5
    return p;
  }
  const DecodeShape& shape() const { return shape_; }
  Workspace workspace() const { return workspace_; }
  int64_t page_size() const { return page_; }
  int64_t workspace_size() const { return workspace_.bytes; }

  // ||out - oracle|| / ||oracle||, and the largest error of lse; NaN never passes.
  std::pair<double, double> error(const Context& context) {
    check(cudaMemset(out_, 0xff, static_cast<size_t>(out_bytes_)), "poison");
    const Status status = decode(params(0), workspace_, context);
    if (!status.ok()) throw std::runtime_error(status.text());
    check(cudaDeviceSynchronize(), "decode");
    const int64_t rows = shape_.total_q * shape_.heads_q;
    auto* want = static_cast<double*>(allocate(rows * kLatent * 8));
    auto* want_lse = static_cast<double*>(allocate(rows * 8));
    const Status naive = cases::naive_decode(params(0), want, want_lse);
    if (!naive.ok()) throw std::runtime_error(naive.text());
    const auto got = download<uint16_t>(out_, rows * kLatent);
    const auto reference = download<double>(want, rows * kLatent);
    const auto lse = download<float>(lse_, rows);
    const auto lse_reference = download<double>(want_lse, rows);
    double difference = 0, size = 0, lse_error = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const float value = dtype_ == DType::kBFloat16 ? to_float(BFloat16{got[i]}) : to_float(Float16{got[i]});
      const double error = static_cast<double>(value) - reference[i];
      difference += error * error;
      size += reference[i] * reference[i];
    }
    for (int64_t row = 0; row < rows; ++row) {  // lse is [b, h, s_q], the oracle's [b, s_q, h]
      const int64_t head = row % case_.heads_q, token = row / case_.heads_q;
      const int64_t at = (token / case_.seq_q * case_.heads_q + head) * case_.seq_q + token % case_.seq_q;
      lse_error =
          std::max(lse_error, std::fabs(lse[static_cast<size_t>(at)] - lse_reference[static_cast<size_t>(row)]));
      if (std::isnan(lse[static_cast<size_t>(at)])) lse_error = NAN;
    }
    return {std::sqrt(difference / size), lse_error};
  }

 private:
  static constexpr int64_t kLatent = 512, kWidth = 576;

  void* allocate(int64_t bytes) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))), "device memory");
    memory_.push_back(memory);
    return memory;
  }
  void* upload(const std::vector<int32_t>& values) {
    void* memory = allocate(static_cast<int64_t>(values.size() * 4));
    check(cudaMemcpy(memory, values.data(), values.size() * 4, cudaMemcpyHostToDevice), "copy");
    return memory;
  }
  template <class T>
  static std::vector<T> download(const void* memory, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    check(cudaMemcpy(values.data(), memory, values.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return values;
  }

  const Case& case_;
  DType dtype_;
  int64_t page_;
  std::vector<void*> memory_;
  std::vector<void*> tables_;
  void *pool_ = nullptr, *q_ = nullptr, *out_ = nullptr, *lse_ = nullptr, *lens_ = nullptr;
  int64_t out_bytes_ = 0, width_ = 0, pages_ = 0;
  int copies_ = 1;
  DecodeShape shape_;
  Workspace workspace_;
};

}  // namespace flashmla::bench
