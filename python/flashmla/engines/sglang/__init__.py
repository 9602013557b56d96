"""SGLang plug-in: decodes MLA models with flashmla.

SGLang finds it through the entry point of the installed package; `--attention-backend flashmla_native` chooses it.
docs/serving-sglang.md says what it serves. Written against the sources of SGLang 0.5.15.post1 and held against them by
contract tests; it was not run inside the engine yet. Importing this module imports neither torch nor SGLang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

# Not "flashmla": that is SGLang's own back end on the upstream FlashMLA, and SGLang asks for that name in many places:
# it forces pages of 64 tokens, expects ragged prefill and makes draft back ends. No name of SGLang's own is this one.
NAME = "flashmla_native"


def register() -> None:
    """Entry point `sglang.srt.plugins`: makes the back end known, by name and on the command line. SGLang calls it in
    each of its processes, before it parses arguments; calls after the first change nothing.

    Raises:
        RuntimeError: something else has the name already.
    """
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices

    holder = ATTENTION_BACKENDS.get(NAME, create_backend)
    if holder is not create_backend:
        raise RuntimeError(f"register: SGLang's attention back end {NAME!r} is {holder!r} already; want the name free")
    register_attention_backend(NAME)(create_backend)
    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])


def create_backend(runner: ModelRunner) -> Any:
    """The back end of a model runner; SGLang calls this once the model and its cache are there.

    Raises:
        ValueError, NotImplementedError: the model, its cache or an option is not served, by name.
    """
    # Here and not in `register`, since it imports SGLang's models, which the process of the command line never needs.
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
        handle_attention_triton,
    )

    from .backend import FlashMLAAttentionBackend

    backend = FlashMLAAttentionBackend(runner)
    # Prompts go to SGLang's Triton back end, so that its rule decides between the MHA and the absorbed form.
    AttentionBackendRegistry.register(NAME, handle_attention_triton)
    return backend
