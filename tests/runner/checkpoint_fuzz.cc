#include "checkpoint_fuzz.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "arena.h"
#include "checkpoint_files.h"
#include "runner/checkpoint/checkpoint.h"
#include "runner/checkpoint/model_config.h"
#include "runner/checkpoint/model_size.h"
#include "runner/checkpoint/safetensors.h"

namespace flashmla::fuzz {

namespace {

using runner::StoredTensor;

constexpr int64_t kArenaBytes = int64_t{1} << 14;
constexpr const char* kTypes[] = {"F32", "BF16", "F16", "U8", "I64", "F8_E4M3", "BOOL", "C64"};
constexpr int64_t kTypeBytes[] = {4, 2, 2, 1, 8, 1, 1, 8};
constexpr const char* kNames[] = {"a", "b", "c", "model.norm.weight", "", "\\u0000", "\\\"", "\xc3\xa9"};
// Pieces that JSON readers and size checks trip over.
constexpr const char* kPieces[] = {"null",
                                   "-1",
                                   "0",
                                   "1",
                                   "1e999",
                                   "18446744073709551615",
                                   "18446744073709551616",
                                   "9223372036854775807",
                                   "4294967296",
                                   "-9223372036854775808",
                                   "0.5",
                                   "[",
                                   "]",
                                   "{",
                                   "}",
                                   "[]",
                                   "{}",
                                   "\"\"",
                                   "\"F32\"",
                                   "\"dtype\"",
                                   "true",
                                   ",",
                                   ":",
                                   "\"",
                                   "\\",
                                   "\xff",
                                   " ",
                                   "[[[[[[[[",
                                   "\"__metadata__\"",
                                   "\"yarn\"",
                                   "\"type\"",
                                   "\"../x.safetensors\""};

// Puts a piece in the place of up to eight bytes, or cuts some out, or changes one.
void damage_text(Bytes& bytes, std::string& text) {
  const size_t at = static_cast<size_t>(bytes.below(static_cast<int64_t>(text.size()) + 1));
  const auto length = static_cast<size_t>(bytes.below(9));
  switch (bytes.below(3)) {
    case 0: text.replace(at, length, bytes.pick(kPieces)); break;
    case 1: text.erase(at, length); break;
    default:
      if (at < text.size()) text[at] = static_cast<char>(bytes.below(256));
  }
}

// The value of one key gives way to a piece: what stays is JSON, so that the checks behind the reader are reached.
void damage_value(Bytes& bytes, std::string& text) {
  std::vector<size_t> colons;
  for (size_t at = text.find("\":"); at != std::string::npos; at = text.find("\":", at + 1)) colons.push_back(at + 2);
  if (colons.empty()) return;
  const size_t begin = colons[static_cast<size_t>(bytes.below(static_cast<int64_t>(colons.size())))];
  const size_t end = std::min(text.find_first_of(",}]", begin), text.size());
  text.replace(begin, end - begin, bytes.pick(kPieces));
}

struct File {
  std::string bytes;
  bool damaged = false;
};

File any_file(Bytes& bytes) {
  std::string header = "{";
  std::string data;
  File file;
  const int64_t count = bytes.below(5);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t type = bytes.below(8);
    const int64_t rows = bytes.below(4);
    const int64_t cols = bytes.between(1, 5);
    int64_t begin = static_cast<int64_t>(data.size());
    data.append(static_cast<size_t>(rows * cols * kTypeBytes[type]), static_cast<char>('0' + i));
    int64_t end = static_cast<int64_t>(data.size());
    int64_t name = i;
    if (bytes.one_in(24)) {
      bool damaged = true;
      switch (bytes.below(4)) {
        case 0: begin += bytes.between(1, 9); break;
        case 1: end -= bytes.between(1, 9); break;
        case 2:
          std::swap(begin, end);
          damaged = begin != end;
          break;
        default:
          name = i == 0 ? 1 : i - 1;
          damaged = i > 0 || count > 1;
          break;
      }
      file.damaged = file.damaged || damaged;
    }
    header += std::string(i == 0 ? "\"" : ",\"") + kNames[name] + "\":{\"dtype\":\"" + kTypes[type] + "\",\"shape\":[" +
              std::to_string(rows) + "," + std::to_string(cols) + "],\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(end) + "]}";
  }
  header += '}';
  header.append(static_cast<size_t>(bytes.below(9)), ' ');
  for (int64_t damages = bytes.below(2) * bytes.below(3); damages > 0; --damages) {
    bytes.below(2) == 0 ? damage_text(bytes, header) : damage_value(bytes, header);
    file.damaged = true;
  }
  file.bytes = runner::raw_safetensors(header, data);
  if (bytes.one_in(16)) {
    file.damaged = true;
    switch (bytes.below(3)) {
      case 0: file.bytes.resize(static_cast<size_t>(bytes.below(static_cast<int64_t>(file.bytes.size())))); break;
      case 1: file.bytes += "trailing"; break;
      default: file.bytes[static_cast<size_t>(bytes.below(8))] ^= static_cast<char>(1 << bytes.below(8)); break;
    }
  }
  return file;
}

// What every accepted file must satisfy, computed another way than the parser does.
std::string check_tensors(const std::vector<StoredTensor>& tensors, std::span<const std::byte> file) {
  std::vector<char> covered(file.size(), 0);
  std::set<std::string> names;
  for (const StoredTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) return "a name twice";
    double elements = 1;
    for (int64_t size : tensor.shape) elements *= static_cast<double>(size);
    if (elements * static_cast<double>(runner::stored_bytes(tensor.type)) != static_cast<double>(tensor.data.size())) {
      return "bytes that do not fit the shape";
    }
    for (const std::byte& byte : tensor.data) {
      const auto at = static_cast<size_t>(&byte - file.data());
      if (&byte < file.data() || at >= file.size()) return "data outside the file";
      if (covered[at]++ != 0) return "overlapping data";
    }
  }
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  const auto uncovered = std::count(covered.begin(), covered.end(), 0);
  return static_cast<uint64_t>(uncovered) == 8 + header ? "" : "bytes that belong to no tensor";
}

}  // namespace

std::string fuzz_safetensors(Bytes& bytes, Counts& counts) {
  static const Arena arena(kArenaBytes);
  const File file = any_file(bytes);
  std::byte* place = arena.place(static_cast<int64_t>(file.bytes.size()), 1, true);
  if (place == nullptr) return "";
  std::memcpy(place, file.bytes.data(), file.bytes.size());
  const std::span<const std::byte> memory(place, file.bytes.size());
  const Result<std::vector<StoredTensor>> tensors = runner::parse_safetensors(memory, "file");
  if (!tensors.ok()) {
    if (!tensors.status().text().starts_with("file: ")) return "an error without its file";
    return file.damaged ? "" : "refused a right file: " + tensors.status().text();
  }
  ++counts.accepted;
  return check_tensors(tensors.value(), memory);
}

std::string fuzz_config(Bytes& bytes, Counts& counts) {
  static const std::string texts[] = {runner::tiny_v2_config(), runner::tiny_v3_config(), runner::v2_lite_config(),
                                      runner::v3_config()};
  std::string text = texts[bytes.below(4)];
  for (int64_t damages = bytes.between(1, 3); damages > 0; --damages) {
    bytes.one_in(4) ? damage_text(bytes, text) : damage_value(bytes, text);
  }
  const Result<runner::ModelConfig> config = runner::parse_model_config(text);
  if (!config.ok()) return config.status().text().starts_with("config.json: ") ? "" : "an error without its file";
  ++counts.accepted;
  const runner::ModelConfig& c = config.value();
  if (!std::isfinite(c.attention_scale()) || c.attention_scale() <= 0) return "a scale that is not positive: " + text;
  if (!std::isfinite(c.rope_amplitude()) || c.rope_amplitude() <= 0) return "no amplitude: " + text;
  for (double frequency : c.rope_frequencies()) {
    if (!std::isfinite(frequency) || frequency < 0) return "no frequency: " + text;
  }
  if (c.layers * (c.routed_experts + 1) > 1000) return "";
  const runner::ModelSize size = runner::model_size(c);
  ++counts.run;
  return size.all.parameters > 0 && size.all.stored_bytes > 0 && size.active_parameters <= size.all.parameters
             ? ""
             : "sizes that overflow: " + text;
}

std::string fuzz_shard_index(Bytes& bytes, Counts& counts) {
  std::string text =
      R"({"metadata":{"total_size":12},"weight_map":{"a":"x.safetensors","b":"y.safetensors","c":"x.safetensors"}})";
  for (int64_t damages = bytes.between(1, 3); damages > 0; --damages) {
    bytes.one_in(3) ? damage_value(bytes, text) : damage_text(bytes, text);
  }
  const auto index = runner::parse_shard_index(text, "index: ");
  if (!index.ok()) return index.status().text().starts_with("index: ") ? "" : "an error without its file";
  ++counts.accepted;
  for (const auto& [name, file] : index.value()) {
    const bool plain = file.find('/') == std::string::npos && file.find('\0') == std::string::npos;
    if (!plain || !file.ends_with(".safetensors") || file.front() == '.') return "a file outside the folder: " + file;
  }
  return index.value().empty() ? "an empty index" : "";
}

}  // namespace flashmla::fuzz
