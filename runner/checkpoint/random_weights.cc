// Weights of the right shapes and sizes for measurements, straight into memory: no file, and for int8 no bf16 copy.
#include <algorithm>
#include <array>
#include <cmath>
#include <new>

#include "flashmla/cpu.h"
#include "runner/checkpoint/load_progress.h"
#include "runner/checkpoint/machine_memory.h"
#include "runner/checkpoint/tensor_list.h"
#include "runner/checkpoint/weight_arena.h"
#include "runner/checkpoint/weights.h"
#include "runner/error_text.h"
#include "runner/float_bits.h"
#include "runner/split_mix.h"

namespace flashmla::runner {

namespace {

// Values are drawn from a table of the normal distribution's quantiles: a load for each where a formula costs some
// twenty operations, and exactly as many different values as 8 or 16 bits can tell apart.
constexpr size_t kQuantiles = 4096;

// Quantile p of the standard normal distribution, by bisection of its distribution function.
double normal_quantile(double p) {
  double low = -8;
  double high = 8;
  while (high - low > 1e-12) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return low;
}

const std::array<double, kQuantiles>& quantiles() {
  static const std::array<double, kQuantiles> kTable = [] {
    std::array<double, kQuantiles> table;
    for (size_t i = 0; i < kQuantiles; ++i) table[i] = normal_quantile((static_cast<double>(i) + 0.5) / kQuantiles);
    return table;
  }();
  return kTable;
}

template <class Value>
void fill_row(const std::array<Value, kQuantiles>& table, uint64_t stream, int64_t cols, Value* to) {
  for (int64_t c = 0; c < cols; stream += kSplitMixStep) {
    uint64_t bits = split_mix(stream);
    for (const int64_t end = std::min(c + 5, cols); c < end; ++c) {  // 12 bits each
      to[c] = table[bits % kQuantiles];
      bits /= kQuantiles;
    }
  }
}

template <class Value>
void fill_rows(const std::array<Value, kQuantiles>& table, uint64_t key, const TensorSlot& slot, Value* to,
               int32_t threads) {
  run_workers(threads, [&](int32_t worker) {
    for (int64_t r = slot.rows * worker / threads; r < slot.rows * (worker + 1) / threads; ++r) {
      fill_row(table, split_mix(key + static_cast<uint64_t>(r)), slot.cols, to + r * slot.cols);
    }
  });
}

class RandomFiller {
 public:
  RandomFiller(uint64_t seed, WeightPolicy policy, int32_t threads)
      : key_(split_mix(seed)), policy_(policy), threads_(threads) {
    const double most = quantiles().back();
    for (size_t i = 0; i < kQuantiles; ++i) {
      int8_table_[i] = static_cast<int8_t>(std::lround(quantiles()[i] / most * 127));
    }
  }

  void fill(const TensorSlot& slot) {
    key_ = split_mix(key_ + kSplitMixStep);  // a stream of its own for each tensor
    if (slot.vector != nullptr) return fill_vector(slot);
    const bool int8 = policy_ == WeightPolicy::kInt8 && role_info(slot.role).projection;
    *slot.matrix = int8 ? int8_matrix(slot) : bf16_matrix(slot);
  }

 private:
  void fill_vector(const TensorSlot& slot) const {
    const Part part = role_info(slot.role).part;
    slot.vector->assign(static_cast<size_t>(slot.rows), part == Part::kNorms ? 1.0F : 0.0F);
    if (part == Part::kNorms) return;
    // Biases of attention and router: small, but enough to move a choice.
    for (size_t i = 0; i < slot.vector->size(); ++i) {
      (*slot.vector)[i] = static_cast<float>(0.01 * quantiles()[split_mix(key_ + i) % kQuantiles]);
    }
  }

  Matrix bf16_matrix(const TensorSlot& slot) {
    if (slot.cols != table_cols_) {
      table_cols_ = slot.cols;
      const double deviation = 1 / std::sqrt(static_cast<double>(slot.cols));
      for (size_t i = 0; i < kQuantiles; ++i) {
        bf16_table_[i] = float_to_bf16(static_cast<float>(quantiles()[i] * deviation));
      }
    }
    const std::shared_ptr<std::byte> values = arena_.allocate(slot.elements() * element_bytes(WeightType::kBF16));
    fill_rows(bf16_table_, key_, slot, reinterpret_cast<uint16_t*>(values.get()), threads_);
    return {.rows = slot.rows, .cols = slot.cols, .type = WeightType::kBF16, .data = values.get(), .owner = values};
  }

  Matrix int8_matrix(const TensorSlot& slot) {
    const int64_t scale_offset = (slot.elements() + 63) / 64 * 64;
    const std::shared_ptr<std::byte> values =
        arena_.allocate(scale_offset + slot.rows * static_cast<int64_t>(sizeof(float)));
    fill_rows(int8_table_, key_, slot, reinterpret_cast<int8_t*>(values.get()), threads_);
    auto* scales = reinterpret_cast<float*>(values.get() + scale_offset);
    const double scale = quantiles().back() / 127 / std::sqrt(static_cast<double>(slot.cols));
    std::fill_n(scales, slot.rows, static_cast<float>(scale));
    return {.rows = slot.rows,
            .cols = slot.cols,
            .type = WeightType::kInt8,
            .data = values.get(),
            .row_scale = scales,
            .owner = values};
  }

  uint64_t key_;
  WeightPolicy policy_;
  int32_t threads_;
  WeightArena arena_;
  std::array<int8_t, kQuantiles> int8_table_;
  std::array<uint16_t, kQuantiles> bf16_table_;  // for rows of table_cols_
  int64_t table_cols_ = 0;
};

int64_t needed_bytes(const std::vector<TensorSlot>& slots, WeightPolicy policy) {
  int64_t bytes = 0;
  for (const TensorSlot& slot : slots) {
    const bool int8 = policy == WeightPolicy::kInt8 && role_info(slot.role).projection;
    bytes += slot.elements() * (slot.vector != nullptr ? 4 : int8 ? 1 : 2);
  }
  return bytes;
}

// Linux promises more memory than it has and ends the process when it is used: asked before.
Status check_memory(int64_t needed, WeightPolicy policy) {
  const int64_t available = available_memory();
  if (needed <= available) return {};
  return {StatusCode::kOutOfMemory, "random weights: they " + memory_text(needed, available) +
                                        (policy == WeightPolicy::kInt8 ? "" : "; int8 needs half")};
}

}  // namespace

Result<Weights> random_weights(const ModelConfig& config, uint64_t seed, const LoadOptions& options) {
  try {
    Weights weights;
    const std::vector<TensorSlot> slots = list_tensors(config, weights);
    const int64_t needed = needed_bytes(slots, options.policy);
    if (Status status = check_memory(needed, options.policy); !status.ok()) return status;
    const int32_t threads = options.threads > 0 ? options.threads : cpu_info().threads;
    RandomFiller filler(seed, options.policy, threads);
    LoadProgress progress(options.progress, needed);
    for (const TensorSlot& slot : slots) {
      filler.fill(slot);
      progress.add(slot.elements());
    }
    if (config.tie_embeddings) tie_head(weights, options.policy, threads);
    progress.finish();
    return weights;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "random weights: more memory than this machine gives");
  }
}

}  // namespace flashmla::runner
