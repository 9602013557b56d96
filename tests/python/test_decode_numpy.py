"""flashmla.decode on NumPy arrays: every back end and instruction set against the double-precision formula."""

import numpy as np
import problem as problems
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashmla
from conftest import FULL, places

LENS = [0, 1, 15, 16, 17, 0, 100, 7]


def run(problem, **options):
    return flashmla.decode(*problem.arrays(), **problem.options(), return_lse=True, **options)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("seq_q", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_matches_the_formula(place, dtype, seq_q, causal):
    problem = problems.make(1, LENS, seq_q=seq_q, dtype=dtype, causal=causal)
    out, lse = run(problem, **place)
    assert out.dtype == problem.arrays()[0].dtype and lse.dtype == np.float32
    problems.check(problem, out, lse)


@pytest.mark.parametrize("heads_q, heads_kv", [(1, 1), (6, 3), (20, 1), (128, 1)])
@pytest.mark.parametrize("page_size", [1, 61, 64])
def test_deepseek_widths(place, heads_q, heads_kv, page_size):
    problem = problems.make(
        2, [70, 3], heads_q=heads_q, heads_kv=heads_kv, latent_dim=512, rope_dim=64, page_size=page_size, dtype="bf16"
    )
    problems.check(problem, *run(problem, **place))


def test_empty_marker_can_be_minus_infinity(place):
    problem = problems.make(3, [0, 4], seq_q=6, causal=True)
    out, lse = run(problem, empty_lse="-inf", **place)
    problems.check(problem, out, lse, marker=-np.inf)
    assert (lse[0] == -np.inf).all() and (lse[1, :, :2] == -np.inf).all() and (out[0] == 0).all()


def test_results_land_in_given_arrays(place):
    problem = problems.make(4, [5, 40], seq_q=2)
    want_out, want_lse = run(problem, **place)
    heads_first = np.full((4, 2, 2, 64), np.nan, np.float32)
    out, lse = heads_first.transpose(1, 2, 0, 3), np.full((2, 2, 4), np.nan, np.float32).transpose(0, 2, 1)
    got = flashmla.decode(*problem.arrays(), **problem.options(), out=out, lse=lse, **place)
    assert got is out
    np.testing.assert_array_equal(heads_first, want_out.transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(lse, want_lse)


def test_returns_out_alone_by_default():
    problem = problems.make(4, [5, 40])
    out = flashmla.decode(*problem.arrays(), **problem.options())
    np.testing.assert_array_equal(out, run(problem)[0])


def test_split_query_in_slices_of_a_wider_row(place):
    """FlashInfer #1341: q_nope and q_pe sliced out of one projection, rows far apart."""
    problem = problems.make(5, [33, 64], seq_q=2)
    want, _ = run(problem, **place)
    wide = np.full((2, 2, 4, 64 + 16 + 16), np.nan, np.float32)
    wide[..., :64], wide[..., 80:] = problem.q[..., :64], problem.q[..., 64:]
    _, *rest = problem.arrays()
    got = flashmla.decode(wide[..., :64], *rest, **problem.options(), q_rope=wide[..., 80:], **place)
    np.testing.assert_array_equal(got, want)


def test_cache_is_one_layer_of_a_pool(place):
    problem = problems.make(6, [33, 64])
    q, cache, table, lens = problem.arrays()
    pool = np.full((cache.shape[0], 3, *cache.shape[1:]), np.nan, np.float32)
    pool[:, 1] = cache
    got = flashmla.decode(q, pool[:, 1], table, lens, **problem.options(), **place)
    np.testing.assert_array_equal(got, run(problem, **place)[0])


def test_ragged_queries(place):
    """cu_seqlens_q: requests of 2, 0 and 3 query tokens, and one padding row."""
    problem = problems.make(7, [20, 9, 31], seq_q=3, causal=True)
    q, cache, table, lens = problem.arrays()
    counts = (2, 0, 3)
    flat = np.concatenate([q[r, 3 - n :] for r, n in enumerate(counts)] + [q[0, :1]])
    cu = np.array([0, 2, 2, 5], np.int32)
    out, lse = flashmla.decode(
        flat, cache, table, lens, **problem.options(), cu_seqlens_q=cu, return_lse=True, **place
    )
    want_out, want_lse = run(problem, **place)
    for request, count in enumerate(counts):
        rows = slice(cu[request], cu[request] + count)
        np.testing.assert_allclose(out[rows], want_out[request, 3 - count :], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(lse[:, rows], want_lse[request, :, 3 - count :], rtol=1e-6)
    assert (out[5] == 0).all() and (lse[:, 5] == np.inf).all()


def test_read_only_inputs_are_fine():
    problem = problems.make(8, [20])
    arrays = problem.arrays()
    for array in arrays:
        array.flags.writeable = False
    np.testing.assert_array_equal(flashmla.decode(*arrays, **problem.options()), run(problem)[0])


@pytest.mark.parametrize("batch, seq_q", [(0, 1), (2, 0)])
def test_empty_calls_succeed(place, batch, seq_q):
    problem = problems.make(9, [5] * batch, seq_q=seq_q)
    out, lse = run(problem, **place)
    assert out.shape == (batch, seq_q, 4, 64) and lse.shape == (batch, 4, seq_q)


def test_no_pages_when_all_lengths_are_zero(place):
    problem = problems.make(10, [0, 0], spare_pages=0)
    out, lse = run(problem, **place)
    assert problem.cache.shape[0] == 0 and (out == 0).all() and (lse == np.inf).all()


def test_bf16_of_ml_dtypes(place):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes: not installed")
    problem = problems.make(11, [20, 3], dtype="bf16")
    q, cache, table, lens = problem.arrays()
    options = problem.options()
    del options["dtype"]
    bf16 = ml_dtypes.bfloat16
    out = flashmla.decode(q.view(bf16), cache.view(bf16), table, lens, **options, **place)
    assert out.dtype == bf16
    np.testing.assert_array_equal(out.view(np.uint16), run(problem, **place)[0])


@given(data=st.data())
@settings(max_examples=300 if FULL else 40, deadline=None, print_blob=True, derandomize=not FULL)
def test_any_shape(data):
    draw = data.draw
    place = draw(st.sampled_from([param.values[0] for param in places()]))
    heads_kv = draw(st.integers(1, 3))
    problem = problems.make(
        draw(st.integers(0, 2**32 - 1)),
        draw(st.lists(st.integers(0, 70), min_size=1, max_size=4)),
        seq_q=draw(st.integers(1, 4)),
        heads_q=heads_kv * draw(st.integers(1, 9)),
        heads_kv=heads_kv,
        latent_dim=8 * draw(st.integers(1, 9)),
        rope_dim=8 * draw(st.integers(0, 3)),
        page_size=draw(st.integers(1, 20)),
        dtype=draw(st.sampled_from(["fp32", "fp16", "bf16"])),
        causal=draw(st.booleans()),
    )
    options = {"splits": draw(st.sampled_from([0, 1, 2, 5])), "threads": draw(st.integers(0, 3))}
    problems.check(problem, *run(problem, **options, **place))


def test_same_call_twice_and_permuted_pages_are_bit_equal(place):
    problem = problems.make(12, [100, 33], dtype="bf16")
    first = run(problem, **place)
    q, cache, table, lens = problem.arrays()
    order = np.random.default_rng(1).permutation(len(cache)).astype(np.int32)
    moved = np.empty_like(cache)
    moved[order] = cache
    valid = (table >= 0) & (table < len(cache))
    moved_table = np.where(valid, order[np.where(valid, table, 0)], table).astype(np.int32)
    options = problem.options() | place
    for got in (run(problem, **place), flashmla.decode(q, moved, moved_table, lens, return_lse=True, **options)):
        for got_array, want_array in zip(got, first, strict=True):
            np.testing.assert_array_equal(got_array, want_array)
