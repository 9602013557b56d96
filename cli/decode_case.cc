#include "decode_case.h"

#include <fmt/format.h>

#include <fstream>
#include <limits>

#include "exit_code.h"
#include "table.h"

namespace flashmla::cli {

namespace {

// Of the free memory: the oracle keeps copies of its own (results in fp32, one request's keys).
constexpr double kUsableShare = 0.5;

void check_memory(const cases::DecodeCase& decode_case) {
  const double need = tensor_bytes(decode_case);
  const double usable = kUsableShare * free_memory_bytes();
  if (need <= usable) return;
  throw UsageError(
      fmt::format("shape: got one of {} (query, cache and output); want at most {}, half of this machine's "
                  "free memory",
                  bytes_text(need), bytes_text(usable)));
}

}  // namespace

cases::DecodeCase described_case(const ShapeFlags& flags) {
  const std::vector<int64_t> lengths = request_lengths(flags);
  const DecodeShape shape = checked_shape(flags, lengths);
  cases::DecodeCase decode_case;
  decode_case.name = shape_text(shape, lengths);
  decode_case.requests.resize(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    decode_case.requests[i].seq_len = static_cast<int32_t>(lengths[i]);
    decode_case.requests[i].id = static_cast<int64_t>(i);
  }
  decode_case.seq_q = flags.seq_q;
  decode_case.heads_q = flags.heads_q;
  decode_case.heads_kv = flags.heads_kv;
  decode_case.latent_dim = flags.latent_dim;
  decode_case.rope_dim = flags.rope_dim;
  decode_case.page_size = flags.page_size;
  decode_case.dtype = shape.dtype;
  decode_case.causal = flags.causal;
  decode_case.options = run_options(flags);
  decode_case.seed = static_cast<uint64_t>(flags.seed);
  decode_case.page_seed = decode_case.seed;
  return decode_case;
}

cases::DecodeCase decode_case_of(const ShapeFlags& flags) {
  cases::DecodeCase decode_case = described_case(flags);
  check_memory(decode_case);
  return decode_case;
}

std::vector<int64_t> lengths_of(const cases::DecodeCase& decode_case) {
  std::vector<int64_t> lengths;
  for (const cases::Request& request : decode_case.requests) lengths.push_back(request.seq_len);
  return lengths;
}

double tensor_bytes(const cases::DecodeCase& c) {
  const auto page = static_cast<double>(c.page_size);
  const auto width = static_cast<double>(c.latent_dim + c.rope_dim);
  double tokens = static_cast<double>(c.spare_pages) * page;
  for (const int64_t length : lengths_of(c)) {
    const int64_t pages = (length + c.page_size - 1) / c.page_size;
    tokens += static_cast<double>(pages) * page;
  }
  const double rows = static_cast<double>(c.batch()) * static_cast<double>(c.seq_q) * static_cast<double>(c.heads_q);
  const double elements =
      tokens * static_cast<double>(c.heads_kv) * width + rows * (width + static_cast<double>(c.latent_dim));
  return elements * static_cast<double>(dtype_bytes(c.dtype));
}

double free_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  double kib = 0;
  std::string unit;
  while (file >> name >> kib >> unit) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<double>::infinity();  // unknown: let the allocation itself answer
}

KernelChoice kernel_of(const DecodeShape& shape, const DecodeOptions& options, const Context& context) {
  return value_or_usage_error(explain_decode(shape, options, context));
}

}  // namespace flashmla::cli
