"""Drop-in for programs written for the package `flash_mla`: its functions, on this library's decode.

Serves both generations of that interface: metadata as two int32 tensors, or as one `FlashMLASchedMeta`. This library
plans its work inside the call, so that neither is read: a stale or foreign schedule cannot make a result wrong.

    import flashmla
    flashmla.flash_mla.install()      # from here on `import flash_mla` gives this module's functions
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

Differences: any page size, head count and width, `h_kv` > 1, dtypes bf16 and fp16, and fp32 on the CPU; tensors on an
NVIDIA GPU or on the CPU (prefill: on the CPU only in this version). Wrong arguments raise ValueError, and what is not
there yet raises NotImplementedError, both by name.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

import torch

from ._native import __version__
from ._operations import decode, prefill

__all__ = [
    "FlashMLASchedMeta",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "get_mla_metadata",
]

_METADATA_WIDTH = 8  # int32 values of one part in the tensor generation's schedule
_PLAIN_FORMATS = ("bf16", "fp16", "fp32")


@dataclasses.dataclass
class FlashMLASchedMeta:
    """Schedule holder of the second generation. Callers may assign its fields; this library reads none of them."""

    have_initialized: bool = False
    config: Any = None
    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None


def _refuse(feature: str, **arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{name}: {feature} is not in this version of flashmla; want {name} left out")


# What the library calls an argument, and what the drop-in's functions call it.
_DECODE_NAMES = {"kv_cache": "k_cache", "page_table": "block_table", "seq_lens": "cache_seqlens", "latent_dim": "head_dim_v"}
_PREFILL_NAMES = {"cu_seqlens_q": "cu_seqlens_qo", "cu_seqlens_k": "cu_seqlens_kv"}


def _in_terms_of(names: dict[str, str], operation: Any, *arguments: Any, **options: Any) -> Any:
    """Calls the operation; its errors name the arguments as the caller of the drop-in wrote them."""
    if torch.compiler.is_compiling():
        return operation(*arguments, **options)
    try:
        return operation(*arguments, **options)
    except (ValueError, NotImplementedError) as error:
        text = re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[0]], str(error))
        raise type(error)(text) from None


def _default_scale(q: torch.Tensor) -> float:
    # A q without width is refused by the operation itself, by name.
    return q.shape[-1] ** -0.5 if q.ndim > 0 and q.shape[-1] > 0 else 1.0


def get_mla_metadata(
    cache_seqlens: torch.Tensor | None = None,
    num_q_tokens_per_head_k: int | None = None,
    num_heads_k: int | None = None,
    num_heads_q: int | None = None,
    is_fp8_kvcache: bool = False,
    topk: int | None = None,
    *,
    num_heads_per_head_k: int | None = None,
) -> tuple[Any, Any]:
    """What the caller of `flash_mla_with_kvcache` passes on as schedule.

    Without arguments `(FlashMLASchedMeta(), None)`. With arguments, for programs of the first generation: int32 tensors
    `[parts, 8]` and `[b + 1]` on the device of `cache_seqlens` (int32 `[b]`). The head counts are accepted and not
    needed; `num_heads_per_head_k` is the older name of `num_q_tokens_per_head_k`.

    Raises:
        ValueError: `cache_seqlens` is not an int32 tensor of one dimension.
        NotImplementedError: `is_fp8_kvcache` or `topk`, which this version does not compute.
    """
    _refuse("an FP8 cache", is_fp8_kvcache=is_fp8_kvcache)
    _refuse("sparse attention", topk=topk)
    counts = (num_q_tokens_per_head_k, num_heads_k, num_heads_q, num_heads_per_head_k)
    if cache_seqlens is None and all(count is None for count in counts):
        return FlashMLASchedMeta(), None
    if not isinstance(cache_seqlens, torch.Tensor):
        raise ValueError(f"cache_seqlens: got {type(cache_seqlens).__name__}; want an int32 tensor [b]")
    if cache_seqlens.dtype != torch.int32 or cache_seqlens.ndim != 1:
        raise ValueError(
            f"cache_seqlens: got {cache_seqlens.dtype} of shape {tuple(cache_seqlens.shape)}; want an int32 tensor [b]"
        )
    device = cache_seqlens.device
    parts = torch.zeros((1, _METADATA_WIDTH), dtype=torch.int32, device=device)
    return parts, torch.arange(cache_seqlens.shape[0] + 1, dtype=torch.int32, device=device)


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: Any,
    num_splits: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    *,
    use_legacy: bool | None = None,
    kv_format: str | None = None,
    descale_q: torch.Tensor | None = None,
    descale_k: torch.Tensor | None = None,
    enable_batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode attention over a paged cache.

    Args:
        q: `[b, s_q, h_q, d_qk]`, bf16, fp16 or fp32.
        k_cache: `[pages, page, h_kv, d_qk]`, dtype of `q`; `h_kv` divides `h_q`.
        block_table: int32 `[b, width]`.
        cache_seqlens: int32 `[b]`.
        head_dim_v: V is the first `head_dim_v` values of a cache row.
        tile_scheduler_metadata, num_splits: what `get_mla_metadata` gave, of either generation; not read.
        softmax_scale: default `d_qk ** -0.5`. (The model's own scale differs: pass it.)
        causal: query `i` of `s_q` sees the first `seq_len - s_q + i + 1` keys.
        enable_batch_invariant: a request's bits do not depend on the other requests.
        use_legacy: accepted; there is one kernel path.
        kv_format: None or the plain format of the dtype ('bf16', 'fp16', 'fp32').
        is_fp8_kvcache, descale_q, descale_k: FP8, refused in this version.
        indices, attn_sink, extra_k_cache, extra_indices_in_kvcache, topk_length, extra_topk_length: sparse attention,
            refused in this version.

    Returns:
        `(out, lse)`: `[b, s_q, h_q, head_dim_v]` in the dtype of `q`, and fp32 `[b, h_q, s_q]`, natural logarithm. A
        row that sees no key has out 0 and lse +inf.

    Raises:
        ValueError: an argument is wrong. NotImplementedError: a feature or device that this version lacks, by name.
    """
    del use_legacy
    _refuse("FP8", is_fp8_kvcache=is_fp8_kvcache, descale_q=descale_q, descale_k=descale_k)
    if kv_format is not None and kv_format not in _PLAIN_FORMATS:
        raise NotImplementedError(f"kv_format: got {kv_format!r}; this version of flashmla has {_PLAIN_FORMATS}")
    _refuse(
        "sparse attention", indices=indices, attn_sink=attn_sink, extra_k_cache=extra_k_cache,
        extra_indices_in_kvcache=extra_indices_in_kvcache, topk_length=topk_length,
        extra_topk_length=extra_topk_length,
    )  # fmt: skip
    _check_schedule(tile_scheduler_metadata, num_splits)
    for name, tensor in (
        ("q", q), ("k_cache", k_cache), ("block_table", block_table), ("cache_seqlens", cache_seqlens)
    ):  # fmt: skip
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name}: got {type(tensor).__name__}; want a torch.Tensor")
    out, lse = _in_terms_of(
        _DECODE_NAMES,
        decode,
        q,
        k_cache,
        block_table,
        cache_seqlens,
        softmax_scale=_default_scale(q) if softmax_scale is None else softmax_scale,
        causal=causal,
        latent_dim=head_dim_v,
        return_lse=True,
        batch_invariant=enable_batch_invariant,
        kv_format=kv_format,
    )
    return out, lse


def _check_schedule(metadata: Any, num_splits: Any) -> None:
    # By name: a FlashMLASchedMeta of another copy of the interface is as good, since it is not read.
    if not isinstance(metadata, torch.Tensor) and type(metadata).__name__ != "FlashMLASchedMeta":
        raise ValueError(
            f"tile_scheduler_metadata: got {type(metadata).__name__}; want what get_mla_metadata returned: a "
            f"FlashMLASchedMeta or an int32 tensor"
        )
    if num_splits is not None and not isinstance(num_splits, torch.Tensor):
        raise ValueError(f"num_splits: got {type(num_splits).__name__}; want None or an int32 tensor [b + 1]")


def _not_yet(name: str, feature: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name}: {feature} is not in this version of flashmla")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Not in this version ({feature}): raises NotImplementedError."
    return refuse


flash_mla_sparse_fwd = _not_yet("flash_mla_sparse_fwd", "sparse prefill")


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_qo: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prefill attention of packed sequences, forward only.

    Args:
        q: `[total_q, h_q, d_qk]`, bf16, fp16 or fp32. k: `[total_k, h_kv, d_qk]`. v: `[total_k, h_kv, d_v]`.
        cu_seqlens_qo, cu_seqlens_kv: int32 `[b + 1]`.
        max_seqlen_qo, max_seqlen_kv: accepted; the lengths are read from the tensors.
        dropout_p: 0; anything else is refused.
        softmax_scale: default `d_qk ** -0.5`.
        causal: aligned to the end of the keys.
        deterministic: accepted; every call is.
        is_varlen: accepted; equal lengths are a case of varied ones.

    Returns:
        `(out, lse)`: `[total_q, h_q, d_v]` in the dtype of `q`, and fp32 `[total_q, h_q]` (contiguous along total_q),
        natural logarithm; +inf where a row sees no key.

    Raises:
        ValueError: an argument is wrong, or a tensor requires a gradient. NotImplementedError: dropout, or a GPU tensor.
    """
    del max_seqlen_qo, max_seqlen_kv, deterministic, is_varlen
    if dropout_p != 0.0:
        raise NotImplementedError(f"dropout_p: got {dropout_p}; this version of flashmla has no dropout, want 0")
    for name, tensor in (
        ("q", q), ("k", k), ("v", v), ("cu_seqlens_qo", cu_seqlens_qo), ("cu_seqlens_kv", cu_seqlens_kv)
    ):  # fmt: skip
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name}: got {type(tensor).__name__}; want a torch.Tensor")
    scale = _default_scale(q) if softmax_scale is None else softmax_scale
    out, lse = _in_terms_of(
        _PREFILL_NAMES, prefill, q, k, v, cu_seqlens_qo, cu_seqlens_kv, softmax_scale=scale, causal=causal,
        return_lse=True,
    )  # fmt: skip
    return out, lse.transpose(0, 1)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`flash_attn_varlen_func` with q, k and v side by side in `[total, h, d_qk + d_qk + d_v]`."""
    q, k, v = qkv[..., :head_dim_qk], qkv[..., head_dim_qk : 2 * head_dim_qk], qkv[..., 2 * head_dim_qk :]
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, deterministic,
        is_varlen,
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_qo: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`flash_attn_varlen_func` with k and v side by side in `[total_k, h_kv, d_qk + d_v]`."""
    return flash_attn_varlen_func(
        q, kv[..., :head_dim_qk], kv[..., head_dim_qk:], cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv,
        dropout_p, softmax_scale, causal, deterministic, is_varlen,
    )  # fmt: skip


_PROVIDED = ("flash_mla", "flash_mla.flash_mla_interface")
_MARK = "__provided_by_flashmla__"


def install() -> None:
    """Registers this module as `flash_mla` and `flash_mla.flash_mla_interface` for this process.

    Once is enough; more often changes nothing. Nothing is written to disk, and the name `flash_mla` in site-packages
    stays with whoever owns it.

    Raises:
        RuntimeError: another `flash_mla` is loaded already; programs hold its functions, and two must not be mixed.
    """
    for name in _PROVIDED:
        loaded = sys.modules.get(name)
        if loaded is not None and not hasattr(loaded, _MARK):
            where = getattr(loaded, "__file__", None) or "an unknown place"
            raise RuntimeError(
                f"install: another '{name}' is loaded from {where}; call flashmla.flash_mla.install() before the first "
                f"import of flash_mla"
            )
    if all(name in sys.modules for name in _PROVIDED):
        return
    package, interface = (types.ModuleType(name, __doc__) for name in _PROVIDED)
    for module in (package, interface):
        # A spec, since programs look for the package with importlib.util.find_spec.
        module.__spec__ = ModuleSpec(module.__name__, None, origin=__file__, is_package=module is package)
        module.__file__ = __file__
        setattr(module, _MARK, True)
        for name in __all__:
            setattr(module, name, globals()[name])
    package.__path__ = []
    package.__dict__["__version__"] = f"1.0.0+flashmla.{__version__}"
    package.__dict__["flash_mla_interface"] = interface
    sys.modules.update({package.__name__: package, interface.__name__: interface})
