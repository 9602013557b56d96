// Nothing is thrown across the border: exhausted memory and back ends that throw become statuses, in C++ and in C.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>

#include "flashmla/flashmla.h"
#include "small_call.h"

namespace {

// Allocations of this thread that still succeed; below 0: all do.
thread_local int allocations_left = -1;

void* allocate_or_null(std::size_t bytes) noexcept {
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* allocate(std::size_t bytes) {
  if (void* memory = allocate_or_null(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// Replaces the process's allocation, the library's included.
void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate_or_null(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate_or_null(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace flashmla::c_api_test {
namespace {

class MemoryRunsOut {
 public:
  explicit MemoryRunsOut(int after) { allocations_left = after; }
  ~MemoryRunsOut() { allocations_left = -1; }
  MemoryRunsOut(const MemoryRunsOut&) = delete;
  MemoryRunsOut& operator=(const MemoryRunsOut&) = delete;
};

// Runs `call` (which fails for its own reason, `own`, when memory suffices) with 0, 1, 2, .. allocations until it has
// enough of them. Each time before, it must say that memory ran out.
template <class Call>
void expect_out_of_memory_until_enough(const Call& call, StatusCode own) {
  ASSERT_EQ(call(), own);
  int failures = 0;
  for (int allocations = 0; allocations < 1000; ++allocations) {
    StatusCode code;
    {
      const MemoryRunsOut scope(allocations);
      code = call();
    }
    if (code == own) {
      EXPECT_GT(failures, 0) << "the call allocates nothing: the test shows nothing";
      return;
    }
    ASSERT_EQ(code, StatusCode::kOutOfMemory) << "with " << allocations << " allocations";
    ++failures;
  }
  FAIL() << "1000 allocations were not enough";
}

TEST(Border, ErrorTextsOfTheCppApiSurviveExhaustedMemory) {
  const StatusCode invalid = StatusCode::kInvalidArgument;
  const Context context{.backend = "no back end has this name"};
  expect_out_of_memory_until_enough([] { return decode_shape(DecodeParams{}).status().code(); }, invalid);
  expect_out_of_memory_until_enough([] { return decode(DecodeParams{}, Workspace{}).code(); }, invalid);
  expect_out_of_memory_until_enough([] { return prefill_shape(PrefillParams{}).status().code(); }, invalid);
  expect_out_of_memory_until_enough([] { return prefill(PrefillParams{}, Workspace{}).code(); }, invalid);
  expect_out_of_memory_until_enough([] { return workspace_bytes(PrefillShape{}).status().code(); }, invalid);
  expect_out_of_memory_until_enough([] { return explain_prefill(PrefillShape{}).status().code(); }, invalid);
  expect_out_of_memory_until_enough([] { return append_kv(AppendKvParams{}).code(); }, invalid);
  expect_out_of_memory_until_enough([] { return merge_states(MergeStatesParams{}).code(); }, invalid);
  expect_out_of_memory_until_enough([] { return register_backend(nullptr).code(); }, invalid);
  expect_out_of_memory_until_enough([] { return workspace_bytes(DecodeShape{}).status().code(); }, invalid);
  const DecodeShape shape{.batch = 1, .seq_q = 1, .total_q = 1, .heads_q = 1};
  expect_out_of_memory_until_enough([&] { return explain_decode(shape, {}, context).status().code(); },
                                    StatusCode::kNotFound);
}

TEST(Border, ErrorTextsOfTheCApiSurviveExhaustedMemory) {
  const auto decode_nothing = [] { return static_cast<StatusCode>(flashmla_decode(nullptr, nullptr, 0, nullptr)); };
  expect_out_of_memory_until_enough(decode_nothing, StatusCode::kInvalidArgument);
  SmallCall call("no back end has this name");
  auto shape = sized<flashmla_decode_shape>();
  ASSERT_EQ(call.shape_of(shape), FLASHMLA_OK);
  auto choice = sized<flashmla_kernel_choice>();
  expect_out_of_memory_until_enough(
      [&] { return static_cast<StatusCode>(flashmla_explain_decode(&shape, nullptr, &call.context, &choice)); },
      StatusCode::kNotFound);
  StatusCode code;
  {
    const MemoryRunsOut scope(0);
    code = decode_nothing();
  }
  EXPECT_EQ(code, StatusCode::kOutOfMemory);
  EXPECT_STREQ(flashmla_last_error(), "out of memory");
}

TEST(Border, DecodeItselfNeedsNoMemory) {
  for (int32_t i = 0; i < flashmla_backend_count(); ++i) {
    SCOPED_TRACE(flashmla_backend_name(i));
    SmallCall call(flashmla_backend_name(i));
    const AlignedMemory workspace = aligned_memory(1 << 20);
    ASSERT_EQ(flashmla_decode(&call.params, workspace.get(), 1 << 20, &call.context), FLASHMLA_OK)
        << flashmla_last_error();
    flashmla_status status;
    {
      const MemoryRunsOut scope(0);
      status = flashmla_decode(&call.params, workspace.get(), 1 << 20, &call.context);
    }
    EXPECT_EQ(status, FLASHMLA_OK) << flashmla_last_error();
  }
}

class ThrowingBackend final : public Backend {
 public:
  std::string_view name() const override { return "throwing"; }
  DeviceType device_type() const override { return DeviceType::kCPU; }
  int priority() const override { return -1; }
  Result<KernelChoice> choose_decode(const DecodeShape&, const DecodeOptions&, const Context&) const override {
    throw std::runtime_error("a reason of its own");
  }
  Result<int64_t> decode_workspace_bytes(const DecodeShape&, const DecodeOptions&, const Context&) const override {
    return int64_t{0};
  }
  Status decode(const DecodeParams&, const DecodeShape&, Workspace, const Context&) const override { throw 7; }
  Status append_kv(const AppendKvParams&, const Context&) const override { throw std::bad_alloc(); }
};

TEST(Border, BackendsThatThrow) {
  ASSERT_TRUE(register_backend(std::make_unique<ThrowingBackend>()).ok());
  SmallCall call("throwing");
  auto shape = sized<flashmla_decode_shape>();
  auto choice = sized<flashmla_kernel_choice>();
  ASSERT_EQ(call.shape_of(shape), FLASHMLA_OK);
  EXPECT_EQ(flashmla_explain_decode(&shape, nullptr, &call.context, &choice), FLASHMLA_INTERNAL);
  EXPECT_STREQ(flashmla_last_error(), "internal error: a reason of its own");
  EXPECT_EQ(flashmla_decode(&call.params, nullptr, 0, &call.context), FLASHMLA_INTERNAL);
  EXPECT_STREQ(flashmla_last_error(), "internal error");
}

}  // namespace
}  // namespace flashmla::c_api_test
