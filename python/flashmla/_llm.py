"""Text generation with a DeepSeek-architecture checkpoint: the engine of `flashmla generate`."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from . import _native
from ._tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How an answer is chosen. The names are vLLM's."""

    max_tokens: int = 256
    temperature: float = 0.0
    """0 takes the likeliest token every time."""
    top_p: float = 1.0
    top_k: int = 0
    """Choose among this many likeliest tokens; 0: all."""
    seed: int = 0
    stop: str | Sequence[str] = ()
    """A text or several that end the answer; not part of it."""
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False


@dataclasses.dataclass
class Generation:
    """An answer."""

    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    """'stop' or 'length'; None while it is not finished."""


class LLM:
    """A DeepSeek-V2/V3-architecture model from its checkpoint folder, or from `ORG/NAME` in a local cache.

    Args:
        model: folder with config.json, safetensors shards and tokenizer.json; or ORG/NAME.
        dtype: of the cache and the attention: 'auto', 'bf16' or 'fp32'.
        quantization: 'int8' quantises the weights by row while loading; None keeps them as stored.
        backend: attention back end by name; None takes the best.
        attention_form: 'auto', 'mqa' (absorbed) or 'mha' (decompressed).
        max_model_len: tokens of one request, prompt and answer; None: the model's positions, at most 4096.
        block_size: tokens of a cache page. max_num_seqs: requests that run at once.
        threads: 0 takes all that the process may use.
        random_weights: a seed for full-size random weights in place of the checkpoint's, for measurements.

    Raises:
        ValueError: an argument or the checkpoint is wrong. NotImplementedError: an architecture that is not supported.
        RuntimeError: no memory.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "auto",
        quantization: str | None = None,
        backend: str | None = None,
        attention_form: str = "auto",
        max_model_len: int | None = None,
        block_size: int = 64,
        max_num_seqs: int = 16,
        threads: int = 0,
        random_weights: int | None = None,
    ) -> None:
        if not hasattr(_native, "Llm"):
            raise NotImplementedError("LLM: this build of flashmla has no runner (FLASHMLA_BUILD_RUNNER=OFF)")
        self._llm = _native.Llm(
            str(model), dtype, quantization or "", random_weights, threads, backend or "", attention_form, max_model_len,
            block_size, max_num_seqs,
        )  # fmt: skip
        self._lock = threading.RLock()  # collecting a garbage stream ends it, at any place in a thread
        self._inboxes: dict[int, collections.deque[tuple[list[int], bytes, bool, str]]] = {}
        self.tokenizer = Tokenizer(self._llm.folder()) if self._llm.has_tokenizer() else None
        """`flashmla.Tokenizer` of the checkpoint; None where the folder has none (random weights)."""

    @property
    def backend(self) -> str:
        """Attention back end, kernel, and why."""
        return str(self._llm.backend())

    def _ids(self, prompt: str | Sequence[int], chat: bool) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        if self.tokenizer is None:
            raise ValueError("prompt: got text for a model without a tokenizer; want token ids")
        if not chat:
            return self.tokenizer.encode(prompt)
        return list(self.tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=True))

    def _start(self, prompt: str | Sequence[int], sampling: SamplingParams | None, chat: bool) -> int:
        s = sampling or SamplingParams()
        ids = self._ids(prompt, chat)
        stop = [s.stop] if isinstance(s.stop, str) else list(s.stop)
        with self._lock:
            number = int(self._llm.add(
                ids, s.max_tokens, s.temperature, s.top_p, s.top_k, s.seed, stop, list(s.stop_token_ids), s.ignore_eos,
            ))  # fmt: skip
            self._inboxes[number] = collections.deque()
        return number

    def _next(self, number: int) -> tuple[list[int], bytes, bool, str]:
        """What the request gives next. A step moves every request of this object: what it gives the others, be they of an
        unfinished `stream` or of another thread, waits in their inboxes."""
        inbox = self._inboxes[number]
        while not inbox:
            with self._lock:
                if not inbox:
                    for request, tokens, text, finished, reason in self._llm.step():
                        if (to := self._inboxes.get(request)) is not None:
                            to.append((tokens, text, finished, reason))
        return inbox.popleft()

    def _end(self, number: int) -> None:
        with self._lock:
            self._llm.cancel(number)
            del self._inboxes[number]

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
        sampling_params: SamplingParams | None = None,
        *,
        chat: bool = True,
    ) -> list[Generation]:
        """Answers to one or more prompts, run as one batch.

        Args:
            prompts: a text, a list of texts, a list of token ids, or a list of those.
            sampling_params: for all of them; the default is greedy with 256 tokens.
            chat: put texts into the model's chat format as a user's message.

        Raises:
            ValueError: an empty prompt, one that leaves no room in max_model_len, or wrong sampling parameters.
        """
        single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        asked: list[Any] = [prompts] if single else list(prompts)
        answers: dict[int, Generation] = {}
        try:
            for prompt in asked:
                answers[self._start(prompt, sampling_params, chat)] = Generation()
            for request, answer in answers.items():
                while answer.finish_reason is None:
                    tokens, text, finished, reason = self._next(request)
                    answer.token_ids += tokens
                    answer.text += text.decode()
                    answer.finish_reason = reason if finished else None
        finally:
            for request in answers:
                self._end(request)
        return list(answers.values())

    def stream(
        self, prompt: str | Sequence[int], sampling_params: SamplingParams | None = None, *, chat: bool = True
    ) -> Iterator[str]:
        """The answer to one prompt, piece by piece. Leaving the loop early ends the request."""
        number = self._start(prompt, sampling_params, chat)
        done = False
        try:
            while not done:
                _, text, done, _ = self._next(number)
                if text:
                    yield text.decode()
        finally:
            self._end(number)

    def logits(self, token_ids: Sequence[int]) -> Any:
        """fp32 NumPy array `[len(token_ids), vocab]`: at each position, the logits of the token after it."""
        import numpy

        out = numpy.empty((len(token_ids), self._llm.vocab()), numpy.float32)
        self._llm.logits(list(token_ids), out)
        return out
