#include "runner/checkpoint/weights.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "flashmla/cpu.h"
#include "runner/checkpoint/checkpoint.h"
#include "runner/checkpoint/fp8_blocks.h"
#include "runner/checkpoint/load_progress.h"
#include "runner/checkpoint/tensor_list.h"
#include "runner/checkpoint/weight_arena.h"
#include "runner/checkpoint/weight_source.h"
#include "runner/error_text.h"
#include "runner/float_bits.h"

namespace flashmla::runner {

namespace {

float read_float(const std::byte* from, StoredType type) {
  uint32_t bits = 0;
  std::memcpy(&bits, from, static_cast<size_t>(stored_bytes(type)));
  if (type == StoredType::kF32) return std::bit_cast<float>(bits);
  return type == StoredType::kBF16 ? bf16_to_float(static_cast<uint16_t>(bits))
                                   : f16_to_float(static_cast<uint16_t>(bits));
}

// Elements [first, first + count) of a plain tensor, at any alignment.
std::vector<float> read_floats(const StoredTensor& stored, int64_t first, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  const int64_t size = stored_bytes(stored.type);
  const std::byte* from = stored.data.data() + first * size;
  for (float& value : values) {
    value = read_float(from, stored.type);
    from += size;
  }
  return values;
}

WeightType weight_type(StoredType type) {
  if (type == StoredType::kF32) return WeightType::kF32;
  return type == StoredType::kF16 ? WeightType::kF16 : WeightType::kBF16;
}

std::span<const std::byte> bytes_of(const Matrix& matrix) {
  const int64_t bytes = matrix.rows * matrix.cols * element_bytes(matrix.type);
  return {static_cast<const std::byte*>(matrix.data), static_cast<size_t>(bytes)};
}

class SlotFiller {
 public:
  SlotFiller(WeightPolicy policy, int32_t threads) : policy_(policy), threads_(threads) {}

  void fill(const TensorSlot& slot, const WeightSource& source) {
    if (source.tensor == nullptr) return;  // optional
    const StoredTensor& stored = source.tensor->stored;
    if (slot.vector != nullptr) {
      *slot.vector = read_floats(stored, 0, slot.rows);
      return;
    }
    const bool int8 = policy_ == WeightPolicy::kInt8 && role_info(slot.role).projection;
    Matrix matrix =
        stored.type == StoredType::kF8E4M3 ? fp8_matrix(slot, source, int8) : plain_matrix(slot, source, int8);
    if (!int8) {
      *slot.matrix = std::move(matrix);
      return;
    }
    const bool in_file = matrix.owner == source.tensor->file;
    if (in_file) MappedFile::will_need(bytes_of(matrix));
    *slot.matrix = quantize_int8(matrix, threads_);
    // Without this a machine that holds the int8 weights, but not the file as well, would start to swap.
    if (in_file) MappedFile::forget(bytes_of(matrix));
  }

 private:
  // What is quantised next is thrown away at once, and so kept out of the arena.
  std::shared_ptr<std::byte> allocate(int64_t bytes, bool for_a_moment) {
    return for_a_moment ? std::static_pointer_cast<std::byte>(allocate_weights(bytes)) : arena_.allocate(bytes);
  }

  // Where the file's bytes serve as they are, the matrix points into the mapped file.
  Matrix plain_matrix(const TensorSlot& slot, const WeightSource& source, bool for_a_moment) {
    const StoredTensor& stored = source.tensor->stored;
    const WeightType type = weight_type(stored.type);
    const int64_t row_bytes = slot.cols * element_bytes(type);
    const std::byte* data = stored.data.data() + (source.index * source.matrix_rows + source.first_row) * row_bytes;
    Matrix matrix{.rows = slot.rows, .cols = slot.cols, .type = type, .data = data, .owner = source.tensor->file};
    if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element_bytes(type)) == 0) return matrix;
    const std::shared_ptr<std::byte> copy = allocate(slot.rows * row_bytes, for_a_moment);
    std::memcpy(copy.get(), data, static_cast<size_t>(slot.rows * row_bytes));
    matrix.data = copy.get();
    matrix.owner = copy;
    return matrix;
  }

  Matrix fp8_matrix(const TensorSlot& slot, const WeightSource& source, bool for_a_moment) {
    const int64_t scales = fp8_blocks(source.matrix_rows) * fp8_blocks(slot.cols);
    const std::vector<float> scale = read_floats(source.scales->stored, source.index * scales, scales);
    const std::shared_ptr<std::byte> values =
        allocate(slot.elements() * element_bytes(WeightType::kBF16), for_a_moment);
    const Fp8Rows rows{.data = source.tensor->stored.data.data() + source.index * source.matrix_rows * slot.cols,
                       .scales = scale.data(),
                       .cols = slot.cols,
                       .first_row = source.first_row,
                       .rows = slot.rows};
    dequantize_fp8(rows, reinterpret_cast<uint16_t*>(values.get()), threads_);
    return {.rows = slot.rows, .cols = slot.cols, .type = WeightType::kBF16, .data = values.get(), .owner = values};
  }

  WeightPolicy policy_;
  int32_t threads_;
  WeightArena arena_;
};

int64_t all_elements(const std::vector<TensorSlot>& slots) {
  int64_t elements = 0;
  for (const TensorSlot& slot : slots) elements += slot.elements();
  return elements;
}

Result<Weights> load(const std::string& folder, const ModelConfig& config, const LoadOptions& options) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(folder);
  if (!checkpoint.ok()) return checkpoint.status();
  Weights weights;
  const std::vector<TensorSlot> slots = list_tensors(config, weights);
  SourceFinder finder(checkpoint.value(), config);
  std::vector<WeightSource> sources;
  sources.reserve(slots.size());
  for (const TensorSlot& slot : slots) sources.push_back(finder.find(slot));
  if (Status status = finder.status(folder); !status.ok()) return status;
  finder.warn_unused(options.warning);
  const int32_t threads = options.threads > 0 ? options.threads : cpu_info().threads;
  LoadProgress progress(options.progress, all_elements(slots));
  SlotFiller filler(options.policy, threads);
  for (size_t i = 0; i < slots.size(); ++i) {
    filler.fill(slots[i], sources[i]);
    progress.add(slots[i].elements());
  }
  if (config.tie_embeddings) tie_head(weights, options.policy, threads);
  checkpoint.value().read_ahead();
  progress.finish();
  return weights;
}

}  // namespace

void tie_head(Weights& weights, WeightPolicy policy, int32_t threads) {
  weights.head = policy == WeightPolicy::kInt8 ? quantize_int8(weights.embedding, threads) : weights.embedding;
}

Result<Weights> load_weights(const std::string& folder, const ModelConfig& config, const LoadOptions& options) {
  try {
    return load(folder, config, options);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, folder + ": its weights need more memory than this machine gives" +
                                                (options.policy == WeightPolicy::kInt8 ? "" : "; int8 needs less"));
  }
}

}  // namespace flashmla::runner
