// The safetensors file format: u64 header length (little-endian), a JSON header, then the tensors' bytes, row-major and
// little-endian. Format: github.com/huggingface/safetensors. Nothing in a file is trusted: every length, offset and
// shape is checked before memory is looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "flashmla/status.h"
#include "runner/checkpoint/mapped_file.h"

namespace flashmla::runner {

enum class StoredType {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
  kC64,
};

int64_t stored_bytes(StoredType type);     // of one element
const char* stored_name(StoredType type);  // as in the header: "BF16"

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // at any alignment: the format promises none

  int64_t elements() const { return static_cast<int64_t>(data.size()) / stored_bytes(type); }
};

// The format's own bound.
inline constexpr uint64_t kMostHeaderBytes = 100'000'000;

// The tensors of a file that lies in `file`, in the order of their data. Refused: a header that is no JSON object of
// tensors, names given twice, data outside the file, data that overlap or leave holes, sizes that do not fit dtype and
// shape. `label` begins the error's text.
Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> file, const std::string& label);

struct SafetensorsFile {
  std::shared_ptr<const MappedFile> file;  // keeps the tensors' data alive
  std::vector<StoredTensor> tensors;
};
Result<SafetensorsFile> open_safetensors(const std::string& path);

}  // namespace flashmla::runner
