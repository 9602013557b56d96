"""The engine's side of vllm_speed.py: one process with one back end of vLLM, which answers commands.

torch and vLLM are imported where they are first needed: the asking side wants neither.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import json
import os
import random
import statistics
import sys
import time
import traceback
import zlib
from typing import Any

OURS = "ours"


@dataclasses.dataclass(frozen=True)
class BackEnd:
    argument: str  # what vLLM calls it
    impl: str  # the class that has to compute
    mla: bool = True


_VLLM = "vllm.v1.attention.backends"
BACK_ENDS = {
    OURS: BackEnd("CUSTOM", "flashmla.engines.vllm.backend.FlashMLAImpl"),
    "FLASH_ATTN_MLA": BackEnd("FLASH_ATTN_MLA", f"{_VLLM}.mla.flashattn_mla.FlashAttnMLAImpl"),
    "FLASHMLA": BackEnd("FLASHMLA", f"{_VLLM}.mla.flashmla.FlashMLAImpl"),
    "TRITON_MLA": BackEnd("TRITON_MLA", f"{_VLLM}.mla.triton_mla.TritonMLAImpl"),
    "MHA": BackEnd("FLASH_ATTN", f"{_VLLM}.flash_attn.FlashAttentionImpl", mla=False),
}
PAGE = 64
BEST = 5  # log-probabilities for each token of --check-tokens
EXTRA_TOKENS = 2  # a request's first token and one to end with
SETTLING_STEPS = 4  # left out at the start of a measurement
CHUNK = 16  # steps
TTFT_REPEATS = 2  # a turn
MAX_BATCHED_TOKENS = 8192


def fill_weights(model: Any) -> None:
    """Normal weights that keep activations near one, so that tokens spread over the experts as with a trained model.

    vLLM's own dummy weights are as small as 1e-3, and equal in matrices of equal size. A parameter's values depend on
    its name and shape alone.
    """
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator(device=parameter.device).manual_seed(zlib.crc32(name.encode()))
            if parameter.dim() == 1:
                parameter.fill_(0.0 if "bias" in name else 1.0)
            else:
                gain = 1.0 if "embed_tokens" in name else parameter.shape[-1] ** -0.5
                parameter.normal_(0.0, gain, generator=generator)


def register_ours() -> str:
    """Makes flashmla known to vLLM, and says by which way."""
    if any(point.name == "flashmla" for point in importlib.metadata.entry_points(group="vllm.general_plugins")):
        return "entry point"
    from flashmla.engines.vllm import register

    register()
    return "register()"


def engine_arguments(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The arguments of vllm.LLM."""
    arguments = {
        "model": spec["model"], "dtype": spec["dtype"], "seed": 0, "skip_tokenizer_init": True,
        "load_format": spec["load_format"], "attention_backend": BACK_ENDS[name].argument, "block_size": PAGE,
        "max_model_len": spec["max_model_len"], "max_num_seqs": max(spec["batches"]),
        "max_num_batched_tokens": MAX_BATCHED_TOKENS, "enforce_eager": spec["eager"],
        # The first is what counts; the second passes the check that so much of the GPU is free.
        "kv_cache_memory_bytes": spec["kv_bytes"], "gpu_memory_utilization": 0.01,
    }  # fmt: skip
    if not spec["eager"]:
        arguments["cudagraph_capture_sizes"] = sorted(spec["batches"])
    return arguments


class Engine:
    def __init__(self, name: str, spec: dict[str, Any]) -> None:
        import torch
        import vllm

        plugin = register_ours() if name == OURS else None
        if spec["weights"] == "normal":
            from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

            DummyModelLoader.load_weights = lambda _loader, model, *_others: fill_weights(model)
        start = time.perf_counter()
        self.llm = vllm.LLM(**engine_arguments(name, spec))
        self.start_seconds = time.perf_counter() - start
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.vocabulary = self.llm.llm_engine.vllm_config.model_config.get_vocab_size()
        self.longest = spec["max_model_len"]
        self.texts: list[list[int]] = []
        self.fresh = random.Random(os.getpid())
        self.facts = {
            "backend": name,
            "impl": self._impl(name),
            "plugin": plugin,
            "start_s": round(self.start_seconds, 1),
            "vllm_version": vllm.__version__,
            "torch_version": torch.__version__,
            "cpus": os.cpu_count(),
            "cpu_threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            **self._cache(),
        }

    def _impl(self, name: str) -> str:
        """Raises where something else than was asked for computes, in any layer."""
        runner = self.core.model_executor.driver_worker.worker.model_runner
        layers = [
            layer
            for key, layer in runner.compilation_config.static_forward_context.items()
            if ".self_attn" in key and hasattr(layer, "impl")
        ]
        found = sorted({f"{type(layer.impl).__module__}.{type(layer.impl).__qualname__}" for layer in layers})
        count = runner.model_config.hf_config.num_hidden_layers
        if found != [BACK_ENDS[name].impl] or len(layers) != count:
            raise RuntimeError(f"{name}: {len(layers)} layers of {found}; want {count} of {BACK_ENDS[name].impl}")
        return found[0]

    def _cache(self) -> dict[str, Any]:
        config, cache = self.core.scheduler.kv_cache_config, self.llm.llm_engine.vllm_config.cache_config
        size = sum(tensor.size for tensor in config.kv_cache_tensors)
        tokens = config.num_blocks * cache.block_size
        return {"page_size": cache.block_size, "kv_cache_tokens": tokens, "kv_bytes_per_token": size / tokens}

    def _prompt(self, random_: random.Random, length: int) -> dict[str, list[int]]:
        return {"prompt_token_ids": [random_.randrange(self.vocabulary) for _ in range(length)]}

    def _prompts(self, batch: int, context: int) -> list[dict[str, list[int]]]:
        """The first `context` tokens of each request's own text: shorter prompts are cached with the longest."""
        while len(self.texts) < batch:
            self.texts.append(self._prompt(random.Random(len(self.texts)), self.longest)["prompt_token_ids"])
        return [{"prompt_token_ids": text[:context]} for text in self.texts[:batch]]

    def _sampling(self, tokens: int, logprobs: int | None = None) -> Any:
        from vllm import SamplingParams

        return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=logprobs)

    def prime(self, cases: list[list[int]]) -> dict[str, Any]:
        """Fills the prefix cache for `cases`, and runs every kernel of them once."""
        start = time.perf_counter()
        longest = [max(context for batch, context in cases if batch > number) for number in range(max(cases)[0])]
        prompts = [self._prompts(number + 1, context)[-1] for number, context in enumerate(longest)]
        self.llm.generate(prompts, self._sampling(1), use_tqdm=False)
        for batch, context in cases:
            self.llm.generate(self._prompts(batch, context), self._sampling(4), use_tqdm=False)
        for context in sorted({context for _, context in cases}):
            self.ttft(context)
        return {"seconds": time.perf_counter() - start}

    def decode(self, batch: int, context: int, steps: int) -> dict[str, Any]:
        """Tokens a second of `batch` requests that decode together, over all steps and for each chunk of steps."""
        engine, scheduler = self.llm.llm_engine, self.core.scheduler
        prompts = self._prompts(batch, context)
        # Cached again where other tokens have taken their place. Computed among the decode steps below, the last prompt
        # could have its first token after the first request's last one.
        self.llm.generate(prompts, self._sampling(1), use_tqdm=False)
        self.llm.enqueue(prompts, self._sampling(steps + EXTRA_TOKENS), use_tqdm=False)
        marks: list[tuple[float, int]] = []  # seconds, tokens so far
        used: list[float] = []  # CPU seconds
        while engine.has_unfinished_requests():
            engine.step()
            now = time.perf_counter()
            counts = [request.num_output_tokens for request in scheduler.running]
            if len(counts) == batch and min(counts) > 0:
                marks.append((now, sum(counts)))
                used.append(time.process_time())
        marks, used = marks[SETTLING_STEPS:], used[SETTLING_STEPS:]
        if len(marks) < max(steps // 2, 3):
            raise RuntimeError(
                f"only {len(marks)} of {steps} steps, the first {SETTLING_STEPS} left out, had all {batch} requests: "
                "their cache does not fit, or there are too few steps"
            )
        chunks = [*marks[::CHUNK], *([marks[-1]] if len(marks) <= CHUNK else [])]
        rates = [(later[1] - now[1]) / (later[0] - now[0]) for now, later in itertools.pairwise(chunks)]
        times = [1e3 * (later[0] - now[0]) for now, later in itertools.pairwise(marks)]
        tenths = statistics.quantiles(times, n=10)
        (first, before), (last, after) = marks[0], marks[-1]
        return {
            "tokens_per_s": (after - before) / (last - first),
            "chunk_tokens_per_s": [round(rate, 1) for rate in rates],
            "steps": len(marks) - 1,
            "tokens": after - before,
            "step_ms": [round(time_, 3) for time_ in (tenths[0], statistics.median(times), tenths[-1])],
            "cpu_share": round((used[-1] - used[0]) / (last - first), 2),
        }

    def ttft(self, context: int) -> dict[str, Any]:
        times = []
        for _ in range(TTFT_REPEATS):
            prompt = self._prompt(self.fresh, context)
            start = time.perf_counter()
            self.llm.generate([prompt], self._sampling(1), use_tqdm=False)
            times.append(1e3 * (time.perf_counter() - start))
        return {"ttft_ms": times}

    def tokens(self, lengths: list[int], count: int) -> dict[str, Any]:
        """Greedy tokens of a prompt of each length, all in one batch, and the best log-probabilities of each step."""
        prompts = [self._prompt(random.Random(length), length) for length in lengths]
        outputs = self.llm.generate(prompts, self._sampling(count, logprobs=BEST), use_tqdm=False)
        results = [output.outputs[0] for output in outputs]
        return {
            "tokens": [list(result.token_ids) for result in results],
            "best": [
                [{token: entry.logprob for token, entry in step.items()} for step in result.logprobs]
                for result in results
            ],
        }


def work(name: str, spec: dict[str, Any], answers: int) -> None:
    """Answers the commands on stdin, a JSON object each, on the file descriptor `answers`. stdout has vLLM's log."""
    with os.fdopen(answers, "w", buffering=1) as out:

        def answer(value: dict[str, Any]) -> None:
            out.write(json.dumps(value) + "\n")

        try:
            engine = Engine(name, spec)
        except BaseException as error:
            traceback.print_exc()
            answer({"error": f"start: {type(error).__name__}: {error}"})
            return
        answer(engine.facts)
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer(getattr(engine, command.pop("do"))(**command))
            except Exception as error:
                traceback.print_exc()
                answer({"error": f"{type(error).__name__}: {error}"})
