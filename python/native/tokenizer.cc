#include "tokenizer.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "array_arg.h"
#include "runner/tokenizer/tokenizer.h"

namespace flashmla::python {

namespace {

using runner::DecodeOptions;
using runner::EncodeOptions;
using runner::StreamDecoder;
using runner::Tokenizer;

// Runs without the interpreter lock: a vocabulary takes a while to read, a long text to encode.
template <class Function>
auto value_of(Function function) {
  auto result = [&] {
    const nb::gil_scoped_release unlocked;
    return function();
  }();
  raise_if_error(result.status());
  return std::move(result).value();
}

Tokenizer load(const std::string& folder) {
  return value_of([&] { return Tokenizer::load(folder); });
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, const nb::bytes& text, std::optional<bool> add_bos,
                            std::optional<bool> add_eos, bool match_added_tokens) {
  const std::string_view view(text.c_str(), text.size());
  const EncodeOptions options{.add_bos = add_bos, .add_eos = add_eos, .match_added_tokens = match_added_tokens};
  return value_of([&] { return tokenizer.encode(view, options); });
}

std::string decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  return value_of([&] { return tokenizer.decode(ids, {.skip_special = skip_special}); });
}

std::optional<nb::bytes> token_bytes(const Tokenizer& tokenizer, int32_t id) {
  const auto bytes = tokenizer.token_bytes(id);
  if (!bytes) return std::nullopt;
  return nb::bytes(bytes->data(), bytes->size());
}

std::string render_chat(const Tokenizer& tokenizer, const std::string& messages, bool add_generation_prompt,
                        const std::string& variables) {
  return value_of([&] { return tokenizer.render_chat_json(messages, add_generation_prompt, variables); });
}

}  // namespace

void add_tokenizer(nb::module_& module) {
  nb::class_<Tokenizer>(module, "Tokenizer")
      .def_static("load", &load)
      .def("encode", &encode, nb::arg("text"), nb::arg("add_bos").none(), nb::arg("add_eos").none(),
           nb::arg("match_added_tokens"))
      .def("decode", &decode)
      .def("token_bytes", &token_bytes)
      .def("is_special", &Tokenizer::is_special)
      .def("token_to_id", &Tokenizer::token_to_id)
      .def("id_to_token", &Tokenizer::id_to_token)
      .def("size", &Tokenizer::size)
      .def("bos_id", &Tokenizer::bos_id)
      .def("eos_id", &Tokenizer::eos_id)
      .def("adds_bos", &Tokenizer::adds_bos)
      .def("chat_template", &Tokenizer::chat_template)
      .def("render_chat", &render_chat);
  nb::class_<StreamDecoder>(module, "StreamDecoder")
      .def("__init__",
           [](StreamDecoder* self, const Tokenizer& tokenizer, bool skip_special) {
             new (self) StreamDecoder(tokenizer, DecodeOptions{.skip_special = skip_special});
           })
      .def("push", &StreamDecoder::push)
      .def("finish", &StreamDecoder::finish);
}

}  // namespace flashmla::python
