#include "runner/checkpoint/safetensors.h"

#include <gmock/gmock.h>

#include "checkpoint_files.h"

namespace flashmla::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<std::vector<StoredTensor>> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "x");
}
std::string error_of(const std::string& header, size_t data_bytes) {
  const Result<std::vector<StoredTensor>> tensors = parse(raw_safetensors(header, std::string(data_bytes, 'd')));
  return tensors.ok() ? "" : tensors.status().text();
}

TEST(Safetensors, ReadsWhatIsWritten) {
  const std::string file = safetensors({{"b", "BF16", {2, 3}, encode("BF16", {1, 2, 3, 4, 5, 6})},
                                        {"a", "F32", {}, encode("F32", {7})},
                                        {"empty", "I64", {3, 0}, ""}},
                                       5);
  const Result<std::vector<StoredTensor>> tensors = parse(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status().text();
  ASSERT_EQ(tensors.value().size(), 3u);
  const StoredTensor& b = tensors.value()[0];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.type, StoredType::kBF16);
  EXPECT_THAT(b.shape, ElementsAre(2, 3));
  EXPECT_EQ(b.elements(), 6);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(b.data.data()), b.data.size()),
            encode("BF16", {1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(tensors.value()[1].name, "a");
  EXPECT_EQ(tensors.value()[1].elements(), 1);
  EXPECT_EQ(tensors.value()[2].elements(), 0);
}

TEST(Safetensors, EveryTypeHasItsNameAndSize) {
  const std::pair<const char*, int64_t> types[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"F64", 8}, {"I64", 8}, {"U64", 8},     {"C64", 8}};
  for (const auto& [name, bytes] : types) {
    const Result<std::vector<StoredTensor>> tensors =
        parse(safetensors({{"t", name, {3}, std::string(static_cast<size_t>(3 * bytes), 'x')}}));
    ASSERT_TRUE(tensors.ok()) << name << ": " << tensors.status().text();
    EXPECT_STREQ(stored_name(tensors.value()[0].type), name);
    EXPECT_EQ(stored_bytes(tensors.value()[0].type), bytes);
  }
}

TEST(Safetensors, EmptyHeaderIsAFileOfNoTensors) {
  EXPECT_EQ(error_of("{}", 0), "");
  EXPECT_EQ(error_of(R"({"__metadata__": {"a": "b"}}   )", 0), "");
}

TEST(Safetensors, LengthOutsideTheFile) {
  EXPECT_THAT(parse("").status().text(), HasSubstr("x: got 0 bytes; want a safetensors file"));
  EXPECT_THAT(parse("1234567").status().text(), HasSubstr("got 7 bytes"));
  std::string file = raw_safetensors("{}", "");
  file[0] = 3;
  EXPECT_THAT(parse(file).status().text(), HasSubstr("header length: got 3; want at most 2 (the rest of the file)"));
  for (size_t i = 0; i < 8; ++i) file[i] = '\xff';  // added to 8 it would wrap round to 7
  EXPECT_THAT(parse(file).status().text(), HasSubstr("header length: got 18446744073709551615"));
}

TEST(Safetensors, HeaderAboveTheBound) {
  std::string file = raw_safetensors("{}" + std::string(kMostHeaderBytes, ' '), "");
  EXPECT_THAT(parse(file).status().text(), HasSubstr("got 100000002; want at most 100000000"));
}

struct Wrong {
  const char* header;
  size_t data_bytes;
  const char* error;
};

TEST(Safetensors, Refused) {
  const Wrong wrongs[] = {
      {"", 4, "want a JSON object that starts with '{'"},
      {" {}", 0, "starts with '{'"},
      {"{", 0, "not JSON at its byte"},
      {"{}x", 0, "not JSON at its byte"},
      {"{\"a\xff\": {}}", 0, "not JSON"},
      {R"({"a": 1})", 4, "'a': got a number"},
      {R"({"a": null})", 4, "got null"},
      {R"({"a": {}})", 4, "want each of dtype, shape and data_offsets, once"},
      {R"({"a": {"dtype": "F32", "shape": [1]}})", 4, "tensor 'a': want each of dtype, shape and data_offsets"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "more": "x"}})", 4, "key 'more'"},
      {R"({"a": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 4, "dtype is given twice"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}})", 4, "data_offsets: want two"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4]}})", 4, "data_offsets: want two"},
      {R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4, "got a negative number"},
      {R"({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}})", 4, "got a number with a fraction"},
      {R"({"a": {"dtype": "F32", "shape": [1e0], "data_offsets": [0, 4]}})", 4, "got a number with a fraction"},
      {R"({"a": {"dtype": "F32", "shape": [[1]], "data_offsets": [0, 4]}})", 4, "got an array"},
      {R"({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}})", 4, "got an array"},
      {R"({"a": {"dtype": 5, "shape": [1], "data_offsets": [0, 4]}})", 4, "got a number"},
      {R"({"a": {"dtype": "F32", "shape": {"x": 1}, "data_offsets": [0, 4]}})", 4, "got an object"},
      {R"({"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}})", 4, "dtype: got 'F4'; supported: BOOL, U8"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": {"dtype": "F32", "shape": [1],
           "data_offsets": [4, 8]}})",
       8, "tensor 'a': the name is given twice"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", 4,
       "got 0 to 4; want 8 bytes for [2] of F32"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", 4, "got 4 to 0"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 3, "end at byte 4 of 3 behind the header"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 5, "1 bytes at the end belong to no tensor"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]}})", 5, "start at byte 1; want byte 0"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "b": {"dtype": "F32", "shape": [1],
           "data_offsets": [2, 6]}})",
       6, "tensor 'b': its data start at byte 2, inside another tensor's; want byte 4"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "b": {"dtype": "F32", "shape": [1],
           "data_offsets": [0, 4]}})",
       4, "inside another tensor's"},
      {R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}})", 0,
       "shape: more bytes than 2^63"},
      {R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296, 0], "data_offsets": [0, 0]}})", 0,
       "shape: more bytes than 2^63"},
      {R"({"a": {"dtype": "U8", "shape": [18446744073709551615], "data_offsets": [0, 0]}})", 0,
       "shape: more bytes than 2^63"},
      {R"({"a": {"dtype": "U8", "shape": [18446744073709551616], "data_offsets": [0, 0]}})", 0, "with a fraction"},
      {R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [18446744073709551615, 0]}})", 1,
       "got 18446744073709551615 to 0"},
      {R"({"a": {"dtype": "U8", "shape": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1], "data_offsets": [0, 1]}})", 1,
       "shape: more than 16 numbers"},
      {R"({"__metadata__": {"a": 1}})", 0, "__metadata__: got a number; want strings"},
      {R"({"__metadata__": {"a": {}}})", 0, "__metadata__: got an object"},
      {R"({"__metadata__": "a"})", 0, "'__metadata__': got a string"},
  };
  for (const Wrong& wrong : wrongs) {
    EXPECT_THAT(error_of(wrong.header, wrong.data_bytes), HasSubstr(wrong.error)) << wrong.header;
  }
}

TEST(Safetensors, DeepNestingIsRefusedAtOnce) {
  EXPECT_THAT(error_of("{\"a\": " + std::string(1000000, '['), 0), HasSubstr("got an array"));
}

TEST(Safetensors, FilesThatAreNone) {
  const TempFolder folder;
  const std::string path = folder.text() + "/x.safetensors";
  EXPECT_EQ(open_safetensors(path).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(open_safetensors(folder.text()).status().text(), HasSubstr("not a regular file"));
  write_text(path, "");
  EXPECT_THAT(open_safetensors(path).status().text(), HasSubstr(path + ": got 0 bytes"));
}

}  // namespace
}  // namespace flashmla::runner
