#include "runner/tokenizer/chat_template.h"

#include <nlohmann/json.hpp>

#include "runner/error_text.h"
#include "runner/tokenizer/jinja_eval.h"
#include "runner/tokenizer/utf8.h"

namespace flashmla::runner {

// Whole turns only; a conversation with tools needs the checkpoint's own template.
const char* const kDeepSeekV2Chat = R"({{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ 'User: ' + message.content + '\n\n' }}
{%- elif message.role == 'assistant' %}{{ 'Assistant: ' + message.content + eos_token }}
{%- elif message.role == 'system' %}{{ message.content + '\n\n' }}
{%- else %}{{ raise_exception("role: got '" ~ message.role ~ "'; want system, user or assistant") }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %})";

// System messages go first, wherever they stand.
const char* const kDeepSeekV3Chat = R"({{ bos_token }}
{%- set found = namespace(system=false) %}
{%- for message in messages if message.role == 'system' %}
{{- '\n\n' if found.system else '' }}{{ message.content }}
{%- set found.system = true %}
{%- endfor %}
{%- for message in messages if message.role != 'system' %}
{%- if message.role == 'user' %}{{ '<｜User｜>' + message.content }}
{%- elif message.role == 'assistant' %}{{ '<｜Assistant｜>' + message.content + eos_token }}
{%- else %}{{ raise_exception("role: got '" ~ message.role ~ "'; want system, user or assistant") }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %})";

struct ChatTemplate::Tree {
  jinja::Block block;
};

Result<ChatTemplate> ChatTemplate::parse(const std::string& source) {
  constexpr size_t kMostBytes = 4 << 20;
  if (source.size() > kMostBytes) {
    return unsupported("chat_template: got " + std::to_string(source.size()) + " bytes; want at most " +
                       std::to_string(kMostBytes));
  }
  if (!is_utf8(source)) return unsupported("chat_template: line 1: got invalid UTF-8");
  try {
    ChatTemplate result;
    result.tree_ = std::make_shared<const Tree>(Tree{jinja::parse_template(source)});
    return result;
  } catch (const jinja::TemplateError& error) {
    return unsupported(std::string("chat_template: ") + error.what());
  }
}

Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& variables) const {
  try {
    std::vector<std::pair<std::string, jinja::Value>> values;
    for (const auto& [name, value] : variables.items()) values.emplace_back(name, jinja::from_json(value));
    return jinja::render_template(tree_->block, values);
  } catch (const jinja::TemplateError& error) {
    return invalid(std::string("chat_template: ") + error.what());
  }
}

}  // namespace flashmla::runner
