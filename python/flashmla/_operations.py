"""The operations, for arrays of every framework. torch tensors take the custom ops of `torch_ops`."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _native
from ._arrays import Place, Results, is_torch, reads_uint16_as_bf16, refuse_torch_stream
from ._shapes import bounded_latent_dim, decode_results, prefill_results


class Backend(NamedTuple):
    """A registered back end."""

    name: str
    device: str
    """'cpu' or 'cuda'."""
    priority: int
    """Of the back ends that take a call, the one with the highest priority runs it."""


class CpuInfo(NamedTuple):
    """What the back end "cpu" sees of this machine."""

    model: str
    """The processor's name."""
    threads: int
    """Default threads of a call: affinity and cgroup quota, or FLASHMLA_NUM_THREADS."""
    isas: tuple[str, ...]
    """Usable instruction sets, best first."""
    l2_bytes: int
    """Bytes of one core's level-2 cache; 0 when unknown."""
    l3_bytes: int
    """Bytes of the level-3 cache that one core sees; 0 when unknown."""


class KernelChoice(NamedTuple):
    """Which back end and kernel a decode runs, and why."""

    backend: str
    kernel: str
    reason: str
    workspace_bytes: int
    """Scratch memory that the call allocates and frees (with torch tensors on a GPU: by torch's allocator)."""


def backends() -> list[Backend]:
    """Registered back ends, highest priority first."""
    return [Backend(*row) for row in _native.backends()]


def cpu_info() -> CpuInfo:
    """This machine, as the back end "cpu" uses it."""
    model, threads, isas, l2_bytes, l3_bytes = _native.cpu_info()
    return CpuInfo(model, threads, tuple(isas), l2_bytes, l3_bytes)


def explain_decode(
    *,
    batch: int,
    heads_q: int,
    seq_k: int,
    seq_q: int = 1,
    heads_kv: int = 1,
    latent_dim: int = 512,
    rope_dim: int = 64,
    page_size: int = 64,
    dtype: str = "bf16",
    causal: bool = False,
    splits: int = 0,
    batch_invariant: bool = False,
    backend: str | None = None,
    isa: str | None = None,
    threads: int = 0,
    device: str | None = None,
) -> KernelChoice:
    """Says which back end and kernel `decode` runs for these sizes, why, and how much workspace it takes.

    `seq_k` is the longest cached sequence that the page table has room for; `dtype` is 'bf16', 'fp16' or 'fp32'. The
    other names are those of `decode`. `device` is 'cpu', 'cuda' (the first GPU) or 'cuda:1'; None is the device of
    `backend`, or the CPU. Raises as `decode` does.
    """
    cuda_index = _cuda_index(device, backend)
    if page_size < 1:
        raise ValueError(f"page_size: got {page_size}; want at least 1")
    if seq_k < 0:
        raise ValueError(f"seq_k: got {seq_k}; want at least 0")
    width = -(-seq_k // page_size)
    return KernelChoice(
        *_native.explain_decode(
            batch, seq_q, heads_q, heads_kv, latent_dim, rope_dim, page_size, width, dtype, bool(causal), splits,
            bool(batch_invariant), backend, isa, threads, cuda_index,
        )
    )  # fmt: skip


def _cuda_index(device: str | None, backend: str | None) -> int | None:
    if device is None:
        return 0 if any(row[:2] == (backend, "cuda") for row in _native.backends()) else None
    kind, colon, index = device.partition(":")
    if device == "cpu":
        return None
    if kind != "cuda" or (colon and not index.isdecimal()):
        raise ValueError(f"device: got {device!r}; want None, 'cpu', 'cuda' or 'cuda:' and a number")
    return int(index or 0)


def decode(
    q: Any,
    kv_cache: Any,
    page_table: Any,
    seq_lens: Any,
    *,
    softmax_scale: float,
    causal: bool = False,
    latent_dim: int = 512,
    q_rope: Any = None,
    cu_seqlens_q: Any = None,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
    empty_lse: str = "+inf",
    splits: int = 0,
    batch_invariant: bool = False,
    backend: str | None = None,
    isa: str | None = None,
    threads: int = 0,
    dtype: str | None = None,
    kv_format: str | None = None,
    stream: Any = None,
    status: Any = None,
) -> Any:
    """Decode attention over a paged latent (MLA) cache.

    K is a whole cache row of `d_qk` values; V is its first `d_v = latent_dim` values. Symbols: `b` requests, `s_q` query
    tokens of a request, `h_q` query heads, `h_kv` KV heads (it divides `h_q`; 1 in MLA), `page` tokens a page.

    Arrays are NumPy arrays, torch tensors, JAX arrays or anything else that speaks DLPack, all on the CPU or all on one
    NVIDIA GPU; they are read in place, whatever their strides (the last dimension of `q`, `kv_cache` and `out` is
    contiguous, and the other strides of `q` and `kv_cache` are multiples of 16 bytes). The interpreter lock is
    released. There is no backward: torch tensors that require a gradient are refused unless gradients are off.

    Args:
        q: fp32, fp16 or bf16 `[b, s_q, h_q, d_qk]`, or `[total_q, h_q, d_qk]` with `cu_seqlens_q`.
        kv_cache: `[pages, page, h_kv, d_qk]`, dtype of `q`; the page stride may span other layers.
        page_table: int32 `[b, width]`; entries past a length are never used.
        seq_lens: int32 `[b]`, cached tokens including the new ones; 0 is legal.
        softmax_scale: the model's scale, YaRN factor included. It has no default: in MLA it is not `d_qk ** -0.5`.
        causal: query `i` of `s_q` sees the first `seq_len - s_q + i + 1` keys.
        latent_dim: `d_v`.
        q_rope: the RoPE part of the queries on its own, `[b, s_q, h_q, d_rope]` or `[total_q, h_q, d_rope]`; `q` then
            holds the latent part, `[.., d_v]`.
        cu_seqlens_q: int32 `[b + 1]`, first query token of each request, for requests with different `s_q`.
        out: array to write the output into, `[b, s_q, h_q, d_v]` or `[total_q, h_q, d_v]`, dtype of `q`.
        lse: fp32 array to write the log-sum-exp into, `[b, h_q, s_q]` or `[h_q, total_q]`, any strides.
        return_lse: return `(out, lse)` instead of `out`.
        empty_lse: '+inf' or '-inf', what `lse` holds for a row that sees no key (its output is 0).
        splits: parts that each request's keys are cut into; 0 lets the back end choose.
        batch_invariant: a request's bits do not depend on the other requests or on `b`.
        backend: name of a back end (`flashmla.backends()`); None takes FLASHMLA_BACKEND, else the best.
        isa: instruction set of the back end "cpu" (`flashmla.cpu_info().isas`); None takes FLASHMLA_ISA, else the best.
        threads: threads of the back end "cpu"; 0 takes FLASHMLA_NUM_THREADS, else affinity and cgroup quota.
        dtype: 'bf16' reads uint16 arrays (NumPy has no bf16) as bf16, and the result is uint16 too.
        kv_format: name of the cache's format; None is the plain format of its dtype.
        stream: stream of GPU arrays that are not torch's, a cudaStream_t as an integer; None is the default stream. With
            such arrays `out` (and `lse`) must be given. Torch tensors run on torch's current stream of their device.
        status: int32 array `[1]` on the GPU that receives, in the order of the stream, what is wrong with the values of
            this call: 0 nothing, 1 a page id outside the cache (its keys are masked), 2 `cu_seqlens_q` (clamped), 3 a
            length (clamped to the table); the highest of several. The result is the same with and without it. On the
            CPU bad values raise, and `status` is refused.

    Returns:
        `out`, or `(out, lse)` with `return_lse`, in the framework of `q`: the arrays passed in, or new ones. `lse` is
        the natural logarithm of the sum of exp(scaled scores).

    Raises:
        ValueError: a shape, stride, dtype, alignment, option or name is wrong, arrays lie on different devices, or (on
            the CPU) a length or page id is out of range.
        NotImplementedError: a format, device or combination that this version does not compute, by name.
        RuntimeError: the library failed.
    """
    if is_torch(q):
        from . import torch_ops

        refuse_torch_stream(stream)
        return torch_ops.decode(
            q, kv_cache, page_table, seq_lens, softmax_scale, causal, latent_dim, q_rope, cu_seqlens_q, out, lse,
            return_lse, empty_lse, splits, batch_invariant, backend, isa, threads, dtype, kv_format, status,
        )  # fmt: skip
    place = Place(
        stream, q=q, kv_cache=kv_cache, page_table=page_table, seq_lens=seq_lens, q_rope=q_rope,
        cu_seqlens_q=cu_seqlens_q, out=out, lse=lse, status=status,
    )  # fmt: skip
    uint16_is_bf16 = reads_uint16_as_bf16(q, dtype)
    inputs = (
        place.read("q", q), place.read("q_rope", q_rope), place.read("kv_cache", kv_cache),
        place.read("page_table", page_table), place.read("seq_lens", seq_lens),
        place.read("cu_seqlens_q", cu_seqlens_q),
    )  # fmt: skip
    results = Results(q, place, out=out, **({"lse": lse} if return_lse else {}))
    q_shape = tuple(getattr(q, "shape", ()))
    out_shape, lse_shape = decode_results(q_shape, cu_seqlens_q is not None, bounded_latent_dim(q_shape, latent_dim))
    if out is None:
        out = results.empty(out_shape)
    if lse is None and return_lse:
        lse = results.empty_lse(lse_shape)
    _native.decode(
        *inputs, place.write("out", out), place.write("lse", lse), place.write("status", status), softmax_scale,
        bool(causal), latent_dim, kv_format, empty_lse, splits, bool(batch_invariant), backend, isa, threads,
        uint16_is_bf16, place.stream,
    )  # fmt: skip
    if return_lse:
        return results.hand_out(out), results.hand_out(lse)
    return results.hand_out(out)


def prefill(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    *,
    softmax_scale: float,
    causal: bool = False,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
    empty_lse: str = "+inf",
    backend: str | None = None,
    isa: str | None = None,
    threads: int = 0,
    dtype: str | None = None,
    stream: Any = None,
) -> Any:
    """Prefill attention in MHA form: packed sequences whose keys and values are arrays of their own.

    Sequence `i` has query tokens `cu_seqlens_q[i] .. cu_seqlens_q[i + 1]` and keys likewise. DeepSeek's widths are `d_qk` 192
    and `d_v` 128; any multiples of 8 are taken.

    Args:
        q: fp32, fp16 or bf16 `[total_q, h_q, d_qk]`; strides as for `decode`.
        k: `[total_k, h_kv, d_qk]`, dtype of `q`; `h_kv` divides `h_q`.
        v: `[total_k, h_kv, d_v]`, dtype of `q`.
        cu_seqlens_q, cu_seqlens_k: int32 `[b + 1]`, beginning with 0.
        softmax_scale: the model's scale, YaRN factor included.
        causal: query `i` of `s_q` sees the first `s_k - s_q + i + 1` keys.
        out: array to write into, `[total_q, h_q, d_v]`, dtype of `q`.
        lse: fp32 array to write into, `[h_q, total_q]`, any strides.
        return_lse, empty_lse, backend, isa, threads, dtype, stream: as for `decode`.

    Returns:
        `out`, or `(out, lse)` with `return_lse`, in the framework of `q`.

    Raises:
        ValueError, NotImplementedError, RuntimeError: as `decode`.
    """
    if is_torch(q):
        from . import torch_ops

        refuse_torch_stream(stream)
        return torch_ops.prefill(
            q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, out, lse, return_lse, empty_lse, backend, isa,
            threads, dtype,
        )  # fmt: skip
    place = Place(stream, q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, out=out, lse=lse)
    uint16_is_bf16 = reads_uint16_as_bf16(q, dtype)
    inputs = (
        place.read("q", q), place.read("k", k), place.read("v", v), place.read("cu_seqlens_q", cu_seqlens_q),
        place.read("cu_seqlens_k", cu_seqlens_k),
    )  # fmt: skip
    results = Results(q, place, out=out, **({"lse": lse} if return_lse else {}))
    out_shape, lse_shape = prefill_results(tuple(getattr(q, "shape", ())), tuple(getattr(v, "shape", ())))
    if out is None:
        out = results.empty(out_shape)
    if lse is None and return_lse:
        lse = results.empty_lse(lse_shape)
    _native.prefill(
        *inputs, place.write("out", out), place.write("lse", lse), softmax_scale, bool(causal), empty_lse, backend, isa,
        threads, uint16_is_bf16, place.stream,
    )  # fmt: skip
    if return_lse:
        return results.hand_out(out), results.hand_out(lse)
    return results.hand_out(out)


def append_kv(
    latent: Any,
    rope: Any,
    kv_cache: Any,
    slot_mapping: Any,
    *,
    backend: str | None = None,
    isa: str | None = None,
    threads: int = 0,
    dtype: str | None = None,
    kv_format: str | None = None,
    stream: Any = None,
    status: Any = None,
) -> None:
    """Writes new tokens into a paged latent cache, in place.

    Args:
        latent: `[T' >= T, d_v]`, dtype of the cache, any row stride, last dimension contiguous.
        rope: `[T'' >= T, d_rope]`, as `latent`, or None when the model has no RoPE part.
        kv_cache: writable `[pages, page, d_v + d_rope]` or `[pages, page, 1, d_v + d_rope]`. JAX arrays are immutable
            and refused.
        slot_mapping: int64 `[T]`: page * page size + place in the page; negative skips the token. Its length governs.
            Of duplicate slots one wins.
        backend, isa, threads, dtype, kv_format, stream: as for `decode`.
        status: as for `decode`: 0, or 4 where a slot is past the cache.

    Raises:
        ValueError: an argument is wrong, or (on the CPU) a slot is past the cache; nothing is written then. A GPU skips
            such a slot, and says so in `status`.
        NotImplementedError: an fp8 format, an fp32 cache on a GPU, or `status` on the CPU.
    """
    if is_torch(kv_cache):
        from . import torch_ops

        refuse_torch_stream(stream)
        torch_ops.append_kv(latent, rope, kv_cache, slot_mapping, backend, isa, threads, dtype, kv_format, status)
        return
    place = Place(stream, kv_cache=kv_cache, latent=latent, rope=rope, slot_mapping=slot_mapping, status=status)
    uint16_is_bf16 = reads_uint16_as_bf16(kv_cache, dtype)
    _native.append_kv(
        place.read("latent", latent), place.read("rope", rope), place.write("kv_cache", kv_cache),
        place.read("slot_mapping", slot_mapping), place.write("status", status), kv_format, backend, isa, threads,
        uint16_is_bf16, place.stream,
    )  # fmt: skip


def merge_states(
    out_a: Any,
    lse_a: Any,
    out_b: Any,
    lse_b: Any,
    *,
    out: Any = None,
    lse: Any = None,
    empty_lse: str = "+inf",
    backend: str | None = None,
    isa: str | None = None,
    threads: int = 0,
    dtype: str | None = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Merges two partial attention results of the same rows over disjoint keys into the result over all of them.

    Args:
        out_a, out_b: `[tokens, heads, width]` in fp32, fp16 or bf16, any strides, last dimension contiguous.
        lse_a, lse_b: fp32 `[heads, tokens]`, natural logarithm, any strides. +inf and -inf both mean "saw no key": that
            side adds nothing, whatever its output holds.
        out, lse: arrays to write into; they may be `out_a` and `lse_a` themselves.
        empty_lse: '+inf' or '-inf', written (with output 0) where both sides saw no key.
        backend, isa, threads, dtype, stream: as for `decode`.

    Returns:
        `(out, lse)` in the framework of `out_a`.

    Raises:
        ValueError, NotImplementedError, RuntimeError: as `decode`.
    """
    if is_torch(out_a):
        from . import torch_ops

        refuse_torch_stream(stream)
        return torch_ops.merge_states(out_a, lse_a, out_b, lse_b, out, lse, empty_lse, backend, isa, threads, dtype)
    place = Place(stream, out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b, out=out, lse=lse)
    uint16_is_bf16 = reads_uint16_as_bf16(out_a, dtype)
    inputs = (
        place.read("out_a", out_a), place.read("lse_a", lse_a), place.read("out_b", out_b), place.read("lse_b", lse_b)
    )  # fmt: skip
    results = Results(out_a, place, out=out, lse=lse)
    if out is None:
        out = results.empty(tuple(getattr(out_a, "shape", (0,))))
    if lse is None:
        lse = results.empty_lse(tuple(getattr(lse_a, "shape", (0,))))
    _native.merge_states(
        *inputs, place.write("out", out), place.write("lse", lse), empty_lse, backend, isa, threads, uint16_is_bf16,
        place.stream,
    )  # fmt: skip
    return results.hand_out(out), results.hand_out(lse)
