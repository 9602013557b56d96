// Text to token ids and back, as tokenizer.json and tokenizer_config.json of a checkpoint say; chat templates.
//
// Read: byte-level BPE ("model.type" BPE with a token for each of the 256 bytes), pre-tokenizers Sequence, Split,
// Digits and ByteLevel, no normalizer, added tokens, merges as "a b" or as pairs. Everything else is refused by name.
// Character classes are those of the PCRE2 in use: with PCRE2 10.42 characters newer than Unicode 14 count as
// unassigned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashmla/status.h"

namespace flashmla::runner {

struct EncodeOptions {
  // Begin with the begin-of-sentence token, unless the text begins with it itself: it never stands there twice. Unset:
  // as the files say ("add_bos_token" of tokenizer_config.json, else whether the post-processor of tokenizer.json
  // does).
  std::optional<bool> add_bos{};
  // End with the end-of-sentence token, by the same rules ("add_eos_token").
  std::optional<bool> add_eos{};
  // false: "<｜User｜>" in the text is encoded as the characters that it is, not as the token. For text of strangers.
  bool match_added_tokens = true;
};

struct DecodeOptions {
  bool skip_special = false;  // leave out tokens marked special, such as begin and end of sentence
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant" or what the template knows
  std::string content;
};

struct TokenizerTables;  // runner/tokenizer/tokenizer_file.h

// Copies share the tables. All functions may run in several threads at once.
class Tokenizer {
 public:
  // `folder` holds tokenizer.json and, as far as they exist, tokenizer_config.json, chat_template.jinja and config.json
  // (of which bos_token_id and eos_token_id count where tokenizer_config.json names no token).
  static Result<Tokenizer> load(const std::string& folder);
  // The contents of the files; empty ones are absent.
  static Result<Tokenizer> parse(const std::string& tokenizer_json, const std::string& tokenizer_config_json,
                                 const std::string& chat_template = "", const std::string& config_json = "");

  // Invalid UTF-8 in `text` is read as U+FFFD (runner/tokenizer/utf8.h). Error: a text above 2^30 bytes, or one on
  // which a split pattern exceeds its limit of steps.
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Valid UTF-8; bytes that are no character become U+FFFD. An added token gives its content (the package tokenizers
  // reads "é" in one as the byte E9). Error: an id that is no token.
  Result<std::string> decode(const std::vector<int32_t>& ids, const DecodeOptions& options = {}) const;

  // The bytes of one token, which need not be whole characters. nullopt: no such token.
  std::optional<std::string_view> token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  // As written in tokenizer.json ("Ġthe", "<｜User｜>").
  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(int32_t id) const;

  int32_t size() const;    // the largest id + 1
  int32_t bos_id() const;  // -1: none
  int32_t eos_id() const;  // -1: none
  bool adds_bos() const;   // what an unset EncodeOptions::add_bos means

  // The prompt of a conversation, by the checkpoint's chat template, or by the built-in format of DeepSeek-V3
  // (vocabularies with "<｜User｜>") or DeepSeek-V2 when it has none. It begins with the begin-of-sentence token where
  // the format does.
  Result<std::string> render_chat(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;
  // The same of JSON: a list of objects as chat APIs know them (tool calls included), and an object of further
  // variables of the template ("tools", "thinking", ...; "{}" or empty: none).
  Result<std::string> render_chat_json(const std::string& messages, bool add_generation_prompt,
                                       const std::string& variables = "") const;
  const std::string& chat_template() const;  // in use

 private:
  std::shared_ptr<const TokenizerTables> tables_;
};

// Decodes ids one by one and gives out whole characters only.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, const DecodeOptions& options = {})
      : tokenizer_(std::move(tokenizer)), options_(options) {}

  // The text that `id` completes; empty while a character is incomplete. An id that is no token (models round their
  // vocabulary up) gives nothing.
  std::string push(int32_t id);
  // What was held back, as U+FFFD. The decoder can then be used again.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string held_;  // at most 3 bytes
};

}  // namespace flashmla::runner
