"""flashmla.prefill and the drop-in's varlen functions, against NumPy and torch."""

import numpy
import pytest

import flashmla



def formula(q, k, v, starts_q, starts_k, scale, causal):
    """Double precision; out and lse [heads, total_q], rows without keys 0 and +inf."""
    q, k, v = (numpy.asarray(x, dtype=numpy.float64) for x in (q, k, v))
    starts_q, starts_k = [int(x) for x in starts_q], [int(x) for x in starts_k]
    group = q.shape[1] // k.shape[1]
    out = numpy.zeros((*q.shape[:2], v.shape[2]))
    lse = numpy.full((q.shape[1], q.shape[0]), numpy.inf)
    for i in range(len(starts_q) - 1):
        keys = numpy.arange(starts_k[i], starts_k[i + 1])
        for t in range(starts_q[i], starts_q[i + 1]):
            seen = len(keys) - (starts_q[i + 1] - t) + 1 if causal else len(keys)
            if seen <= 0:
                continue
            for h in range(q.shape[1]):
                scores = k[keys[:seen], h // group] @ q[t, h] * scale
                weights = numpy.exp(scores - scores.max())
                out[t, h] = weights @ v[keys[:seen], h // group] / weights.sum()
                lse[h, t] = scores.max() + numpy.log(weights.sum())
    return out, lse


def problem(heads=4, heads_kv=2, qk=192, width=128):
    random = numpy.random.default_rng(3)
    starts_q, starts_k = numpy.array([0, 3, 3, 10], numpy.int32), numpy.array([0, 40, 45, 45 + 7], numpy.int32)
    make = lambda *shape: random.standard_normal(shape).astype(numpy.float32)
    return make(10, heads, qk), make(52, heads_kv, qk), make(52, heads_kv, width), starts_q, starts_k


@pytest.mark.parametrize("causal", [False, True])
def test_numpy_fp32(place, causal):
    q, k, v, starts_q, starts_k = problem()
    want_out, want_lse = formula(q, k, v, starts_q, starts_k, 0.1, causal)
    out, lse = flashmla.prefill(q, k, v, starts_q, starts_k, softmax_scale=0.1, causal=causal, return_lse=True, **place)
    numpy.testing.assert_allclose(out, want_out, atol=2e-5)
    numpy.testing.assert_allclose(lse, want_lse, rtol=1e-6, atol=1e-6)


def test_writes_into_given_arrays():
    q, k, v, starts_q, starts_k = problem()
    out, lse = numpy.full((10, 4, 128), numpy.nan, numpy.float32), numpy.full((10, 4), numpy.nan, numpy.float32)
    got = flashmla.prefill(q, k, v, starts_q, starts_k, softmax_scale=0.1, out=out, lse=lse.T)
    assert got is out
    want_out, want_lse = formula(q, k, v, starts_q, starts_k, 0.1, False)
    numpy.testing.assert_allclose(out, want_out, atol=2e-5)
    numpy.testing.assert_allclose(lse.T, want_lse, rtol=1e-6, atol=1e-6)


def test_errors():
    q, k, v, starts_q, starts_k = problem()
    with pytest.raises(ValueError, match="^k: got shape .*192"):
        flashmla.prefill(q, k[..., :184], v, starts_q, starts_k, softmax_scale=0.1)
    with pytest.raises(ValueError, match=r"^cu_seqlens_k\[3\]: got 99; want .* at most total_k = 52"):
        flashmla.prefill(q, k, v, starts_q, numpy.array([0, 1, 2, 99], numpy.int32), softmax_scale=0.1)
    with pytest.raises(TypeError, match="softmax_scale"):
        flashmla.prefill(q, k, v, starts_q, starts_k)


@pytest.fixture
def tensors(torch):
    q, k, v, starts_q, starts_k = (torch.from_numpy(x) for x in problem())
    return q.bfloat16(), k.bfloat16(), v.bfloat16(), starts_q, starts_k


def test_drop_in(torch, tensors):
    q, k, v, starts_q, starts_k = tensors
    from flashmla import flash_mla

    want_out, want_lse = formula(q.float(), k.float(), v.float(), starts_q, starts_k, 192**-0.5, True)
    out, lse = flash_mla.flash_attn_varlen_func(q, k, v, starts_q, starts_k, 7, 40, causal=True)
    assert out.dtype == torch.bfloat16 and lse.shape == (10, 4) and lse.stride(0) == 1
    numpy.testing.assert_allclose(out.float(), want_out, atol=2e-2)
    numpy.testing.assert_allclose(lse.T, want_lse, rtol=1.2e-4, atol=1e-6)

    packed_out, packed_lse = flash_mla.flash_attn_varlen_kvpacked_func(
        q, torch.cat((k, v), -1), starts_q, starts_k, 7, 40, 192, causal=True
    )
    assert torch.equal(packed_out, out) and torch.equal(packed_lse, lse)

    same = torch.cat((q[:, :2], k[:10], v[:10]), -1)
    got, _ = flash_mla.flash_attn_varlen_qkvpacked_func(same, starts_q, 7, 192, softmax_scale=0.2)
    want, _ = flash_mla.flash_attn_varlen_func(
        q[:, :2].contiguous(), k[:10], v[:10], starts_q, starts_q, 7, 7, softmax_scale=0.2
    )
    assert torch.equal(got, want)


def test_drop_in_refuses_by_name(torch, tensors):
    q, k, v, starts_q, starts_k = tensors
    from flashmla import flash_mla

    with pytest.raises(NotImplementedError, match="^dropout_p: got 0.1"):
        flash_mla.flash_attn_varlen_func(q, k, v, starts_q, starts_k, 7, 40, 0.1)
    with pytest.raises(ValueError, match="^q: .*requires a gradient"):
        flash_mla.flash_attn_varlen_func(q.requires_grad_(), k, v, starts_q, starts_k, 7, 40)


def test_compiles_whole(torch, tensors):
    q, k, v, starts_q, starts_k = tensors

    def call(q, k, v):
        return flashmla.prefill(q * 2, k, v, starts_q, starts_k, softmax_scale=0.05, return_lse=True)

    out, lse = torch.compile(call, fullgraph=True)(q, k, v)
    want_out, want_lse = call(q, k, v)
    assert torch.equal(out, want_out) and torch.equal(lse, want_lse)
