// Callers that are older or newer than the library, and struct sizes that nobody set.
#include "c_api/sized_struct.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "small_call.h"

namespace flashmla::c_api_test {
namespace {

// Three generations of one struct; the library knows the middle one.
struct Old {
  size_t struct_size;
  int64_t a;
};
struct Known {
  size_t struct_size;
  int64_t a;
  int64_t b;
};
struct New {
  size_t struct_size;
  int64_t a;
  int64_t b;
  int64_t c;
};

template <class From>
const Known* as_known(const From& from) {
  return reinterpret_cast<const Known*>(&from);
}

TEST(SizedStruct, OlderCallersGetDefaults) {
  // what lies behind the older struct is not the library's to read
  struct {
    Old old{sizeof(Old), 5};
    int64_t behind = 99;
  } memory;
  Known known{0, 1, 1};
  ASSERT_TRUE(read_struct("params", as_known(memory.old), sizeof(Old), known).ok());
  EXPECT_EQ(known.a, 5);
  EXPECT_EQ(known.b, 0);
}

TEST(SizedStruct, NewerCallersMustLeaveUnknownFieldsZero) {
  New caller{sizeof(New), 5, 6, 0};
  Known known{};
  ASSERT_TRUE(read_struct("params", as_known(caller), sizeof(Old), known).ok());
  EXPECT_EQ(known.a, 5);
  EXPECT_EQ(known.b, 6);
  caller.c = int64_t{1} << 56;  // only the last byte is not 0
  const Status status = read_struct("params", as_known(caller), sizeof(Old), known);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.text().find("params: got struct_size 32 with a non-zero byte at offset 31"), std::string::npos)
      << status.text();
}

TEST(SizedStruct, ResultsFitTheCallersSize) {
  struct {
    Old old{sizeof(Old), 0};
    int64_t behind = 99;
  } older;
  const Known result{sizeof(Known), 5, 6};
  ASSERT_TRUE(write_struct("shape", result, sizeof(Old), reinterpret_cast<Known*>(&older.old)).ok());
  EXPECT_EQ(older.old.struct_size, sizeof(Old));
  EXPECT_EQ(older.old.a, 5);
  EXPECT_EQ(older.behind, 99);
  New newer{sizeof(New), -1, -1, -1};
  ASSERT_TRUE(write_struct("shape", result, sizeof(Old), reinterpret_cast<Known*>(&newer)).ok());
  EXPECT_EQ(newer.struct_size, sizeof(New));
  EXPECT_EQ(newer.b, 6);
  EXPECT_EQ(newer.c, 0);
}

template <class Struct>
struct LargerThan {
  Struct known{};
  int64_t later[2] = {0, 0};
};

constexpr size_t kFirstDecodeParams = 680;  // before the struct grew

TEST(CApiStructSize, ZeroTooSmallOddAndAbsurdSizesAreRefused) {
  SmallCall call;
  for (const size_t size :
       {size_t{0}, size_t{8}, kFirstDecodeParams - 8, sizeof(flashmla_decode_params) + 4, size_t{5000}, ~size_t{0}}) {
    SCOPED_TRACE(size);
    call.params.struct_size = size;
    EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
    const std::string text = flashmla_last_error();
    EXPECT_EQ(text.rfind("params: got struct_size " + std::to_string(size) + "; want its sizeof (680 ", 0), 0U) << text;
  }
}

TEST(CApiStructSize, EveryStructChecksItsSize) {
  SmallCall call;
  auto shape = sized<flashmla_decode_shape>();
  auto options = sized<flashmla_decode_options>();
  auto choice = sized<flashmla_kernel_choice>();
  ASSERT_EQ(call.shape_of(shape), FLASHMLA_OK);
  int64_t bytes = 0;
  const auto refused = [](flashmla_status status, const std::string& argument) {
    EXPECT_EQ(status, FLASHMLA_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(flashmla_last_error()).rfind(argument + ": got struct_size 0", 0), 0U)
        << flashmla_last_error();
  };
  options.struct_size = 0;
  refused(flashmla_decode_workspace_bytes(&shape, &options, nullptr, &bytes), "options");
  choice.struct_size = 0;
  refused(flashmla_explain_decode(&shape, nullptr, &call.context, &choice), "choice");
  call.context.struct_size = 0;
  refused(flashmla_decode_workspace_bytes(&shape, nullptr, &call.context, &bytes), "context");
  shape.struct_size = 0;
  refused(flashmla_decode_workspace_bytes(&shape, nullptr, nullptr, &bytes), "shape");
  refused(call.shape_of(shape), "shape");
  const flashmla_prefill_params prefill{};
  refused(flashmla_prefill(&prefill, nullptr, 0, nullptr), "params");
  const flashmla_prefill_shape prefill_shape{};
  refused(flashmla_prefill_workspace_bytes(&prefill_shape, nullptr, &bytes), "shape");
  const flashmla_append_kv_params append{};
  refused(flashmla_append_kv(&append, nullptr), "params");
  const flashmla_merge_states_params merge{};
  refused(flashmla_merge_states(&merge, nullptr), "params");
}

TEST(CApiStructSize, NewerCallersRunWhenTheirLaterFieldsAreZero) {
  SmallCall call;
  LargerThan<flashmla_decode_params> larger{call.params};
  larger.known.struct_size = sizeof larger;
  const AlignedMemory workspace = aligned_memory(1 << 16);
  EXPECT_EQ(flashmla_decode(&larger.known, workspace.get(), 1 << 16, &call.context), FLASHMLA_OK)
      << flashmla_last_error();
  larger.later[1] = 1;
  EXPECT_EQ(flashmla_decode(&larger.known, workspace.get(), 1 << 16, &call.context), FLASHMLA_UNSUPPORTED);
  const std::string text = flashmla_last_error();
  EXPECT_NE(text.find("struct_size 776 with a non-zero byte at offset 768"), std::string::npos) << text;
  EXPECT_NE(text.find("fields up to byte 760"), std::string::npos) << text;
}

TEST(CApiStructSize, OlderCallersHaveNoStatus) {
  SmallCall call;
  int32_t code = -99;
  call.params.status = tensor(&code, FLASHMLA_INT32, {1});
  EXPECT_EQ(call.decode(), FLASHMLA_UNSUPPORTED);
  EXPECT_EQ(std::string(flashmla_last_error()).rfind("status: got a tensor in a call on the CPU", 0), 0U);
  call.params.struct_size = kFirstDecodeParams;  // what lies behind is not the library's to read
  EXPECT_EQ(call.decode(), FLASHMLA_OK) << flashmla_last_error();
  EXPECT_EQ(code, -99);
}

}  // namespace
}  // namespace flashmla::c_api_test
