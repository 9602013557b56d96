// tokenizer.json and its companions as tables.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runner/tokenizer/bpe.h"
#include "runner/tokenizer/chat_template.h"
#include "runner/tokenizer/pretokenizer.h"
#include "runner/tokenizer/tokenizer_added.h"

namespace flashmla::runner {

struct TokenizerTables {
  BpeModel bpe;
  PreTokenizer pretokenizer;
  AddedTokens added;
  std::unordered_map<std::string, int32_t> ids;  // token as written to id
  struct Token {
    std::string text;   // as written
    std::string bytes;  // what it decodes to
    bool exists = false;
    bool special = false;
  };
  std::vector<Token> tokens;  // by id
  int32_t bos = -1;
  int32_t eos = -1;
  bool add_bos = false;
  bool add_eos = false;
  std::string chat_source;
  Result<ChatTemplate> chat = ChatTemplate();  // an error here concerns chats alone
};

struct TokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;  // the following may be empty: absent
  std::string chat_template;
  std::string config_json;
};

Result<std::shared_ptr<const TokenizerTables>> read_tokenizer(const TokenizerFiles& files);

}  // namespace flashmla::runner
