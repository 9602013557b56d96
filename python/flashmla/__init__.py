"""flashmla: Multi-head Latent Attention (MLA) operations on NumPy arrays, torch tensors, JAX arrays and other DLPack arrays.

`decode` is the attention over a paged latent cache, `prefill` that of packed sequences in MHA form, `append_kv` writes new tokens into the cache, `merge_states` joins
partial results. `flashmla.flash_mla` is a drop-in for programs written for the package `flash_mla`. With torch, the same
operations are custom ops (`torch.ops.flashmla`) that torch.compile traces. `Tokenizer` reads a checkpoint's tokenizer and
chat template, `LLM` generates text.
"""

from __future__ import annotations

from typing import Any

from ._native import __version__
from ._llm import LLM, Generation, SamplingParams
from ._operations import (
    Backend,
    CpuInfo,
    KernelChoice,
    append_kv,
    backends,
    cpu_info,
    decode,
    explain_decode,
    merge_states,
    prefill,
)
from ._tokenizer import StreamDecoder, Tokenizer

__all__ = [
    "Backend",
    "CpuInfo",
    "Generation",
    "KernelChoice",
    "LLM",
    "SamplingParams",
    "StreamDecoder",
    "Tokenizer",
    "__version__",
    "append_kv",
    "backends",
    "cpu_info",
    "decode",
    "explain_decode",
    "merge_states",
    "prefill",
]


def __getattr__(name: str) -> Any:
    # `flashmla.flash_mla` imports torch, so it is loaded when it is asked for.
    if name == "flash_mla":
        import importlib

        return importlib.import_module("flashmla.flash_mla")
    raise AttributeError(f"module 'flashmla' has no attribute {name!r}")
