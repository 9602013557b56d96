// Version, names, back ends and views of the C API.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "flashmla/flashmla.h"
#include "small_call.h"

namespace flashmla::c_api_test {
namespace {

TEST(CApiInfo, VersionsAgree) {
  const std::string text = std::to_string(FLASHMLA_VERSION_MAJOR) + "." + std::to_string(FLASHMLA_VERSION_MINOR) + "." +
                           std::to_string(FLASHMLA_VERSION_PATCH);
  EXPECT_EQ(text, FLASHMLA_VERSION_STRING);
  EXPECT_EQ(flashmla_version(), text);
  const int32_t number = flashmla_version_number();
  EXPECT_EQ(number / 1000000, FLASHMLA_VERSION_MAJOR);
  EXPECT_EQ(number / 1000 % 1000, FLASHMLA_VERSION_MINOR);
  EXPECT_EQ(number % 1000, FLASHMLA_VERSION_PATCH);
}

TEST(CApiInfo, StatusNames) {
  EXPECT_STREQ(flashmla_status_name(FLASHMLA_OK), "ok");
  EXPECT_STREQ(flashmla_status_name(FLASHMLA_WORKSPACE_TOO_SMALL), "workspace too small");
  EXPECT_STREQ(flashmla_status_name(FLASHMLA_INTERNAL + 1), "unknown");
  EXPECT_STREQ(flashmla_status_name(-1), "unknown");
}

TEST(CApiInfo, BackendsAreTheRegisteredOnes) {
  const auto list = backends();
  ASSERT_EQ(flashmla_backend_count(), static_cast<int32_t>(list.size()));
  for (int32_t i = 0; i < flashmla_backend_count(); ++i) EXPECT_EQ(flashmla_backend_name(i), list[i]->name());
  EXPECT_EQ(flashmla_backend_name(-1), nullptr);
  EXPECT_EQ(flashmla_backend_name(flashmla_backend_count()), nullptr);
  EXPECT_EQ(flashmla_backend_name(0), flashmla_backend_name(0)) << "the name's address lasts";
}

TEST(CApiInfo, ContiguousViews) {
  float memory[24] = {};
  const flashmla_tensor view = tensor(memory, FLASHMLA_FLOAT32, {2, 3, 4});
  EXPECT_EQ(view.data, memory);
  EXPECT_EQ(view.dtype, FLASHMLA_FLOAT32);
  EXPECT_EQ(view.ndim, 3);
  EXPECT_EQ(view.shape[2], 4);
  EXPECT_EQ(view.stride[0], 12);
  EXPECT_EQ(view.stride[1], 4);
  EXPECT_EQ(view.stride[2], 1);
}

TEST(CApiInfo, ContiguousViewsOfGarbageAreRefusedLater) {
  SmallCall call;
  const int64_t shape[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  for (const int32_t ndim : {-1, 5, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    call.params.seq_lens = flashmla_contiguous(call.lens.data(), FLASHMLA_INT32, ndim, shape);
    EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT) << ndim;
  }
  const int64_t huge[2] = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
  call.params.seq_lens = flashmla_contiguous(call.lens.data(), FLASHMLA_INT32, 2, huge);
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace flashmla::c_api_test
