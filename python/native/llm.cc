#include "llm.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "array_arg.h"
#include "runner/model/engine.h"
#include "runner/model/loading.h"
#include "runner/model/score.h"

namespace flashmla::python {

namespace {

template <class T>
T value_or_raise(Result<T> result) {
  raise_if_error(result.status());
  return std::move(result).value();
}

// A loaded model and its engine. One call at a time: the engine belongs to whoever holds the mutex.
class Llm {
 public:
  using Output = std::tuple<int64_t, std::vector<int32_t>, nb::bytes, bool, std::string>;

  Llm(const std::string& model, const std::string& dtype, const std::string& quantization,
      std::optional<uint64_t> random_seed, int32_t threads, const std::string& backend, const std::string& form,
      std::optional<int64_t> max_model_len, int64_t block_size, int64_t max_num_seqs) {
    step_ = {.form = value_or_raise(runner::parse_attention_form(form)), .backend = backend};
    loaded_ = value_or_raise([&] {
      const nb::gil_scoped_release unlocked;
      return runner::load_model({.model = model,
                                 .dtype = dtype,
                                 .quantization = quantization,
                                 .random_seed = random_seed,
                                 .threads = threads});
    }());
    runner::EngineOptions options;
    options.cache_dtype = loaded_.cache_dtype;
    options.max_model_len =
        max_model_len.value_or(std::min(options.max_model_len, loaded_.model->config().max_position));
    options.page_size = block_size;
    options.max_num_seqs = max_num_seqs;
    options.step = step_;
    engine_ = value_or_raise(runner::Engine::make(loaded_.model, loaded_.tokenizer, options));
  }

  int64_t add(std::vector<int32_t> prompt, int64_t max_tokens, double temperature, double top_p, int64_t top_k,
              uint64_t seed, std::vector<std::string> stop, std::vector<int32_t> stop_token_ids, bool ignore_eos) {
    const std::lock_guard lock(mutex_);
    return value_or_raise(engine_->add(std::move(prompt), {.max_tokens = max_tokens,
                                                           .temperature = temperature,
                                                           .top_p = top_p,
                                                           .top_k = top_k,
                                                           .seed = seed,
                                                           .stop = std::move(stop),
                                                           .stop_token_ids = std::move(stop_token_ids),
                                                           .ignore_eos = ignore_eos}));
  }

  void cancel(int64_t request) {
    const std::lock_guard lock(mutex_);
    engine_->cancel(request);
  }

  // (request, new tokens, text as UTF-8, finished, finish reason) of each request that moved.
  std::vector<Output> step() {
    std::vector<runner::EngineOutput> outputs;
    Status status;
    {
      const nb::gil_scoped_release unlocked;
      const std::lock_guard lock(mutex_);
      status = engine_->step(outputs);
    }
    raise_if_error(status);
    std::vector<Output> result;
    for (runner::EngineOutput& output : outputs) {
      result.emplace_back(output.request, std::move(output.tokens), nb::bytes(output.text.data(), output.text.size()),
                          output.finished, std::move(output.finish_reason));
    }
    return result;
  }

  std::string folder() const { return loaded_.folder; }
  bool has_tokenizer() const { return loaded_.tokenizer.has_value(); }
  int64_t vocab() const { return loaded_.model->config().vocab; }
  std::string backend() const {
    const KernelChoice choice = value_or_raise(runner::explain_model_decode(loaded_, step_));
    return choice.backend + " (" + choice.kernel + ": " + choice.reason + ")";
  }

  // Fills `out`, fp32 [tokens, vocab].
  void logits(const std::vector<int32_t>& tokens, nb::handle out) const {
    const OutputArray array("out", out, false);
    auto* to = static_cast<float*>(array.view().data);
    Status status;
    {
      const nb::gil_scoped_release unlocked;
      status = runner::visit_logits(loaded_, tokens, {.step = step_}, [&](int64_t position, const float* row) {
        std::copy_n(row, vocab(), to + position * vocab());
      });
    }
    raise_if_error(status);
  }

 private:
  runner::StepOptions step_;
  runner::LoadedModel loaded_;
  std::unique_ptr<runner::Engine> engine_;
  std::mutex mutex_;
};

}  // namespace

void add_llm(nb::module_& module) {
  nb::class_<Llm>(module, "Llm")
      .def(nb::init<const std::string&, const std::string&, const std::string&, std::optional<uint64_t>, int32_t,
                    const std::string&, const std::string&, std::optional<int64_t>, int64_t, int64_t>())
      .def("add", &Llm::add)
      .def("cancel", &Llm::cancel)
      .def("step", &Llm::step)
      .def("folder", &Llm::folder)
      .def("has_tokenizer", &Llm::has_tokenizer)
      .def("vocab", &Llm::vocab)
      .def("backend", &Llm::backend)
      .def("logits", &Llm::logits);
}

}  // namespace flashmla::python
