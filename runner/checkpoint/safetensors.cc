#include "runner/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runner/checkpoint/safetensors_header.h"
#include "runner/error_text.h"

namespace flashmla::runner {

namespace {

constexpr uint64_t kLengthBytes = 8;

struct TypeInfo {
  const char* name;
  int64_t bytes;
};
// In the order of StoredType.
constexpr std::array<TypeInfo, 17> kTypes = {{{"BOOL", 1},
                                              {"U8", 1},
                                              {"I8", 1},
                                              {"F8_E5M2", 1},
                                              {"F8_E4M3", 1},
                                              {"F8_E8M0", 1},
                                              {"I16", 2},
                                              {"U16", 2},
                                              {"F16", 2},
                                              {"BF16", 2},
                                              {"I32", 4},
                                              {"U32", 4},
                                              {"F32", 4},
                                              {"F64", 8},
                                              {"I64", 8},
                                              {"U64", 8},
                                              {"C64", 8}}};
static_assert(kTypes.size() == static_cast<size_t>(StoredType::kC64) + 1);

std::string supported_types() {
  std::vector<std::string> names;
  names.reserve(kTypes.size());
  for (const TypeInfo& type : kTypes) names.emplace_back(type.name);
  return list_text(names, names.size());
}

Result<std::string_view> header_text(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    return invalid("got " + std::to_string(file.size()) +
                   " bytes; want a safetensors file, whose first 8 bytes are "
                   "the header's length");
  }
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(file[i]) << 8 * i;
  const uint64_t most = std::min<uint64_t>(kMostHeaderBytes, file.size() - kLengthBytes);
  if (length > most) {
    return invalid("header length: got " + std::to_string(length) + "; want at most " + std::to_string(most) +
                   (most < kMostHeaderBytes ? " (the rest of the file)" : "") + ": cut short, or no safetensors file");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (text.empty() || text.front() != '{') return invalid("header: want a JSON object that starts with '{'");
  return text;
}

// One entry against the `data` behind the header.
Result<StoredTensor> place_tensor(HeaderEntry& entry, std::span<const std::byte> data) {
  const auto problem = [&entry](const std::string& text) {
    return invalid("tensor " + in_quotes(entry.name) + ": " + text);
  };
  const auto type = std::ranges::find_if(kTypes, [&](const TypeInfo& info) { return entry.dtype == info.name; });
  if (type == kTypes.end())
    return problem("dtype: got " + in_quotes(entry.dtype) + "; supported: " + supported_types());
  StoredTensor tensor;
  tensor.type = static_cast<StoredType>(type - kTypes.begin());
  int64_t bytes = type->bytes;
  bool overflow = false;
  for (uint64_t size : entry.shape) {
    // Checked factor by factor: a later 0 does not excuse an earlier overflow, as in the format's own reader.
    overflow = overflow || size > static_cast<uint64_t>(INT64_MAX) ||
               __builtin_mul_overflow(bytes, static_cast<int64_t>(size), &bytes);
    tensor.shape.push_back(static_cast<int64_t>(size));
  }
  if (overflow) return problem("shape: more bytes than 2^63");
  const uint64_t begin = entry.data_offsets[0];
  const uint64_t end = entry.data_offsets[1];
  if (end > data.size()) {
    return problem("its data end at byte " + std::to_string(end) + " of " + std::to_string(data.size()) +
                   " behind the header: the file is cut short");
  }
  if (begin > end || end - begin != static_cast<uint64_t>(bytes)) {
    return problem("data_offsets: got " + std::to_string(begin) + " to " + std::to_string(end) + "; want " +
                   std::to_string(bytes) + " bytes for " + shape_text(tensor.shape) + " of " + type->name);
  }
  tensor.data = data.subspan(begin, end - begin);
  tensor.name = std::move(entry.name);
  return tensor;
}

Status check_names(std::vector<HeaderEntry>& entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const HeaderEntry& entry : entries) names.emplace_back(entry.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return {};
  return invalid("tensor " + in_quotes(std::string(*twice)) + ": the name is given twice");
}

// Sorted tensors must cover the data without overlap or hole.
Status check_cover(const std::vector<StoredTensor>& tensors, std::span<const std::byte> data) {
  const std::byte* reached = data.data();
  for (const StoredTensor& tensor : tensors) {
    const std::byte* begin = tensor.data.data();
    if (begin != reached) {
      return invalid("tensor " + in_quotes(tensor.name) + ": its data start at byte " +
                     std::to_string(begin - data.data()) + (begin < reached ? ", inside another tensor's" : "") +
                     "; want byte " + std::to_string(reached - data.data()) + ", where the tensor before ends");
    }
    reached = begin + tensor.data.size();
  }
  const int64_t rest = data.data() + data.size() - reached;
  return rest == 0 ? Status() : invalid(std::to_string(rest) + " bytes at the end belong to no tensor");
}

Result<std::vector<StoredTensor>> parse(std::span<const std::byte> file) {
  const Result<std::string_view> text = header_text(file);
  if (!text.ok()) return text.status();
  Result<std::vector<HeaderEntry>> entries = parse_safetensors_header(text.value());
  if (!entries.ok()) return entries.status();
  if (Status status = check_names(entries.value()); !status.ok()) return status;
  const std::span<const std::byte> data = file.subspan(kLengthBytes + text.value().size());
  std::vector<StoredTensor> tensors;
  tensors.reserve(entries.value().size());
  for (HeaderEntry& entry : entries.value()) {
    Result<StoredTensor> tensor = place_tensor(entry, data);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(std::move(tensor).value());
  }
  std::ranges::sort(tensors, [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.data.data(), a.data.size()) < std::pair(b.data.data(), b.data.size());
  });
  if (Status status = check_cover(tensors, data); !status.ok()) return status;
  return tensors;
}

}  // namespace

int64_t stored_bytes(StoredType type) { return kTypes[static_cast<size_t>(type)].bytes; }
const char* stored_name(StoredType type) { return kTypes[static_cast<size_t>(type)].name; }

Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> file, const std::string& label) {
  Result<std::vector<StoredTensor>> tensors = parse(file);
  if (tensors.ok()) return tensors;
  return Status(tensors.status().code(), label + ": " + tensors.status().text());
}

Result<SafetensorsFile> open_safetensors(const std::string& path) {
  Result<std::shared_ptr<const MappedFile>> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  Result<std::vector<StoredTensor>> tensors = parse_safetensors(file.value()->bytes(), path);
  if (!tensors.ok()) return tensors.status();
  return SafetensorsFile{std::move(file).value(), std::move(tensors).value()};
}

}  // namespace flashmla::runner
