"""The torch custom ops `torch.ops.flashmla.*`, with fake kernels so that torch.compile traces them. Needs torch >= 2.4.

`flashmla.decode`, `prefill`, `append_kv` and `merge_states` call them for torch tensors. Importing this module defines them; `import
flashmla` alone does not, since it leaves torch alone.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _native
from ._arrays import HAS_CUDA, dtype_name
from ._shapes import bounded_latent_dim, decode_results, prefill_results

_DECODE_OPTIONS = (
    "float softmax_scale, bool causal, int latent_dim, str? kv_format, str empty_lse, int splits, "
    "bool batch_invariant, str? backend, str? isa, int threads"
)
_DECODE_INPUTS = "Tensor q, Tensor? q_rope, Tensor kv_cache, Tensor page_table, Tensor seq_lens, Tensor? cu_seqlens_q"
_APPEND_INPUTS = "Tensor latent, Tensor? rope, Tensor(a!) kv_cache, Tensor slot_mapping"
_MERGE_INPUTS = "Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b"
_PLACE = "str? backend, str? isa, int threads"
_STATUS = "Tensor(c!)? status=None"
_PREFILL_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k"
_PREFILL_OPTIONS = f"float softmax_scale, bool causal, str empty_lse, {_PLACE}"

for _schema in (
    f"decode({_DECODE_INPUTS}, {_DECODE_OPTIONS}) -> (Tensor, Tensor)",
    f"decode_out({_DECODE_INPUTS}, Tensor(a!) out, Tensor(b!)? lse, {_DECODE_OPTIONS}, *, {_STATUS}) -> ()",
    f"prefill({_PREFILL_INPUTS}, {_PREFILL_OPTIONS}) -> (Tensor, Tensor)",
    f"prefill_out({_PREFILL_INPUTS}, Tensor(a!) out, Tensor(b!)? lse, {_PREFILL_OPTIONS}) -> ()",
    f"append_kv({_APPEND_INPUTS}, str? kv_format, {_PLACE}, *, {_STATUS}) -> ()",
    f"merge_states({_MERGE_INPUTS}, str empty_lse, {_PLACE}) -> (Tensor, Tensor)",
    f"merge_states_out({_MERGE_INPUTS}, Tensor(a!) out, Tensor(b!) lse, str empty_lse, {_PLACE}) -> ()",
):
    _name, _, _signature = _schema.partition("(")
    torch.library.define(f"flashmla::{_name}", f"({_signature}", tags=(torch.Tag.pt2_compliant_tag,))


def _refuse_gradient(argument: str, tensor: torch.Tensor) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{argument}: got a tensor that requires a gradient, but flashmla has no backward; detach it or call "
            f"flashmla under torch.no_grad()"
        )


def _capsule(argument: str, tensor: torch.Tensor | None) -> Any:
    """The tensor's own memory, for the C++ side. (`Tensor.__dlpack__` does the same in Python, eight times slower.)

    Only plain strided tensors arrive here: torch's dispatcher resolves or refuses all others.
    """
    if tensor is None:
        return None
    if tensor.requires_grad:
        _refuse_gradient(argument, tensor)
        tensor = tensor.detach()
    return torch.utils.dlpack.to_dlpack(tensor)  # type: ignore[attr-defined,unused-ignore]


class _Gpu:
    """Stream and workspace of a call on CUDA tensors: torch's current stream, and memory of torch's allocator for it.

    What the allocator gives is free for the same stream once this object is gone, so that it needs no wait, and a graph
    under capture gets memory of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: torch.Tensor | None = None
        self.stream: int = torch._C._cuda_getCurrentRawStream(device.index)

    def allocate(self, count: int) -> int:
        self._memory = torch.empty(count, dtype=torch.uint8, device=self._device)
        return self._memory.data_ptr()


def _place(lead: torch.Tensor) -> tuple[Any, ...]:
    """The last arguments of the C++ side for a call whose tensors lie where `lead` does; it keeps the workspace alive."""
    if lead.device.type != "cuda":
        return ()
    gpu = _Gpu(lead.device)
    return False, gpu.stream, gpu.allocate


def _decode_out(
    q: torch.Tensor,
    q_rope: torch.Tensor | None,
    kv_cache: torch.Tensor,
    page_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *options: Any,
    status: torch.Tensor | None = None,
) -> None:
    _native.decode(
        _capsule("q", q), _capsule("q_rope", q_rope), _capsule("kv_cache", kv_cache),
        _capsule("page_table", page_table), _capsule("seq_lens", seq_lens), _capsule("cu_seqlens_q", cu_seqlens_q),
        _capsule("out", out), _capsule("lse", lse), _capsule("status", status), *options, *_place(q),
    )  # fmt: skip


def _decode(q: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, options = rest[:5], rest[5:]
    latent_dim = bounded_latent_dim(q.shape, options[2])
    out, lse = _empty_results(q, inputs[4], latent_dim)
    _decode_out(q, *inputs, out, lse, *options)
    return out, lse


def _decode_fake(q: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    cu_seqlens_q, latent_dim = rest[4], rest[7]
    if q.ndim != (4 if cu_seqlens_q is None else 3):
        raise ValueError(f"q: got {q.ndim} dimensions; want 4, or 3 with cu_seqlens_q")
    return _empty_results(q, cu_seqlens_q, latent_dim)


def _empty_results(
    q: torch.Tensor, cu_seqlens_q: torch.Tensor | None, latent_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    # Plain tensors whatever torch.set_default_dtype and set_default_device say.
    out_shape, lse_shape = decode_results(q.shape, cu_seqlens_q is not None, latent_dim)
    return q.new_empty(out_shape), q.new_empty(lse_shape, dtype=torch.float32)


def _prefill_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *options: Any,
) -> None:
    _native.prefill(
        _capsule("q", q), _capsule("k", k), _capsule("v", v), _capsule("cu_seqlens_q", cu_seqlens_q),
        _capsule("cu_seqlens_k", cu_seqlens_k), _capsule("out", out), _capsule("lse", lse), *options, *_place(q),
    )  # fmt: skip


def _prefill(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    *options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = _prefill_fake(q, k, v)
    _prefill_out(q, k, v, cu_seqlens_q, cu_seqlens_k, out, lse, *options)
    return out, lse


def _prefill_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out_shape, lse_shape = prefill_results(q.shape, v.shape)
    return q.new_empty(out_shape), q.new_empty(lse_shape, dtype=torch.float32)


def _append_kv(
    latent: torch.Tensor, rope: torch.Tensor | None, kv_cache: torch.Tensor, slot_mapping: torch.Tensor, *options: Any,
    status: torch.Tensor | None = None,
) -> None:  # fmt: skip
    _native.append_kv(
        _capsule("latent", latent), _capsule("rope", rope), _capsule("kv_cache", kv_cache),
        _capsule("slot_mapping", slot_mapping), _capsule("status", status), *options, *_place(kv_cache)[:2],
    )  # fmt: skip


def _merge_states_out(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *options: Any,
) -> None:
    _native.merge_states(
        _capsule("out_a", out_a), _capsule("lse_a", lse_a), _capsule("out_b", out_b), _capsule("lse_b", lse_b),
        _capsule("out", out), _capsule("lse", lse), *options, *_place(out_a)[:2],
    )  # fmt: skip


def _merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor, *options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _merge_states_fake(out_a, lse_a)
    _merge_states_out(out_a, lse_a, out_b, lse_b, out, lse, *options)
    return out, lse


def _merge_states_fake(out_a: torch.Tensor, lse_a: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return out_a.new_empty(out_a.shape), out_a.new_empty(lse_a.shape, dtype=torch.float32)


def _writes_only(*_: Any, **__: Any) -> None:
    return None


for _name, _kernel, _fake in (
    ("decode", _decode, _decode_fake),
    ("decode_out", _decode_out, _writes_only),
    ("prefill", _prefill, _prefill_fake),
    ("prefill_out", _prefill_out, _writes_only),
    ("append_kv", _append_kv, _writes_only),
    ("merge_states", _merge_states, _merge_states_fake),
    ("merge_states_out", _merge_states_out, _writes_only),
):
    torch.library.impl(f"flashmla::{_name}", ("cpu", "cuda") if HAS_CUDA else "cpu", _kernel)
    torch.library.register_fake(f"flashmla::{_name}", _fake)


_DEVICE_TYPES = ("cpu", "meta", "cuda") if HAS_CUDA else ("cpu", "meta")


def _refuse_place(argument: str, tensor: Any, lead: torch.Tensor) -> None:
    """`lead` is the tensor that makes this a torch call; a call of mixed devices would run on none of them."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{argument}: got {type(tensor).__name__} in a call with torch tensors; want a torch.Tensor")
    if tensor.device.type not in _DEVICE_TYPES:
        has = "on the CPU and on NVIDIA GPUs" if HAS_CUDA else "on the CPU"
        lacks = "takes" if HAS_CUDA else "has no CUDA back end and takes"
        raise NotImplementedError(
            f"{argument}: got a tensor on {tensor.device}; this version of flashmla {lacks} tensors {has}"
        )
    raise ValueError(
        f"{argument}: got a tensor on {tensor.device} in a call with tensors on {lead.device}; want one device"
    )


def _check(lead: torch.Tensor, *arguments: tuple[str, Any]) -> bool:
    """Refuses what no call takes. True when the kernel may be called as it is: torch's dispatcher, which resolves
    subclasses, modes, views that negate and traces, takes longer than everything else that the host does for a call.
    """
    device = lead.device
    known = device.type in _DEVICE_TYPES
    plain = not torch.compiler.is_compiling() and device.type != "meta" and not _dispatcher_is_needed()
    for argument, tensor in arguments:
        if tensor is None:
            continue
        exact = type(tensor) is torch.Tensor  # asked first: isinstance with a torch.Tensor takes longer than all the rest
        if not known or not (exact or isinstance(tensor, torch.Tensor)) or tensor.device != device:
            _refuse_place(argument, tensor, lead)
        if tensor.requires_grad:
            _refuse_gradient(argument, tensor)
        plain = plain and exact and tensor.layout is torch.strided and not tensor.is_neg()
    return plain


def _dispatcher_is_needed() -> bool:
    """Modes, functorch's transforms, torch.jit's tracer and the profiler all watch or change what the dispatcher runs."""
    c = torch._C
    return bool(
        c._len_torch_dispatch_stack()
        or c._len_torch_function_stack()
        or c._functorch.maybe_current_level() is not None  # type: ignore[attr-defined,unused-ignore]
        or c._get_tracing_state() is not None
        or torch.autograd._profiler_enabled()
    )


def _plain_types(real: float, integers: tuple[Any, ...], flags: tuple[Any, ...]) -> bool:
    """Everything else the dispatcher converts, or refuses."""
    return type(real) is float and all(type(i) is int for i in integers) and all(type(f) is bool for f in flags)


def _check_dtype(dtype: str | None, tensor: torch.Tensor) -> None:
    if dtype is not None and dtype != dtype_name(tensor):
        raise ValueError(f"dtype: got {dtype!r} with tensors of {dtype_name(tensor)}; want None with torch tensors")


def decode(
    q: torch.Tensor, kv_cache: Any, page_table: Any, seq_lens: Any, softmax_scale: float, causal: bool,
    latent_dim: int, q_rope: Any, cu_seqlens_q: Any, out: Any, lse: Any, return_lse: bool, empty_lse: str, splits: int,
    batch_invariant: bool, backend: str | None, isa: str | None, threads: int, dtype: str | None,
    kv_format: str | None, status: Any,
) -> Any:  # fmt: skip
    """`flashmla.decode` for torch tensors."""
    plain = _check(
        q, ("q", q), ("kv_cache", kv_cache), ("page_table", page_table), ("seq_lens", seq_lens), ("q_rope", q_rope),
        ("cu_seqlens_q", cu_seqlens_q), ("out", out), ("lse", lse), ("status", status),
    )  # fmt: skip
    plain = plain and _plain_types(softmax_scale, (latent_dim, splits, threads), (causal, batch_invariant))
    _check_dtype(dtype, q)
    inputs = (q, q_rope, kv_cache, page_table, seq_lens, cu_seqlens_q)
    options = (
        softmax_scale, causal, latent_dim, kv_format, empty_lse, splits, batch_invariant, backend, isa, threads
    )  # fmt: skip
    if out is None and lse is None and status is None:
        out, lse = (_decode if plain else torch.ops.flashmla.decode)(*inputs, *options)
    else:
        new_out, new_lse = _empty_results(q, cu_seqlens_q, bounded_latent_dim(q.shape, latent_dim))
        out = new_out if out is None else out
        lse = new_lse if lse is None and return_lse else lse
        (_decode_out if plain else torch.ops.flashmla.decode_out)(*inputs, out, lse, *options, status=status)
    return (out, lse) if return_lse else out


def prefill(
    q: torch.Tensor, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, softmax_scale: float, causal: bool, out: Any,
    lse: Any, return_lse: bool, empty_lse: str, backend: str | None, isa: str | None, threads: int, dtype: str | None,
) -> Any:  # fmt: skip
    """`flashmla.prefill` for torch tensors."""
    _check(
        q, ("q", q), ("k", k), ("v", v), ("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k), ("out", out),
        ("lse", lse),
    )  # fmt: skip
    _check_dtype(dtype, q)
    inputs, options = (q, k, v, cu_seqlens_q, cu_seqlens_k), (softmax_scale, causal, empty_lse, backend, isa, threads)
    if out is None and lse is None:
        out, lse = torch.ops.flashmla.prefill(*inputs, *options)
    else:
        new_out, new_lse = _prefill_fake(q, k, v)
        out = new_out if out is None else out
        lse = new_lse if lse is None and return_lse else lse
        torch.ops.flashmla.prefill_out(*inputs, out, lse, *options)
    return (out, lse) if return_lse else out


def append_kv(
    latent: Any, rope: Any, kv_cache: torch.Tensor, slot_mapping: Any, backend: str | None, isa: str | None,
    threads: int, dtype: str | None, kv_format: str | None, status: Any,
) -> None:  # fmt: skip
    """`flashmla.append_kv` for torch tensors."""
    plain = _check(
        kv_cache, ("latent", latent), ("rope", rope), ("kv_cache", kv_cache), ("slot_mapping", slot_mapping),
        ("status", status),
    )  # fmt: skip
    plain = plain and type(threads) is int
    _check_dtype(dtype, kv_cache)
    (_append_kv if plain else torch.ops.flashmla.append_kv)(
        latent, rope, kv_cache, slot_mapping, kv_format, backend, isa, threads, status=status
    )  # fmt: skip


def merge_states(
    out_a: torch.Tensor, lse_a: Any, out_b: Any, lse_b: Any, out: Any, lse: Any, empty_lse: str, backend: str | None,
    isa: str | None, threads: int, dtype: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`flashmla.merge_states` for torch tensors."""
    plain = _check(
        out_a, ("out_a", out_a), ("lse_a", lse_a), ("out_b", out_b), ("lse_b", lse_b), ("out", out), ("lse", lse)
    )  # fmt: skip
    plain = plain and type(threads) is int
    _check_dtype(dtype, out_a)
    inputs, options = (out_a, lse_a, out_b, lse_b), (empty_lse, backend, isa, threads)
    if out is None and lse is None:
        out, lse = (_merge_states if plain else torch.ops.flashmla.merge_states)(*inputs, *options)
        return out, lse
    out = out_a.new_empty(out_a.shape) if out is None else out
    lse = out_a.new_empty(lse_a.shape, dtype=torch.float32) if lse is None else lse
    (_merge_states_out if plain else torch.ops.flashmla.merge_states_out)(*inputs, out, lse, *options)
    return out, lse
