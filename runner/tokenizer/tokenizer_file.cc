#include "runner/tokenizer/tokenizer_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runner/checkpoint/json_keys.h"
#include "runner/error_text.h"
#include "runner/tokenizer/tokenizer_bytes.h"
#include "runner/tokenizer/utf8.h"

namespace flashmla::runner {

namespace {

using nlohmann::json;

constexpr int64_t kMostId = (1 << 22) - 1;  // far above any vocabulary; bounds the table of a hostile file

const json& at(const json& object, const char* key) {
  static const json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

std::string text_at(const json& object, const char* key) {
  const json& value = at(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

class Reader {
 public:
  explicit Reader(TokenizerTables& tables) : tables_(tables) {}

  Status read(const TokenizerFiles& files) {
    const Result<json> file = parse_json(files.tokenizer_json, "tokenizer.json: ");
    if (!file.ok()) return file.status();
    if (!file.value().is_object())
      return invalid("tokenizer.json: got " + json_text(file.value()) + "; want an object");
    Result<json> config = json::object();
    if (!files.tokenizer_config_json.empty())
      config = parse_json(files.tokenizer_config_json, "tokenizer_config.json: ");
    if (!config.ok()) return config.status();
    if (!config.value().is_object()) return invalid("tokenizer_config.json: want an object");
    if (Status status = read_file(file.value()); !status.ok()) {
      return {status.code(), "tokenizer.json: " + status.text()};
    }
    if (Status status = read_ends(file.value(), config.value(), files.config_json); !status.ok()) return status;
    read_chat(config.value(), files.chat_template);
    return {};
  }

 private:
  Status read_file(const json& file) {
    if (Status status = refuse_normalizer(at(file, "normalizer")); !status.ok()) return status;
    const json& model = at(file, "model");
    if (Status status = check_model(model); !status.ok()) return status;
    if (Status status = read_vocabulary(model); !status.ok()) return status;
    if (Status status = read_added(at(file, "added_tokens")); !status.ok()) return status;
    if (Status status = read_merges(model); !status.ok()) return status;
    if (Status status = check_decoder(at(file, "decoder")); !status.ok()) return status;
    Result<PreTokenizer> pretokenizer = PreTokenizer::parse(at(file, "pre_tokenizer"));
    if (!pretokenizer.ok()) return pretokenizer.status();
    tables_.pretokenizer = std::move(pretokenizer).value();
    return {};
  }

  static Status refuse_normalizer(const json& normalizer) {
    if (normalizer.is_null()) return {};
    const std::string type = text_at(normalizer, "type");
    if (type != "Sequence") return unsupported("normalizer: got " + in_quotes(type) + "; supported: none");
    for (const json& part : at(normalizer, "normalizers")) {
      if (Status status = refuse_normalizer(part); !status.ok()) return status;
    }
    return {};
  }

  static Status check_decoder(const json& decoder) {
    const std::string type = decoder.is_object() ? text_at(decoder, "type") : "";
    if (type == "ByteLevel") return {};
    return unsupported("decoder: got " + json_text(decoder) + "; supported: ByteLevel");
  }

  Status check_model(const json& model) {
    if (!model.is_object()) return invalid("model: got " + json_text(model) + "; want an object");
    const bool untyped_bpe = at(model, "type").is_null() && model.contains("merges");
    if (text_at(model, "type") != "BPE" && !untyped_bpe) {
      return unsupported("model.type: got " + json_text(at(model, "type")) + "; supported: BPE");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!text_at(model, key).empty()) {
        return unsupported(std::string("model.") + key + ": got " + in_quotes(text_at(model, key)) +
                           "; supported: none");
      }
    }
    const json& dropout = at(model, "dropout");
    if (!dropout.is_null() && dropout != json(0)) {
      return unsupported("model.dropout: got " + json_text(dropout) + "; supported: none (ids would be random)");
    }
    const json& ignore = at(model, "ignore_merges");
    tables_.bpe.ignore_merges = ignore.is_boolean() && ignore.get<bool>();
    return {};
  }

  Status put(const std::string& token, int64_t id, const std::string& bytes, bool special) {
    if (id < 0 || id > kMostId) {
      return invalid("token " + in_quotes(token) + ": got id " + std::to_string(id) + "; want 0 .. " +
                     std::to_string(kMostId));
    }
    if (static_cast<size_t>(id) >= tables_.tokens.size()) tables_.tokens.resize(static_cast<size_t>(id) + 1);
    TokenizerTables::Token& entry = tables_.tokens[static_cast<size_t>(id)];
    if (entry.exists && entry.text != token) {
      return invalid("id " + std::to_string(id) + ": got the tokens " + in_quotes(entry.text) + " and " +
                     in_quotes(token));
    }
    const auto [old, added] = tables_.ids.emplace(token, static_cast<int32_t>(id));
    if (!added && old->second != id) {
      return invalid("token " + in_quotes(token) + ": got the ids " + std::to_string(old->second) + " and " +
                     std::to_string(id));
    }
    entry = {token, bytes, true, special};
    return {};
  }

  Status read_vocabulary(const json& model) {
    const json& vocabulary = at(model, "vocab");
    if (!vocabulary.is_object()) return invalid("model.vocab: got " + json_text(vocabulary) + "; want an object");
    tables_.ids.reserve(vocabulary.size());
    for (const auto& [token, id] : vocabulary.items()) {
      if (!id.is_number_integer())
        return invalid("model.vocab: " + in_quotes(token) + ": got " + json_text(id) + "; want an id");
      const std::optional<std::string> bytes = bytes_of_token(token);
      const int64_t value = id.is_number_unsigned() && id.get<uint64_t>() > INT64_MAX ? -1 : id.get<int64_t>();
      if (Status status = put(token, value, bytes.value_or(token), false); !status.ok()) return status;
      if (tables_.bpe.ignore_merges && bytes) tables_.bpe.words.emplace(*bytes, id.get<int32_t>());
    }
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto found = tables_.ids.find(token_of_bytes(std::string(1, static_cast<char>(byte))));
      if (found == tables_.ids.end()) {
        return unsupported("model.vocab: no token for the byte " + std::to_string(byte) +
                           "; want one for each of the 256");
      }
      tables_.bpe.byte_ids[byte] = found->second;
    }
    return {};
  }

  Status read_added(const json& list) {
    Result<std::vector<AddedToken>> tokens = parse_added_tokens(list);
    if (!tokens.ok()) return tokens.status();
    for (const AddedToken& token : tokens.value()) {
      if (Status status = put(token.content, token.id, token.content, token.special); !status.ok()) return status;
    }
    tables_.added = AddedTokens(std::move(tokens).value());
    return {};
  }

  // "a b" or ["a", "b"].
  static bool read_pair(const json& merge, std::string& left, std::string& right) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
      return true;
    }
    if (!merge.is_string()) return false;
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return false;
    left = text.substr(0, space);
    right = text.substr(space + 1);
    return true;
  }

  Status read_merges(const json& model) {
    const json& merges = at(model, "merges");
    if (!merges.is_array()) return invalid("model.merges: got " + json_text(merges) + "; want a list");
    tables_.bpe.merges = MergeTable(merges.size());
    std::string parts[3];
    int32_t rank = 0;
    for (const json& merge : merges) {
      const auto where = [&] { return "model.merges[" + std::to_string(rank) + "]: "; };
      if (!read_pair(merge, parts[0], parts[1])) {
        return invalid(where() + "got " + json_text(merge) + "; want \"left right\" or [\"left\", \"right\"]");
      }
      parts[2] = parts[0] + parts[1];
      int32_t ids[3];
      for (int i = 0; i < 3; ++i) {
        const auto found = tables_.ids.find(parts[i]);
        if (found == tables_.ids.end()) return invalid(where() + in_quotes(parts[i]) + " is not in model.vocab");
        ids[i] = found->second;
      }
      tables_.bpe.merges.set(ids[0], ids[1], {rank++, ids[2]});
    }
    return {};
  }

  // ---- begin and end of sentence

  struct Ends {
    int32_t bos = -1;  // what the post-processor puts before and behind a text
    int32_t eos = -1;
  };

  Result<int32_t> token_id(const std::string& token, const std::string& where) const {
    const auto found = tables_.ids.find(token);
    if (found == tables_.ids.end()) return invalid(where + ": got " + in_quotes(token) + ", which is no token");
    return found->second;
  }

  Status read_template(const json& processor, Ends& ends) const {
    const json& parts = at(processor, "single");
    bool text_seen = false;
    for (const json& part : parts) {
      if (part.is_object() && part.contains("Sequence")) {
        text_seen = true;
        continue;
      }
      const json& special = part.is_object() ? at(part, "SpecialToken") : part;
      const Result<int32_t> id = token_id(special.is_object() ? text_at(special, "id") : "", "post_processor.single");
      if (!id.ok()) return id.status();
      int32_t& end = text_seen ? ends.eos : ends.bos;
      if (end >= 0) return unsupported("post_processor.single: got two tokens on one side of the text; supported: one");
      end = id.value();
    }
    if (!text_seen) return invalid("post_processor.single: got " + json_text(parts) + "; want a list with a Sequence");
    return {};
  }

  Status read_post_processor(const json& processor, Ends& ends) const {
    if (processor.is_null()) return {};
    const std::string type = processor.is_object() ? text_at(processor, "type") : "";
    if (type == "ByteLevel") return {};  // moves offsets only
    if (type == "TemplateProcessing") return read_template(processor, ends);
    if (type != "Sequence") {
      return unsupported("post_processor: got " + in_quotes(type) +
                         "; supported: ByteLevel, TemplateProcessing, Sequence");
    }
    for (const json& part : at(processor, "processors")) {
      if (Status status = read_post_processor(part, ends); !status.ok()) return status;
    }
    return {};
  }

  // A token's text in tokenizer_config.json stands alone or in an object.
  Status read_named_token(const json& config, const char* key, int32_t& id) const {
    const json& value = at(config, key);
    const std::string token = value.is_object() ? text_at(value, "content") : text_at(config, key);
    if (token.empty()) return {};
    const Result<int32_t> found = token_id(token, std::string("tokenizer_config.json: ") + key);
    if (!found.ok()) return found.status();
    id = found.value();
    return {};
  }

  // config.json names ids, the end possibly several of which the first counts.
  void read_model_id(const json& config, const char* key, int32_t& id) const {
    const json& value = at(config, key);
    const json& first = value.is_array() && !value.empty() ? value[0] : value;
    if (id >= 0 || !first.is_number_unsigned() || first.get<uint64_t>() >= tables_.tokens.size()) return;
    if (tables_.tokens[first.get<size_t>()].exists) id = first.get<int32_t>();
  }

  static bool wants(const json& config, const char* key, bool absent) {
    const json& value = at(config, key);
    return value.is_boolean() ? value.get<bool>() : absent;
  }

  Status read_ends(const json& file, const json& config, const std::string& model_config) {
    Ends ends;
    if (Status status = read_post_processor(at(file, "post_processor"), ends); !status.ok()) {
      return {status.code(), "tokenizer.json: " + status.text()};
    }
    tables_.bos = ends.bos;
    tables_.eos = ends.eos;
    if (Status status = read_named_token(config, "bos_token", tables_.bos); !status.ok()) return status;
    if (Status status = read_named_token(config, "eos_token", tables_.eos); !status.ok()) return status;
    if ((ends.bos >= 0 && ends.bos != tables_.bos) || (ends.eos >= 0 && ends.eos != tables_.eos)) {
      return unsupported("tokenizer.json: post_processor: got other tokens than bos_token and eos_token");
    }
    if (!model_config.empty()) {
      const Result<json> model = parse_json(model_config, "config.json: ");
      if (!model.ok()) return model.status();
      if (model.value().is_object()) {
        read_model_id(model.value(), "bos_token_id", tables_.bos);
        read_model_id(model.value(), "eos_token_id", tables_.eos);
      }
    }
    tables_.add_bos = wants(config, "add_bos_token", ends.bos >= 0);
    tables_.add_eos = wants(config, "add_eos_token", ends.eos >= 0);
    if ((tables_.add_bos && tables_.bos < 0) || (tables_.add_eos && tables_.eos < 0)) {
      return invalid("tokenizer_config.json: add_bos_token or add_eos_token is true, and no such token is named");
    }
    return {};
  }

  // One text, or a list of named ones of which "default" counts.
  static std::string template_of(const json& value) {
    if (value.is_string()) return value.get<std::string>();
    std::string found;
    if (!value.is_array()) return found;
    for (const json& entry : value) {
      if (entry.is_object() && text_at(entry, "name") == "default") found = text_at(entry, "template");
    }
    return found;
  }

  void read_chat(const json& config, const std::string& file) {
    tables_.chat_source = file.empty() ? template_of(at(config, "chat_template")) : file;
    if (tables_.chat_source.empty()) {
      tables_.chat_source = tables_.ids.count("<｜User｜>") > 0 ? kDeepSeekV3Chat : kDeepSeekV2Chat;
    }
    tables_.chat = ChatTemplate::parse(tables_.chat_source);
  }

  TokenizerTables& tables_;
};

}  // namespace

Result<std::shared_ptr<const TokenizerTables>> read_tokenizer(const TokenizerFiles& files) {
  const auto tables = std::make_shared<TokenizerTables>();
  if (Status status = Reader(*tables).read(files); !status.ok()) return status;
  return std::shared_ptr<const TokenizerTables>(tables);
}

}  // namespace flashmla::runner
