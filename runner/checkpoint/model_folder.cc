#include "runner/checkpoint/model_folder.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "runner/error_text.h"

namespace flashmla::runner {

namespace {

namespace fs = std::filesystem;

// No exceptions from unreadable folders: they are treated as absent.
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::optional<fs::path> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return {};
  return fs::path(value);
}

struct HubName {
  std::string org;
  std::string name;
};

// The hubs' rule: letters, digits, '-', '_', '.'; a part that is "." or ".." would leave the cache.
std::optional<HubName> hub_name(const std::string& model) {
  const size_t slash = model.find('/');
  if (slash == std::string::npos) return {};
  HubName result{model.substr(0, slash), model.substr(slash + 1)};
  for (const std::string& part : {result.org, result.name}) {
    const bool right = std::ranges::all_of(part, [](unsigned char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
             c == '.';
    });
    if (!right || part.empty() || part.front() == '.') return {};
  }
  return result;
}

std::optional<fs::path> hugging_face_cache() {
  if (auto path = variable("HF_HUB_CACHE")) return path;
  if (auto path = variable("HUGGINGFACE_HUB_CACHE")) return path;  // its older name
  if (const auto path = variable("HF_HOME")) return *path / "hub";
  if (const auto path = variable("XDG_CACHE_HOME")) return *path / "huggingface" / "hub";
  if (const auto path = variable("HOME")) return *path / ".cache" / "huggingface" / "hub";
  return {};
}

// models--ORG--NAME/snapshots/COMMIT; refs/main holds the commit. Without it a single snapshot is no question.
std::optional<fs::path> hugging_face_snapshot(const fs::path& cache, const HubName& hub) {
  const fs::path repository = cache / ("models--" + hub.org + "--" + hub.name);
  std::ifstream reference(repository / "refs" / "main");
  if (std::string commit; reference >> commit) {
    const fs::path snapshot = repository / "snapshots" / commit;
    if (commit.find('/') == std::string::npos && is_there(snapshot)) return snapshot;
  }
  std::error_code error;
  std::vector<fs::path> snapshots;
  for (fs::directory_iterator entry(repository / "snapshots", error), end; !error && entry != end;
       entry.increment(error)) {
    snapshots.push_back(entry->path());
  }
  if (snapshots.size() == 1) return snapshots.front();
  return {};
}

// Newer versions keep models under models/; '.' in names is written "___".
std::vector<fs::path> model_scope_folders(const HubName& hub) {
  std::vector<fs::path> caches;
  if (const auto path = variable("MODELSCOPE_CACHE")) {
    caches = {*path, *path / "hub"};
  } else if (const auto home = variable("HOME")) {
    caches = {*home / ".cache" / "modelscope" / "hub", *home / ".cache" / "modelscope"};
  }
  std::string escaped;
  for (char c : hub.name) escaped += c == '.' ? std::string("___") : std::string(1, c);
  std::vector<fs::path> folders;
  for (const fs::path& cache : caches) {
    for (const fs::path& base : {cache / "models", cache}) {
      folders.push_back(base / hub.org / hub.name);
      if (escaped != hub.name) folders.push_back(base / hub.org / escaped);
    }
  }
  return folders;
}

Status not_found(const std::string& model, const std::string& unfinished) {
  return {StatusCode::kNotFound, "model: got " + in_quotes(model) +
                                     (unfinished.empty() ? ", which is neither a path here nor in a local cache"
                                                         : ", of which " + unfinished + " has no config.json") +
                                     "; download it with one of\n  huggingface-cli download " + model +
                                     "\n  modelscope download --model " + model +
                                     "\nor name a folder with config.json and safetensors files"};
}

}  // namespace

Result<std::string> resolve_model(const std::string& model) {
  if (!model.empty() && is_there(model)) return model;
  const std::optional<HubName> hub = hub_name(model);
  if (!hub) {
    return Status(StatusCode::kNotFound, "model: got " + in_quotes(model) +
                                             "; want a folder with config.json and safetensors files, or ORG/NAME of "
                                             "a model in the local cache of Hugging Face or ModelScope");
  }
  std::vector<fs::path> places;
  if (const auto cache = hugging_face_cache()) {
    if (const auto snapshot = hugging_face_snapshot(*cache, *hub)) places.push_back(*snapshot);
  }
  for (const fs::path& folder : model_scope_folders(*hub)) {
    if (is_there(folder)) places.push_back(folder);
  }
  for (const fs::path& place : places) {
    if (is_there(place / "config.json")) return place.string();
  }
  return not_found(model, places.empty() ? "" : places.front().string());
}

}  // namespace flashmla::runner
