#include "runner/checkpoint/checkpoint.h"

#include <gmock/gmock.h>

#include <cstring>

#include "checkpoint_files.h"

namespace flashmla::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TestTensor small(const std::string& name, float value) { return {name, "F32", {1}, encode("F32", {value})}; }
float value_of(const Checkpoint::Tensor* tensor) {
  float value = 0;
  if (tensor != nullptr) std::memcpy(&value, tensor->stored.data.data(), sizeof value);
  return value;
}

TEST(Checkpoint, FilesWithoutIndexAreAllRead) {
  const TempFolder folder;
  write_text(folder.path() / "b.safetensors", safetensors({small("two", 2)}));
  write_text(folder.path() / "a.safetensors", safetensors({small("one", 1)}));
  write_text(folder.path() / "notes.txt", "no shard");
  const Result<Checkpoint> checkpoint = Checkpoint::open(folder.text());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().text();
  EXPECT_THAT(checkpoint.value().shards(), ElementsAre("a.safetensors", "b.safetensors"));
  EXPECT_EQ(value_of(checkpoint.value().find("two")), 2);
  EXPECT_EQ(checkpoint.value().find("three"), nullptr);
  EXPECT_EQ(checkpoint.value().tensor_bytes(), 8);
}

// The index decides: which files, and whose copy of a tensor that several hold.
TEST(Checkpoint, IndexNamesTheShards) {
  const TempFolder folder;
  write_text(folder.path() / "odd name.safetensors", safetensors({small("one", 1), small("both", 10)}));
  write_text(folder.path() / "x.safetensors", safetensors({small("two", 2), small("both", 20)}));
  write_text(folder.path() / "model.safetensors", safetensors({small("one", 100)}));  // not named: not read
  write_text(folder.path() / "model.safetensors.index.json",
             R"({"metadata": {"total_size": 1}, "weight_map": {"one": "odd name.safetensors", "two": "x.safetensors",
                 "both": "x.safetensors"}})");
  const Result<Checkpoint> checkpoint = Checkpoint::open(folder.text());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().text();
  EXPECT_EQ(value_of(checkpoint.value().find("one")), 1);
  EXPECT_EQ(value_of(checkpoint.value().find("both")), 20);
}

TEST(Checkpoint, MissingShardsAreListed) {
  const TempFolder folder;
  write_text(folder.path() / "a.safetensors", safetensors({small("one", 1)}));
  write_text(folder.path() / "model.safetensors.index.json",
             R"({"weight_map": {"one": "a.safetensors", "two": "b.safetensors", "three": "c.safetensors"}})");
  const Result<Checkpoint> checkpoint = Checkpoint::open(folder.text());
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_THAT(checkpoint.status().text(), HasSubstr("2 of the 3 files"));
  EXPECT_THAT(checkpoint.status().text(), HasSubstr("b.safetensors, c.safetensors"));
}

TEST(Checkpoint, TensorsThatTheIndexPromisesInVain) {
  const TempFolder folder;
  write_text(folder.path() / "a.safetensors", safetensors({small("one", 1)}));
  write_text(folder.path() / "model.safetensors.index.json",
             R"({"weight_map": {"one": "a.safetensors", "two": "a.safetensors"}})");
  EXPECT_THAT(Checkpoint::open(folder.text()).status().text(),
              HasSubstr("1 tensors are not in the files that it names: two (a.safetensors)"));
}

TEST(Checkpoint, TheSameTensorTwiceWithoutAnIndex) {
  const TempFolder folder;
  write_text(folder.path() / "a.safetensors", safetensors({small("one", 1)}));
  write_text(folder.path() / "b.safetensors", safetensors({small("one", 1)}));
  const std::string error = Checkpoint::open(folder.text()).status().text();
  EXPECT_THAT(error, HasSubstr("tensor 'one': in "));
  EXPECT_THAT(error, HasSubstr("b.safetensors"));
}

TEST(Checkpoint, BadShardIsNamed) {
  const TempFolder folder;
  write_text(folder.path() / "a.safetensors", "12345678{");
  EXPECT_THAT(Checkpoint::open(folder.text()).status().text(),
              HasSubstr(folder.text() + "/a.safetensors: header length"));
}

TEST(Checkpoint, FolderWithoutWeights) {
  const TempFolder folder;
  EXPECT_THAT(Checkpoint::open(folder.text()).status().text(), HasSubstr("no *.safetensors file"));
  write_text(folder.path() / "pytorch_model.bin", "pickle");
  EXPECT_THAT(Checkpoint::open(folder.text()).status().text(), HasSubstr("pickled weights (*.bin, *.pt) can run code"));
  EXPECT_EQ(Checkpoint::open(folder.text() + "/nowhere").status().code(), StatusCode::kNotFound);
}

TEST(ShardIndex, Refused) {
  const auto error = [](const std::string& text) { return parse_shard_index(text, "index: ").status().text(); };
  EXPECT_THAT(error(""), HasSubstr("index: not JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("weight_map: want an object"));
  EXPECT_THAT(error("{}"), HasSubstr("weight_map: want an object"));
  EXPECT_THAT(error(R"({"weight_map": {}})"), HasSubstr("weight_map: want an object"));
  EXPECT_THAT(error(R"({"weight_map": {"a": 1}})"), HasSubstr("weight_map: 'a': got '1'"));
  for (const char* file : {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", ".safetensors", "..", "", "a.bin",
                           "a\\\\b.safetensors", "a\\u0000.safetensors"}) {
    EXPECT_THAT(error(R"({"weight_map": {"a": ")" + std::string(file) + "\"}}"), HasSubstr("in the same folder"))
        << file;
  }
}

}  // namespace
}  // namespace flashmla::runner
