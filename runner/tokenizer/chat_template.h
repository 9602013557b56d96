// A checkpoint's chat template: the part of Jinja that chat templates use (docs/running-models.md lists it), rendered
// as transformers renders it.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "flashmla/status.h"

namespace flashmla::runner {

class ChatTemplate {
 public:
  ChatTemplate() = default;
  // Error: kUnsupported with the line and the construct that is not supported.
  static Result<ChatTemplate> parse(const std::string& source);
  // `variables`: an object; lists of messages and so on. A template that runs away ends with an error.
  Result<std::string> render(const nlohmann::ordered_json& variables) const;

 private:
  struct Tree;
  std::shared_ptr<const Tree> tree_;
};

// What DeepSeek-V2 and DeepSeek-V3 were trained with, for checkpoints that carry no template.
extern const char* const kDeepSeekV2Chat;
extern const char* const kDeepSeekV3Chat;

}  // namespace flashmla::runner
