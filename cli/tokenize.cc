// flashmla tokenize: text on standard input to token ids, and back.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "exit_code.h"
#include "flags.h"
#include "runner/checkpoint/model_folder.h"
#include "runner/tokenizer/tokenizer.h"

namespace flashmla::cli {

namespace {

constexpr const char* kExamples = R"(Reads standard input to its end. Bytes that are not UTF-8 are read as U+FFFD.

Examples:
  printf 'Hello' | flashmla tokenize --model DIR            ids on one line, separated by spaces
  echo '19923 3' | flashmla tokenize --model DIR --decode   the text, nothing added to it
  printf 'Hello' | flashmla tokenize --model DIR --chat     the prompt of that one user message
  printf 'Hello' | flashmla tokenize --model DIR --pieces   one line a token: its id and its text, escaped)";

struct TokenizeFlags {
  std::string model;
  bool decode = false;
  bool chat = false;
  bool pieces = false;
  bool no_bos = false;
  bool skip_special = false;
};

std::string standard_input() { return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()}; }

// Ids between white space or commas, within brackets or not: as Python prints a list.
std::vector<int32_t> parse_ids(std::string text) {
  for (char& c : text) {
    if (c == ',' || c == '[' || c == ']' || c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  std::vector<int32_t> ids;
  for (size_t begin = 0; (begin = text.find_first_not_of(' ', begin)) != std::string::npos;) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    ids.push_back(
        static_cast<int32_t>(parse_integer("standard input", text.substr(begin, end - begin), {0, INT32_MAX})));
    begin = end;
  }
  return ids;
}

// A token's bytes as one printable line: a token may hold half a character.
std::string escaped(std::string_view bytes) {
  std::string text;
  for (char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == '\\') {
      text += "\\\\";
    } else if (byte < 0x20 || byte >= 0x7F) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  return text;
}

std::vector<int32_t> encode(const TokenizeFlags& flags, const runner::Tokenizer& tokenizer) {
  runner::EncodeOptions options;
  if (flags.no_bos) options.add_bos = false;
  std::string text = standard_input();
  if (flags.chat) {
    text = value_or_usage_error(tokenizer.render_chat({{"user", text}}, true));
    options.add_bos = false;  // a chat format has its own
  }
  return value_or_usage_error(tokenizer.encode(text, options));
}

int run_tokenize(const TokenizeFlags& flags) {
  const std::string folder = value_or_usage_error(runner::resolve_model(flags.model));
  const runner::Tokenizer tokenizer = value_or_usage_error(runner::Tokenizer::load(folder));
  if (flags.decode) {
    const std::string text =
        value_or_usage_error(tokenizer.decode(parse_ids(standard_input()), {.skip_special = flags.skip_special}));
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kExitRight;
  }
  const std::vector<int32_t> ids = encode(flags, tokenizer);
  if (flags.pieces) {
    for (int32_t id : ids) fmt::print("{}\t{}\n", id, escaped(*tokenizer.token_bytes(id)));
  } else {
    fmt::print("{}\n", fmt::join(ids, " "));
  }
  return kExitRight;
}

}  // namespace

void add_tokenize(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("tokenize", "Text on standard input to token ids, and back");
  auto flags = std::make_shared<TokenizeFlags>();
  add_text(*command, "--model", flags->model, "DIR", "folder with tokenizer.json, or ORG/NAME in a local cache")
      ->required();
  command->add_flag("--decode", flags->decode, "ids on standard input to text");
  command->add_flag("--chat", flags->chat, "standard input is a user's message: the prompt by the chat template");
  command->add_flag("--pieces", flags->pieces, "one line a token: its id and its bytes");
  command->add_flag("--no-bos", flags->no_bos, "never begin with the begin-of-sentence token");
  command->add_flag("--skip-special", flags->skip_special, "with --decode: leave special tokens out");
  command->footer(kExamples);
  command->callback([flags, &action] {
    if (flags->decode && (flags->chat || flags->pieces || flags->no_bos)) {
      throw UsageError("--decode: got --chat, --pieces or --no-bos beside it; want --skip-special or nothing");
    }
    if (flags->skip_special && !flags->decode) throw UsageError("--skip-special: want --decode beside it");
    action = [flags] { return run_tokenize(*flags); };
  });
}

}  // namespace flashmla::cli
