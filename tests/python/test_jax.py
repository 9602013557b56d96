"""The operations on JAX arrays: read in place, results are new arrays, nothing is written."""

import numpy as np
import problem as problems
import pytest

import flashmla


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_same_bits_as_numpy(jax, place, dtype):
    problem = problems.make(1, [0, 1, 100, 7], seq_q=2, dtype=dtype, causal=True)
    to = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[dtype]
    q, cache = (jax.numpy.asarray(array, to) for array in (problem.q, problem.cache))
    table, lens = jax.numpy.asarray(problem.table), jax.numpy.asarray(problem.lens)
    options = {name: value for name, value in problem.options().items() if name != "dtype"}
    out, lse = flashmla.decode(q, cache, table, lens, **options, return_lse=True, **place)
    want_out, want_lse = flashmla.decode(*problem.arrays(), **problem.options(), return_lse=True, **place)
    assert isinstance(out, jax.Array) and isinstance(lse, jax.Array)
    assert out.dtype == q.dtype and lse.dtype == np.float32 and out.device == q.device
    stored = np.asarray(out)
    np.testing.assert_array_equal(stored.view(np.uint16) if dtype == "bf16" else stored, want_out)
    np.testing.assert_array_equal(np.asarray(lse), want_lse)


def test_merge(jax):
    rng = np.random.default_rng(1)
    states = [rng.standard_normal(shape, np.float32) for shape in ((3, 2, 8), (2, 3)) * 2]
    out, lse = flashmla.merge_states(*(jax.numpy.asarray(state) for state in states))
    want_out, want_lse = flashmla.merge_states(*states)
    assert isinstance(out, jax.Array) and isinstance(lse, jax.Array)
    np.testing.assert_array_equal(np.asarray(out), want_out)
    np.testing.assert_array_equal(np.asarray(lse), want_lse)


def test_in_place_writes_are_refused_by_name(jax):
    cache = jax.numpy.zeros((2, 4, 16))
    tokens, slots = np.ones((1, 8), np.float32), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match=r"^kv_cache: got a jax.Array, which is immutable"):
        flashmla.append_kv(tokens, tokens, cache, slots)
    assert not np.asarray(cache).any()
    problem = problems.make(2, [5])
    with pytest.raises(ValueError, match=r"^out: got a jax.Array, which is immutable"):
        flashmla.decode(*problem.arrays(), **problem.options(), out=jax.numpy.zeros((1, 1, 4, 64)))


def test_tracers_are_refused_by_name(jax):
    problem = problems.make(3, [5])
    _, *rest = problem.arrays()
    with pytest.raises(ValueError, match=r"^q: got .*Tracer.* outside jax.jit"):
        jax.jit(lambda q: flashmla.decode(q, *rest, **problem.options()))(problem.q)
