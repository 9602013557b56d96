#include "runner/tokenizer/tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "runner/checkpoint/json_keys.h"
#include "runner/error_text.h"
#include "runner/tokenizer/tokenizer_file.h"
#include "runner/tokenizer/utf8.h"

namespace flashmla::runner {

namespace {

// One call of encode(): its memory, and the words it has seen.
class Encoding {
 public:
  explicit Encoding(const TokenizerTables& tables) : tables_(tables) {}

  Status add_text(std::string_view text) {
    pieces_.views.clear();
    if (Status status = tables_.pretokenizer.split(text, matcher_, pieces_); !status.ok()) return status;
    for (std::string_view word : pieces_.views) add_word(word);
    return {};
  }

  std::vector<int32_t> ids;

 private:
  // Text repeats its words: a word's ids are copied from where they came out first.
  void add_word(std::string_view word) {
    constexpr size_t kLongest = 64;
    constexpr size_t kMostWords = 1 << 16;
    if (word.size() == 1) {
      ids.push_back(tables_.bpe.byte_ids[static_cast<uint8_t>(word[0])]);
      return;
    }
    const auto known = word.size() <= kLongest ? words_.find(word) : words_.end();
    if (known != words_.end()) {
      const auto [begin, count] = known->second;
      for (size_t i = 0; i < count; ++i) ids.push_back(ids[begin + i]);
      return;
    }
    const size_t begin = ids.size();
    workspace_.encode(tables_.bpe, word, ids);
    if (word.size() <= kLongest && words_.size() < kMostWords) words_.emplace(word, Range{begin, ids.size() - begin});
  }

  struct Range {
    size_t begin;
    size_t count;
  };
  const TokenizerTables& tables_;
  RegexMatcher matcher_;
  Pieces pieces_;
  BpeWorkspace workspace_;
  std::unordered_map<std::string_view, Range> words_;  // views into the text and into pieces_.added
};

std::optional<std::string> read_if_there(const std::string& path, Status& status) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  Result<std::string> text = read_file(path);
  if (!text.ok()) {
    status = text.status();
    return std::nullopt;
  }
  return std::move(text).value();
}

}  // namespace

Result<Tokenizer> Tokenizer::load(const std::string& folder) {
  const Result<std::string> file = read_file(folder + "/tokenizer.json");
  if (!file.ok()) return file.status();
  Status status;
  const std::string config = read_if_there(folder + "/tokenizer_config.json", status).value_or("");
  const std::string chat = read_if_there(folder + "/chat_template.jinja", status).value_or("");
  const std::string model = read_if_there(folder + "/config.json", status).value_or("");
  if (!status.ok()) return status;
  return parse(file.value(), config, chat, model);
}

Result<Tokenizer> Tokenizer::parse(const std::string& tokenizer_json, const std::string& tokenizer_config_json,
                                   const std::string& chat_template, const std::string& config_json) {
  auto tables = read_tokenizer({tokenizer_json, tokenizer_config_json, chat_template, config_json});
  if (!tables.ok()) return tables.status();
  Tokenizer tokenizer;
  tokenizer.tables_ = std::move(tables).value();
  return tokenizer;
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  constexpr size_t kMostBytes = size_t{1} << 30;
  if (text.size() > kMostBytes) {
    return invalid("text: got " + std::to_string(text.size()) + " bytes; want at most " + std::to_string(kMostBytes));
  }
  const bool bos = options.add_bos.value_or(tables_->add_bos);
  const bool eos = options.add_eos.value_or(tables_->add_eos);
  if (bos && bos_id() < 0) return invalid("add_bos: got true; this tokenizer has no begin-of-sentence token");
  if (eos && eos_id() < 0) return invalid("add_eos: got true; this tokenizer has no end-of-sentence token");
  std::string repaired;
  if (!is_utf8(text)) text = repaired = replace_invalid_utf8(text);

  Encoding encoding(*tables_);
  std::vector<Segment> segments{{text, -1}};
  if (options.match_added_tokens) segments = tables_->added.split(text);
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      encoding.ids.push_back(segment.id);
    } else if (Status status = encoding.add_text(segment.text); !status.ok()) {
      return status;
    }
  }
  std::vector<int32_t>& ids = encoding.ids;
  if (bos && (ids.empty() || ids.front() != bos_id())) ids.insert(ids.begin(), bos_id());
  if (eos && (ids.empty() || ids.back() != eos_id())) ids.push_back(eos_id());
  return std::move(ids);
}

std::optional<std::string_view> Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= size() || !tables_->tokens[static_cast<size_t>(id)].exists) return std::nullopt;
  return tables_->tokens[static_cast<size_t>(id)].bytes;
}

Result<std::string> Tokenizer::decode(const std::vector<int32_t>& ids, const DecodeOptions& options) const {
  std::string bytes;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::optional<std::string_view> token = token_bytes(ids[i]);
    if (!token) {
      return invalid("ids[" + std::to_string(i) + "]: got " + std::to_string(ids[i]) +
                     "; want the id of a token, 0 .. " + std::to_string(size() - 1));
    }
    if (!options.skip_special || !is_special(ids[i])) bytes += *token;
  }
  return replace_invalid_utf8(bytes);
}

bool Tokenizer::is_special(int32_t id) const {
  return token_bytes(id) && tables_->tokens[static_cast<size_t>(id)].special;
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto found = tables_->ids.find(std::string(token));
  if (found == tables_->ids.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  if (!token_bytes(id)) return std::nullopt;
  return tables_->tokens[static_cast<size_t>(id)].text;
}

int32_t Tokenizer::size() const { return static_cast<int32_t>(tables_->tokens.size()); }
int32_t Tokenizer::bos_id() const { return tables_->bos; }
int32_t Tokenizer::eos_id() const { return tables_->eos; }
bool Tokenizer::adds_bos() const { return tables_->add_bos; }
const std::string& Tokenizer::chat_template() const { return tables_->chat_source; }

// ---- chat

namespace {

using Json = nlohmann::ordered_json;

Result<Json> parse_ordered(const std::string& text, const char* where, Json::value_t type) {
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded() || value.type() != type) {
    return invalid(std::string(where) + ": got " + in_quotes(text) + "; want a JSON " +
                   (type == Json::value_t::array ? "list of messages" : "object"));
  }
  return value;
}

Result<std::string> render(const TokenizerTables& tables, const Json& messages, bool add_generation_prompt,
                           const Json& more) {
  if (!tables.chat.ok()) return tables.chat.status();
  Json variables = {{"messages", messages},
                    {"add_generation_prompt", add_generation_prompt},
                    {"tools", nullptr},
                    {"documents", nullptr}};
  if (tables.bos >= 0) variables["bos_token"] = tables.tokens[static_cast<size_t>(tables.bos)].text;
  if (tables.eos >= 0) variables["eos_token"] = tables.tokens[static_cast<size_t>(tables.eos)].text;
  for (const auto& [name, value] : more.items()) variables[name] = value;
  return tables.chat.value().render(variables);
}

}  // namespace

Result<std::string> Tokenizer::render_chat(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const {
  Json list = Json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", replace_invalid_utf8(message.role)}, {"content", replace_invalid_utf8(message.content)}});
  }
  return render(*tables_, list, add_generation_prompt, Json::object());
}

Result<std::string> Tokenizer::render_chat_json(const std::string& messages, bool add_generation_prompt,
                                                const std::string& variables) const {
  const Result<Json> list = parse_ordered(messages, "messages", Json::value_t::array);
  if (!list.ok()) return list.status();
  Result<Json> more = Json::object();
  if (!variables.empty()) more = parse_ordered(variables, "variables", Json::value_t::object);
  if (!more.ok()) return more.status();
  return render(*tables_, list.value(), add_generation_prompt, more.value());
}

// ---- streaming

std::string StreamDecoder::push(int32_t id) {
  const std::optional<std::string_view> token = tokenizer_.token_bytes(id);
  if (!token || (options_.skip_special && tokenizer_.is_special(id))) return {};
  held_ += *token;
  const size_t incomplete = incomplete_utf8_suffix(held_);
  std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, held_.size() - incomplete));
  held_.erase(0, held_.size() - incomplete);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = replace_invalid_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace flashmla::runner
