// From what a user calls a model to the folder that holds it. Nothing is fetched.
#pragma once

#include <string>

#include "flashmla/status.h"

namespace flashmla::runner {

// `model`: a path to a folder or file, returned as it is when it exists; else ORG/NAME, looked for in the local caches
// of Hugging Face (HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub; the snapshot that refs/main names) and of
// ModelScope (MODELSCOPE_CACHE or ~/.cache/modelscope/hub). kNotFound: the text has the two download commands.
Result<std::string> resolve_model(const std::string& model);

}  // namespace flashmla::runner
