#include "runner/checkpoint/model_folder.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <optional>

#include "checkpoint_files.h"

namespace flashmla::runner {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kVariables[] = {"HF_HUB_CACHE",   "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                      "XDG_CACHE_HOME", "MODELSCOPE_CACHE",      "HOME"};

// A home of its own for each test; the caller's variables come back afterwards.
class ModelFolder : public testing::Test {
 protected:
  ModelFolder() {
    for (const char* name : kVariables) {
      const char* value = std::getenv(name);
      before_.push_back(value == nullptr ? std::nullopt : std::optional<std::string>(value));
      unsetenv(name);
    }
    setenv("HOME", home_.text().c_str(), 1);
  }
  ~ModelFolder() override {
    for (size_t i = 0; i < before_.size(); ++i) {
      before_[i] ? setenv(kVariables[i], before_[i]->c_str(), 1) : unsetenv(kVariables[i]);
    }
  }
  // Makes ORG/NAME's folder as the hub's client lays it out; the path of the snapshot.
  std::string add_snapshot(const std::string& cache, const std::string& commit, bool main) {
    const std::filesystem::path repository = home_.path() / cache / "models--org--Some.Model";
    write_text(repository / "snapshots" / commit / "config.json", "{}");
    if (main) write_text(repository / "refs" / "main", commit + "\n");
    return (repository / "snapshots" / commit).string();
  }
  std::string add_folder(const std::string& path) {
    write_text(home_.path() / path / "config.json", "{}");
    return (home_.path() / path).string();
  }
  static void expect_found(const std::string& folder) {
    const Result<std::string> found = resolve_model("org/Some.Model");
    ASSERT_TRUE(found.ok()) << found.status().text();
    EXPECT_EQ(found.value(), folder);
  }

  TempFolder home_;

 private:
  std::vector<std::optional<std::string>> before_;
};

TEST_F(ModelFolder, ExistingPathsAreTakenAsTheyAre) {
  EXPECT_EQ(resolve_model(home_.text()).value(), home_.text());
  write_text(home_.path() / "config.json", "{}");
  EXPECT_EQ(resolve_model(home_.text() + "/config.json").value(), home_.text() + "/config.json");
}

TEST_F(ModelFolder, HuggingFaceMainSnapshot) {
  add_snapshot(".cache/huggingface/hub", "0000", false);
  const std::string main = add_snapshot(".cache/huggingface/hub", "8888", true);
  add_snapshot(".cache/huggingface/hub", "ffff", false);
  expect_found(main);
}

TEST_F(ModelFolder, HuggingFaceSingleSnapshotWithoutMain) {
  const std::string only = add_snapshot(".cache/huggingface/hub", "1234", false);
  expect_found(only);
  add_snapshot(".cache/huggingface/hub", "5678", false);
  EXPECT_FALSE(resolve_model("org/Some.Model").ok()) << "two snapshots and no main: no guess";
}

TEST_F(ModelFolder, HuggingFaceVariables) {
  const std::string xdg = add_snapshot("x/huggingface/hub", "a", true);
  const std::string hf_home = add_snapshot("h/hub", "b", true);
  const std::string hub = add_snapshot("c", "c", true);
  setenv("XDG_CACHE_HOME", (home_.text() + "/x").c_str(), 1);
  expect_found(xdg);
  setenv("HF_HOME", (home_.text() + "/h").c_str(), 1);
  expect_found(hf_home);
  setenv("HF_HUB_CACHE", (home_.text() + "/c").c_str(), 1);
  expect_found(hub);
}

TEST_F(ModelFolder, ModelScopeLayouts) {
  for (const char* path : {".cache/modelscope/hub/models/org/Some___Model", ".cache/modelscope/hub/org/Some.Model"}) {
    const std::string folder = add_folder(path);
    expect_found(folder);
    std::filesystem::remove_all(folder);
  }
  const std::string folder = add_folder("ms/models/org/Some___Model");
  setenv("MODELSCOPE_CACHE", (home_.text() + "/ms").c_str(), 1);
  expect_found(folder);
}

TEST_F(ModelFolder, HuggingFaceComesFirst) {
  add_folder(".cache/modelscope/hub/models/org/Some___Model");
  expect_found(add_snapshot(".cache/huggingface/hub", "1", true));
}

TEST_F(ModelFolder, NotFoundPrintsBothCommands) {
  const Result<std::string> found = resolve_model("org/Some.Model");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(found.status().text(), HasSubstr("\n  huggingface-cli download org/Some.Model\n"));
  EXPECT_THAT(found.status().text(), HasSubstr("\n  modelscope download --model org/Some.Model\n"));
}

TEST_F(ModelFolder, UnfinishedDownloadIsNamed) {
  const std::string snapshot = add_snapshot(".cache/huggingface/hub", "1", true);
  std::filesystem::remove(snapshot + "/config.json");
  EXPECT_THAT(resolve_model("org/Some.Model").status().text(),
              HasSubstr("of which " + snapshot + " has no config.json"));
}

TEST_F(ModelFolder, NamesThatWouldLeaveTheCache) {
  for (const char* model :
       {"org/..", "../no-such-model", "./x", "a/b/c", "nowhere", "", "/", "a/", "/b", "o rg/x", "org/x;rm"}) {
    const Result<std::string> found = resolve_model(model);
    ASSERT_FALSE(found.ok() && std::string(model) != "/") << model;
    if (!found.ok()) {
      EXPECT_THAT(found.status().text(), HasSubstr("want a folder with config.json")) << model;
      EXPECT_THAT(found.status().text(), Not(HasSubstr("download"))) << model;
    }
  }
}

// A commit's name is read from a file of the cache: no path either.
TEST_F(ModelFolder, MainThatIsAPath) {
  add_folder("elsewhere");
  write_text(home_.path() / ".cache/huggingface/hub/models--org--Some.Model/refs/main", "../../../../../elsewhere");
  EXPECT_FALSE(resolve_model("org/Some.Model").ok());
}

}  // namespace
}  // namespace flashmla::runner
