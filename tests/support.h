// What the C++ tests share: which back ends and instruction sets exist here, and checks with readable failures.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "cases/compare.h"
#include "cases/problem.h"
#ifdef FLASHMLA_HAS_CUDA
#include "cases/problem_gpu.h"
#endif
#include "cases/shapes.h"
#include "flashmla/flashmla.h"

// How failures and test lists print parameters.
namespace flashmla {
inline void PrintTo(DType dtype, std::ostream* out) { *out << dtype_name(dtype); }
namespace cases {
inline void PrintTo(const DecodeResult& result, std::ostream* out) {
  *out << "out of " << result.out.size() << " bytes and " << result.lse.size() << " lse";
}
inline void PrintTo(const DecodeCase& decode_case, std::ostream* out) { *out << describe(decode_case); }
}  // namespace cases
}  // namespace flashmla

namespace flashmla::tests {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Target {
  std::string name;
  std::string isa;  // owns what context.isa views
  std::string backend;
  Device device{};
  std::string kernel{};  // forced; owns what context.kernel views
  Context context() const { return {.device = device, .backend = backend, .isa = isa, .kernel = kernel}; }
  // For operations on host memory.
  Context host_context() const { return device.type == DeviceType::kCPU ? context() : Context{}; }
  // Back end "cuda" has no fp32, its tuned kernels one pair of widths, and those for Hopper
  // one KV head and pages of a multiple of 8; everything else runs everywhere.
  bool takes(const cases::DecodeCase& c) const {
    if (device.type == DeviceType::kCPU) return true;
    const bool tuned = !kernel.empty() && !kernel.ends_with("_any");
    if (kernel.starts_with("hopper") && (c.heads_kv != 1 || c.page_size % 8 != 0)) return false;
    return c.dtype != DType::kFloat32 && (!tuned || (c.latent_dim == 512 && c.rope_dim == 64));
  }
};

// "reference", and "cpu" with every instruction set that this machine has.
inline const std::vector<Target>& host_targets() {
  static const std::vector<Target> targets = [] {
    std::vector<Target> list = {{"reference", "", "reference"}};
    for (const std::string& isa : cpu_info().isas) list.push_back({"cpu " + isa, isa, "cpu"});
    return list;
  }();
  return targets;
}

// "cuda" with the kernel of its choice, where a GPU is.
inline const std::vector<Target>& gpu_targets() {
  static const std::vector<Target> targets = [] {
    std::vector<Target> list;
#ifdef FLASHMLA_HAS_CUDA
    if (cases::has_gpu()) list.push_back({"cuda", "", "cuda", {DeviceType::kCUDA}});
#endif
    return list;
  }();
  return targets;
}

inline const std::vector<Target>& all_targets() {
  static const std::vector<Target> targets = [] {
    std::vector<Target> list = host_targets();
    list.insert(list.end(), gpu_targets().begin(), gpu_targets().end());
    return list;
  }();
  return targets;
}

// Names in back end "cuda"'s table, of each dtype (select_test.cc compares them).
inline constexpr std::array kCudaKernels = {
    "hopper_r8",    "hopper_r16",        "hopper_r32",        "hopper_r64",       "portable_r16",
    "portable_r32", "portable_r16_163k", "portable_r32_163k", "portable_r16_99k", "portable_any"};

// As all_targets(), and every kernel of "cuda" forced.
inline std::vector<Target> targets_of(const cases::DecodeCase& decode_case) {
  std::vector<Target> list = all_targets();
  for (const Target& gpu : gpu_targets()) {
    for (const char* kernel : kCudaKernels) {
      list.push_back(gpu);
      list.back().kernel = kernel;
      list.back().name += std::string(" ") + kernel;
    }
  }
  std::erase_if(list, [&](const Target& target) { return !target.takes(decode_case); });
  return list;
}

// The back ends alone, with their default settings.
inline const std::vector<Target>& all_backends() {
  static const std::vector<Target> targets = {{"reference", "", "reference"}, {"cpu", "", "cpu"}};
  return targets;
}

// FLASHMLA_TEST_FULL=1 selects the full sweeps.
inline bool full_tests() {
  const char* value = std::getenv("FLASHMLA_TEST_FULL");
  return value != nullptr && std::string_view(value) == "1";
}

// Runs the call and returns its outputs; a failure of the call is a failure of the test.
inline cases::DecodeResult run(cases::DecodeProblem& problem, const Context& context) {
  const Status status = problem.run(context);
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(problem.sentinel_fault(), "");
  return problem.result();
}

inline cases::DecodeResult run(const cases::DecodeCase& decode_case, const Context& context) {
  cases::DecodeProblem problem(decode_case);
  return run(problem, context);
}

// Every target within the contract's bound.
inline void expect_right(const cases::DecodeCase& decode_case) {
  cases::DecodeProblem problem(decode_case);
  const cases::DecodeOracle oracle = cases::make_oracle(problem);
  for (const Target& target : targets_of(decode_case)) {
    SCOPED_TRACE(target.name + ", " + cases::describe(decode_case));
    const Status status = problem.run(target.context());
    ASSERT_TRUE(status.ok()) << status.text();
    const cases::Comparison comparison = cases::compare(problem, oracle);
    EXPECT_TRUE(comparison.ok) << comparison.text;
  }
}

// The code, and every part somewhere in the text.
inline void expect_error(const Status& status, StatusCode code, const std::vector<std::string_view>& parts) {
  EXPECT_EQ(status_code_name(status.code()), std::string(status_code_name(code))) << status.text();
  for (std::string_view part : parts) {
    EXPECT_NE(status.text().find(part), std::string::npos) << "'" << part << "' is missing in: " << status.text();
  }
}

inline std::string dtype_test_name(const testing::TestParamInfo<DType>& info) { return dtype_name(info.param); }

inline cases::DecodeCase small_case() {
  cases::DecodeCase c;
  c.requests = cases::make_requests(3, 150, cases::Lengths::kVaried, 5);
  c.heads_q = 4;
  c.page_size = 16;
  return c;
}

// Requests of these lengths, with ids 0, 1, ...
inline std::vector<cases::Request> requests_of(std::initializer_list<int32_t> lengths) {
  std::vector<cases::Request> requests;
  for (int32_t length : lengths) requests.push_back({.seq_len = length, .id = static_cast<int64_t>(requests.size())});
  return requests;
}

}  // namespace flashmla::tests
