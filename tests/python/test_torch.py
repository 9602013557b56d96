"""The operations on torch tensors: results, strides, outputs in place, gradients, subclasses, other devices."""

import numpy as np
import problem as problems
import pytest

import flashmla
from conftest import HAS_CUDA, need

LENS = [0, 1, 15, 16, 100, 7]


def tensors(problem):
    torch = need("torch")
    to = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[problem.dtype]
    return (
        torch.from_numpy(problem.q).to(to),
        torch.from_numpy(problem.cache).to(to),
        torch.from_numpy(problem.table),
        torch.from_numpy(problem.lens),
    )


def options_of(problem):
    return {"softmax_scale": problem.scale, "causal": problem.causal, "latent_dim": problem.latent_dim}


def as_stored(out):
    torch = need("torch")
    return out.view(torch.uint16).numpy() if out.dtype == torch.bfloat16 else out.numpy()


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("causal", [False, True])
def test_same_bits_as_numpy(torch, place, dtype, causal):
    problem = problems.make(1, LENS, seq_q=2, dtype=dtype, causal=causal)
    q, cache, table, lens = tensors(problem)
    out, lse = flashmla.decode(q, cache, table, lens, **options_of(problem), return_lse=True, **place)
    want_out, want_lse = flashmla.decode(*problem.arrays(), **problem.options(), return_lse=True, **place)
    assert type(out) is torch.Tensor and out.dtype == q.dtype and lse.dtype == torch.float32
    np.testing.assert_array_equal(as_stored(out), want_out)
    np.testing.assert_array_equal(lse.numpy(), want_lse)


def test_sliced_queries_and_transposed_output(torch, place):
    """q_nope as a transposed [h, b, d] product and q_pe as a slice, out as a [h, b, d] buffer (FlashInfer #1341)."""
    problem = problems.make(2, [33, 64, 5], dtype="bf16")
    q, cache, table, lens = tensors(problem)
    want = flashmla.decode(q, cache, table, lens, **options_of(problem), **place)
    q_nope = q[:, 0, :, :64].transpose(0, 1).contiguous().transpose(0, 1).unsqueeze(1)
    projection = torch.cat([torch.full_like(q[..., :16], torch.nan), q[..., 64:]], dim=-1)
    buffer = torch.full((4, 3, 64), torch.nan, dtype=torch.bfloat16)
    out = buffer.transpose(0, 1).unsqueeze(1)
    got = flashmla.decode(
        q_nope, cache, table, lens, **options_of(problem), q_rope=projection[..., 16:], out=out, **place
    )
    assert got is out and not q_nope.is_contiguous() and not out.is_contiguous()
    assert torch.equal(buffer.transpose(0, 1).unsqueeze(1), want)


@pytest.mark.parametrize("given", [("out",), ("lse",), ("out", "lse")])
def test_given_outputs_are_the_results(torch, given):
    problem = problems.make(3, [33, 0])
    arrays = tensors(problem)
    want_out, want_lse = flashmla.decode(*arrays, **options_of(problem), return_lse=True)
    buffers = {"out": torch.full_like(want_out, torch.nan), "lse": torch.full_like(want_lse, torch.nan)}
    buffers = {name: buffers[name] for name in given}
    out, lse = flashmla.decode(*arrays, **options_of(problem), return_lse=True, **buffers)
    assert torch.equal(out, want_out) and torch.equal(lse, want_lse)
    assert all(buffer is {"out": out, "lse": lse}[name] for name, buffer in buffers.items())


def test_cache_with_a_huge_page_stride(torch, place):
    problem = problems.make(4, [33, 64])
    q, cache, table, lens = tensors(problem)
    pool = torch.full((cache.shape[0], 5, *cache.shape[1:]), torch.nan)
    pool[:, 3] = cache
    got = flashmla.decode(q, pool[:, 3], table, lens, **options_of(problem), **place)
    assert torch.equal(got, flashmla.decode(q, cache, table, lens, **options_of(problem), **place))


def test_default_dtype_and_device_do_not_leak_into_results(torch):
    problem = problems.make(5, [20])
    arrays = tensors(problem)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    try:
        out, lse = flashmla.decode(*arrays, **options_of(problem), return_lse=True)
    finally:
        torch.set_default_dtype(default)
        torch.set_default_device(None)
    assert out.dtype == lse.dtype == torch.float32 and out.device.type == lse.device.type == "cpu"


def test_gradients_are_refused_unless_off(torch):
    problem = problems.make(6, [20])
    q, *rest = tensors(problem)
    want = flashmla.decode(q, *rest, **options_of(problem))
    weight = torch.nn.Parameter(q)
    with pytest.raises(ValueError, match=r"^q: got a tensor that requires a gradient, but flashmla has no backward"):
        flashmla.decode(weight, *rest, **options_of(problem))
    with pytest.raises(ValueError, match="no backward"):
        torch.ops.flashmla.decode(
            weight, None, rest[0], rest[1], rest[2], None, 0.1, False, 64, None, "+inf", 0, False, None, None, 0
        )
    with torch.no_grad():
        out = flashmla.decode(weight, *rest, **options_of(problem))
    assert torch.equal(out, want) and not out.requires_grad
    with torch.inference_mode():
        assert torch.equal(flashmla.decode(weight, *rest, **options_of(problem)), want)


def test_subclass_with_plain_storage(torch):
    class Tagged(torch.Tensor):
        pass

    problem = problems.make(7, [20])
    q, *rest = tensors(problem)
    out = flashmla.decode(q.as_subclass(Tagged), *rest, **options_of(problem))
    assert isinstance(out, Tagged)
    assert torch.equal(out.as_subclass(torch.Tensor), flashmla.decode(q, *rest, **options_of(problem)))


def test_sparse_tensors_are_refused_and_negated_views_read_right(torch):
    problem = problems.make(8, [20])
    q, *rest = tensors(problem)
    with pytest.raises(NotImplementedError, match="flashmla::decode.*SparseCPU"):
        flashmla.decode(q.to_sparse(), *rest, **options_of(problem))
    negated = torch.complex(q, -q).conj().imag  # its memory holds -q
    assert negated.is_neg()
    want = flashmla.decode(q, *rest, **options_of(problem))
    assert torch.equal(flashmla.decode(negated, *rest, **options_of(problem)), want)


def test_other_arrays_in_a_torch_call_are_refused_by_name(torch):
    problem = problems.make(9, [20])
    q, cache, _, lens = tensors(problem)
    with pytest.raises(ValueError, match=r"^page_table: got ndarray in a call with torch tensors; want a torch.Tensor"):
        flashmla.decode(q, cache, problem.table, lens, **options_of(problem))


def test_dtype_argument_must_match(torch):
    problem = problems.make(9, [20])
    arrays = tensors(problem)
    flashmla.decode(*arrays, **options_of(problem), dtype="fp32")
    with pytest.raises(ValueError, match=r"^dtype: got 'bf16' with tensors of fp32"):
        flashmla.decode(*arrays, **options_of(problem), dtype="bf16")


def test_append_then_decode_and_merge(torch, place):
    """A cache filled by append_kv, then decoded in two halves and merged, is the whole."""
    problem = problems.make(10, [60, 31])
    q, cache, table, lens = tensors(problem)
    filled = torch.full_like(cache, torch.nan)
    pool = torch.full((cache.shape[0], 2, *cache.shape[1:]), torch.nan)[:, 1]
    for request, length in enumerate(problem.lens):
        token = np.arange(length)
        slots = torch.from_numpy(problem.table[request, token // 16].astype(np.int64) * 16 + token % 16)
        keys = torch.from_numpy(problem.keys(request)[:, 0])
        for target in (filled, pool):
            flashmla.append_kv(keys[:, :64], keys[:, 64:], target, slots, **place)
    assert torch.equal(filled.nan_to_num(7.0), cache.nan_to_num(7.0))
    assert torch.equal(pool.nan_to_num(7.0), cache.nan_to_num(7.0))

    options = options_of(problem) | place | {"return_lse": True}
    whole, whole_lse = flashmla.decode(q, filled, table, lens, **options)
    states = []
    for pages in (table[:, :2].contiguous(), table[:, 2:].contiguous()):
        first = 0 if not states else 32
        part = (lens - first).clamp(0, 32).to(torch.int32)
        lse = torch.empty(4, 2, 1).transpose(0, 1)  # [b, h_q, s_q], heads outermost: what merge_states reads as [h, b]
        out, _ = flashmla.decode(q, filled, pages, part, **options, lse=lse)
        states += [out.flatten(0, 1), lse.transpose(0, 1).flatten(1)]
    out, lse = flashmla.merge_states(*states, **place)
    torch.testing.assert_close(out.view_as(whole), whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.T.reshape_as(whole_lse), whole_lse, rtol=1e-6, atol=1e-6)
    again = flashmla.merge_states(*states, out=states[0], lse=states[1], **place)
    assert again[0] is states[0] and torch.equal(states[0], out) and torch.equal(states[1], lse)


def test_mixed_devices_are_refused_by_name(torch):
    """A single meta tensor would make torch take the kernel that only knows shapes: results that nobody wrote."""
    problem = problems.make(9, [20])
    arrays = tensors(problem)
    for place, name in enumerate(("q", "kv_cache", "page_table", "seq_lens")):
        mixed = [tensor.to("meta") if at == place else tensor for at, tensor in enumerate(arrays)]
        with pytest.raises(ValueError, match=f"^{name if place else 'kv_cache'}: got a tensor on .* want one device"):
            flashmla.decode(*mixed, **options_of(problem))
    latent, rope, cache, slots = torch.ones(1, 8), torch.ones(1, 8), torch.zeros(1, 4, 16), torch.zeros(1).long()
    with pytest.raises(ValueError, match="^rope: got a tensor on meta in a call with tensors on cpu; want one device"):
        flashmla.append_kv(latent, rope.to("meta"), cache, slots)
    out, lse = torch.ones(1, 1, 8), torch.ones(1, 1)
    with pytest.raises(ValueError, match="^lse_b: got a tensor on meta"):
        flashmla.merge_states(out, lse, out, lse.to("meta"))


def test_gpu_tensors_beside_others_are_refused_by_name(torch):
    """Where this build has no CUDA, any is; a subclass that says where it is needs no GPU for that."""

    class Elsewhere(torch.Tensor):
        device = torch.device("cuda:1")

    problem = problems.make(11, [20])
    q, *rest = tensors(problem)
    with pytest.raises(
        ValueError if HAS_CUDA else NotImplementedError,
        match="^kv_cache: got a tensor on cpu in a call with tensors on cuda:1; want one device"
        if HAS_CUDA
        else "^q: got a tensor on cuda:1; this version of flashmla has no CUDA",
    ):
        flashmla.decode(q.as_subclass(Elsewhere), *rest, **options_of(problem))
    with pytest.raises(ValueError, match="^stream: got 7 with torch tensors; want None"):
        flashmla.decode(q, *rest, **options_of(problem), stream=7)


def test_modes_and_the_profiler_see_the_ops(torch):
    """A call goes past torch's dispatcher only where nothing listens there."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    problem = problems.make(12, [20, 7])
    arrays = tensors(problem)
    want = flashmla.decode(*arrays, **options_of(problem))
    with Watch():
        got = flashmla.decode(*arrays, **options_of(problem))
    assert "flashmla.decode.default" in seen and torch.equal(got, want)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        flashmla.decode(*arrays, **options_of(problem))
    assert "flashmla::decode" in {event.name for event in profile.events()}


def test_status_is_for_gpus(torch):
    """Also through the ops, which know the argument by its name alone: calls without it are those of before."""
    problem = problems.make(13, [20, 7])
    arrays = tensors(problem)
    status = torch.full((1,), -99, dtype=torch.int32)
    rows, slots = torch.zeros(1, 64), torch.zeros(1, dtype=torch.int64)
    options = (problem.scale, False, 64, None, "+inf", 0, False, None, None, 0)
    out = flashmla.decode(*arrays, **options_of(problem))
    for call in (
        lambda: flashmla.decode(*arrays, **options_of(problem), status=status),
        lambda: flashmla.append_kv(rows, rows[:, :16], arrays[1], slots, status=status),
        lambda: torch.ops.flashmla.decode_out(arrays[0], None, *arrays[1:], None, out, None, *options, status=status),
    ):
        with pytest.raises(NotImplementedError, match="^status: got a tensor in a call on the CPU, .*calls on CUDA"):
            call()
    assert status.item() == -99
