"""The C++ side. Arrays are DLPack capsules, DLPack producers or buffers; arguments are positional."""

from collections.abc import Callable
from typing import Any

__version__: str

def decode(
    q: Any,
    q_rope: Any,
    kv_cache: Any,
    page_table: Any,
    seq_lens: Any,
    cu_seqlens_q: Any,
    out: Any,
    lse: Any,
    status: Any,
    softmax_scale: float,
    causal: bool,
    latent_dim: int,
    kv_format: str | None,
    empty_lse: str,
    splits: int,
    batch_invariant: bool,
    backend: str | None,
    isa: str | None,
    threads: int,
    uint16_is_bf16: bool = False,
    stream: int = 0,
    allocate: Callable[[int], int] | None = None,
    /,
) -> None: ...
def prefill(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    out: Any,
    lse: Any,
    softmax_scale: float,
    causal: bool,
    empty_lse: str,
    backend: str | None,
    isa: str | None,
    threads: int,
    uint16_is_bf16: bool = False,
    stream: int = 0,
    allocate: Callable[[int], int] | None = None,
    /,
) -> None: ...
def append_kv(
    latent: Any,
    rope: Any,
    kv_cache: Any,
    slot_mapping: Any,
    status: Any,
    kv_format: str | None,
    backend: str | None,
    isa: str | None,
    threads: int,
    uint16_is_bf16: bool = False,
    stream: int = 0,
    /,
) -> None: ...
def merge_states(
    out_a: Any,
    lse_a: Any,
    out_b: Any,
    lse_b: Any,
    out: Any,
    lse: Any,
    empty_lse: str,
    backend: str | None,
    isa: str | None,
    threads: int,
    uint16_is_bf16: bool = False,
    stream: int = 0,
    /,
) -> None: ...
def explain_decode(
    batch: int,
    seq_q: int,
    heads_q: int,
    heads_kv: int,
    latent_dim: int,
    rope_dim: int,
    page_size: int,
    table_width: int,
    dtype: str,
    causal: bool,
    splits: int,
    batch_invariant: bool,
    backend: str | None,
    isa: str | None,
    threads: int,
    cuda_index: int | None,
    /,
) -> tuple[str, str, str, int]: ...
def backends() -> list[tuple[str, str, int]]: ...
def cpu_info() -> tuple[str, int, list[str], int, int]: ...

class Tokenizer:
    @staticmethod
    def load(folder: str, /) -> Tokenizer: ...
    def encode(
        self, text: bytes, add_bos: bool | None, add_eos: bool | None, match_added_tokens: bool, /
    ) -> list[int]: ...
    def decode(self, ids: list[int], skip_special: bool, /) -> str: ...
    def token_bytes(self, token_id: int, /) -> bytes | None: ...
    def is_special(self, token_id: int, /) -> bool: ...
    def token_to_id(self, token: str, /) -> int | None: ...
    def id_to_token(self, token_id: int, /) -> str | None: ...
    def size(self) -> int: ...
    def bos_id(self) -> int: ...
    def eos_id(self) -> int: ...
    def adds_bos(self) -> bool: ...
    def chat_template(self) -> str: ...
    def render_chat(self, messages: str, add_generation_prompt: bool, variables: str, /) -> str: ...

class StreamDecoder:
    def __init__(self, tokenizer: Tokenizer, skip_special: bool, /) -> None: ...
    def push(self, token_id: int, /) -> str: ...
    def finish(self) -> str: ...

class Llm:
    def __init__(
        self,
        model: str,
        dtype: str,
        quantization: str,
        random_seed: int | None,
        threads: int,
        backend: str,
        attention_form: str,
        max_model_len: int | None,
        block_size: int,
        max_num_seqs: int,
        /,
    ) -> None: ...
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        temperature: float,
        top_p: float,
        top_k: int,
        seed: int,
        stop: list[str],
        stop_token_ids: list[int],
        ignore_eos: bool,
        /,
    ) -> int: ...
    def cancel(self, request: int, /) -> None: ...
    def step(self) -> list[tuple[int, list[int], bytes, bool, str]]: ...
    def folder(self) -> str: ...
    def has_tokenizer(self) -> bool: ...
    def vocab(self) -> int: ...
    def backend(self) -> str: ...
    def logits(self, tokens: list[int], out: Any, /) -> None: ...
