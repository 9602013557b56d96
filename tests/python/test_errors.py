"""Every wrong argument raises the right exception with a text that names it."""

import numpy as np
import problem as problems
import pytest

import flashmla
from conftest import HAS_CUDA


@pytest.fixture
def call():
    """decode of a small problem, with some arguments replaced."""
    problem = problems.make(1, [20, 7])
    q, cache, table, lens = problem.arrays()

    def run(**changes):
        arguments = {"q": q, "kv_cache": np.nan_to_num(cache), "page_table": table, "seq_lens": lens}
        return flashmla.decode(**(arguments | problem.options() | changes))

    run()
    return run


class Elsewhere:
    """An array of a framework on a GPU, as far as flashmla looks at it."""

    dtype = np.dtype(np.float32)
    shape = (2, 1, 4, 80)

    def __init__(self, device):
        self.device = device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        raise AssertionError("an array on another device must be refused before it is exported")


WRONG = [
    ({"q": np.zeros((2, 4, 80), np.float32)}, ValueError, r"^q: got shape .*2, 4, 80.*; want \[b, s_q, h_q, d_qk\]"),
    ({"q": np.zeros((2, 1, 4, 72), np.float32)}, ValueError, "^q: got shape"),
    ({"q": np.zeros((2, 1, 4, 80))}, ValueError, "^q: got dtype fp64; want fp32, fp16 or bf16"),
    ({"q": np.zeros((2, 1, 4, 80), np.complex64)}, ValueError, "^q: got dtype complex64"),
    ({"q": np.zeros((2, 1, 4, 80), np.int32)}, ValueError, "^q: got dtype int32"),
    ({"q": np.zeros((2, 1, 4, 80), np.uint16)}, ValueError, "^q: got dtype uint16; .*dtype='bf16'"),
    ({"q": np.zeros((2, 1, 4, 80), ">f4")}, ValueError, "^q: got dtype >f4 in foreign byte order"),
    ({"q": np.zeros((1, 1, 1, 2, 1, 4, 80), np.float32)}, ValueError, "^q: got 7 dimensions; want 1 to 4"),
    ({"q": np.float32(1)}, ValueError, "^q: got"),
    ({"q": [[1.0]]}, ValueError, "^q: got list, which gives no memory through DLPack or the buffer protocol"),
    ({"q": None}, ValueError, "^q: got"),
    (
        ({"q": Elsewhere((2, 1))}, ValueError, "^kv_cache: got numpy.ndarray on the CPU in a call with arrays on cuda:1")
        if HAS_CUDA
        else ({"q": Elsewhere((2, 1))}, NotImplementedError, "^q: got .*Elsewhere on device cuda:1; .*no CUDA back end")
    ),
    ({"q": Elsewhere((10, 0))}, NotImplementedError, r"^q: got .*Elsewhere on device rocm:0"),
    (
        {"seq_lens": Elsewhere((2, 0))},
        ValueError if HAS_CUDA else NotImplementedError,
        "^seq_lens: got .*Elsewhere on (device )?cuda:0",
    ),
    ({"kv_cache": np.zeros((4, 16, 80), np.float32)}, ValueError, "^kv_cache: got shape"),
    ({"kv_cache": np.zeros((4, 16, 1, 80), np.float16)}, ValueError, "^kv_cache: got dtype fp16; want dtype fp32"),
    ({"page_table": np.zeros((2, 2), np.int64)}, ValueError, "^page_table: got dtype int64; want dtype int32"),
    ({"page_table": None}, ValueError, "^page_table: got"),
    ({"seq_lens": np.zeros(3, np.int32)}, ValueError, "got .*; want"),
    ({"seq_lens": np.array([-1, 3], np.int32)}, ValueError, r"seq_lens\[0\]: got -1"),
    ({"seq_lens": np.array([1, 33], np.int32)}, ValueError, r"seq_lens\[1\]: got 33"),
    ({"page_table": np.full((2, 2), 99, np.int32)}, ValueError, r"page_table\[0.*got 99"),
    ({"q_rope": np.zeros((2, 1, 4, 16), np.float32)}, ValueError, "^q: got shape"),
    ({"cu_seqlens_q": np.zeros(3, np.int32)}, ValueError, "^q: got shape .*cu_seqlens_q is given"),
    ({"softmax_scale": float("nan")}, ValueError, "^softmax_scale: got"),
    ({"latent_dim": 20}, ValueError, "^latent_dim: got 20"),
    ({"latent_dim": 10**15}, ValueError, "got .*; want"),
    ({"latent_dim": -8}, ValueError, "^latent_dim: got -8"),
    ({"splits": 65}, ValueError, "^splits: got 65; want 0 .* 64"),
    ({"splits": 2**40}, ValueError, "^splits: got 1099511627776; want a 32-bit integer"),
    ({"threads": -1}, ValueError, "^threads: got -1"),
    ({"empty_lse": "nan"}, ValueError, r"^empty_lse: got 'nan'; want '\+inf' or '-inf'"),
    ({"backend": "gpu"}, ValueError, "^backend: got 'gpu'; want one of: .*reference"),
    ({"backend": "cpu", "isa": "sse2"}, ValueError, "isa: got 'sse2'"),
    ({"kv_format": "fp8"}, ValueError, "^kv_format: got 'fp8'; want None or one of: .*'fp8_tensor'"),
    ({"kv_format": "fp8_tile128"}, NotImplementedError, "kv_format: .*fp8_tile128"),
    ({"dtype": "bf16"}, ValueError, "^dtype: got 'bf16' with arrays of fp32"),
    ({"dtype": "bfloat16"}, ValueError, "^dtype: got 'bfloat16'; want None, 'bf16'"),
    ({"stream": 7}, ValueError, "^stream: got 7 with arrays on the CPU"),
    ({"out": np.zeros((2, 1, 4, 72), np.float32)}, ValueError, "^out: got shape"),
    ({"out": np.zeros((2, 1, 4, 64), np.float16)}, ValueError, "^out: got dtype fp16; want dtype fp32"),
    ({"status": np.zeros(1, np.int32)}, NotImplementedError, "^status: got a tensor in a call on the CPU, .*calls on CUDA"),
    ({"status": np.zeros(1, np.int64)}, ValueError, "^status: got dtype int64; want dtype int32"),
    ({"status": np.zeros(2, np.int32)}, ValueError, r"^status: got shape \[2\]; want shape \[codes\] = \[1\]"),
    ({"lse": np.zeros((2, 1, 4), np.float32)}, ValueError, "^lse: got shape"),
    ({"lse": np.zeros((2, 4, 1))}, ValueError, "^lse: got dtype fp64"),
    ({"out": np.broadcast_to(np.float32(0), (2, 1, 4, 64))}, ValueError, "^out: got a read-only numpy.ndarray"),
    ({"out": bytes(2048)}, ValueError, "^out: got bytes, which gives no writable memory"),
]


@pytest.mark.parametrize("changes, error, text", WRONG, ids=[f"{i}-{'-'.join(w[0])}" for i, w in enumerate(WRONG)])
def test_decode(call, changes, error, text):
    with pytest.raises(error, match=text):
        call(**changes)


def test_softmax_scale_is_required():
    problem = problems.make(1, [20])
    with pytest.raises(TypeError, match="softmax_scale"):
        flashmla.decode(*problem.arrays(), latent_dim=64)


def test_a_copying_exporter_loses_no_write():
    """A producer that cannot share its memory is asked with copy=False, so that it refuses instead of copying."""

    class Copying:
        dtype = np.dtype(np.float32)
        asked = None

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            self.asked = keywords
            if keywords.get("copy") is False:
                raise BufferError("this memory cannot be shared")
            return np.zeros((2, 4, 16), np.float32).__dlpack__()

    cache, tokens = Copying(), np.ones((1, 8), np.float32)
    with pytest.raises(BufferError, match="cannot be shared"):
        flashmla.append_kv(tokens, tokens, cache, np.zeros(1, np.int64))
    assert cache.asked["copy"] is False


def test_producers_without_copy_keyword_share_memory():
    class Old:
        dtype = np.dtype(np.float32)

        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self):
            return self.array.__dlpack__()

    cache, tokens = np.zeros((2, 4, 16), np.float32), np.ones((1, 8), np.float32)
    flashmla.append_kv(tokens, tokens, Old(cache), np.array([5], np.int64))
    assert (cache[1, 1] == 1).all() and cache.sum() == 16


APPEND = [
    ({"slot_mapping": np.array([8], np.int64)}, ValueError, r"slot_mapping\[0\]: got 8; want below 8"),
    ({"slot_mapping": np.zeros(1, np.int32)}, ValueError, "^slot_mapping: got dtype int32; want dtype int64"),
    ({"slot_mapping": np.zeros(2, np.int64)}, ValueError, "^latent: got shape .*at least T = 2"),
    ({"latent": np.zeros((1, 8), np.float16)}, ValueError, "^latent: got dtype fp16"),
    ({"rope": None}, ValueError, "^kv_cache: got shape"),
    ({"status": np.zeros(1, np.int32)}, NotImplementedError, "^status: got a tensor in a call on the CPU, .*calls on CUDA"),
    ({"status": np.zeros((1, 1), np.int32)}, ValueError, r"^status: got shape \[1, 1\]; want shape \[codes\] = \[1\]"),
    ({"kv_format": "fp8_tensor"}, NotImplementedError, "kv_format: .*fp8_tensor"),
]


@pytest.mark.parametrize("changes, error, text", APPEND, ids=[next(iter(wrong[0])) for wrong in APPEND])
def test_append_kv(changes, error, text):
    tokens = np.ones((1, 8), np.float32)
    cache = np.zeros((2, 4, 16), np.float32)
    arguments = {"latent": tokens, "rope": tokens, "kv_cache": cache, "slot_mapping": np.zeros(1, np.int64)}
    with pytest.raises(error, match=text):
        flashmla.append_kv(**(arguments | changes))
    assert not cache.any()


def test_append_kv_refuses_a_read_only_cache():
    cache = np.zeros((2, 4, 16), np.float32)
    cache.flags.writeable = False
    tokens = np.ones((1, 8), np.float32)
    with pytest.raises(ValueError, match="^kv_cache: got a read-only numpy.ndarray"):
        flashmla.append_kv(tokens, tokens, cache, np.zeros(1, np.int64))


def test_merge_states():
    out, lse = np.zeros((3, 2, 8), np.float32), np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="^lse_b: got shape"):
        flashmla.merge_states(out, lse, out, lse.T)
    with pytest.raises(ValueError, match="^out_b: got dtype fp16; want dtype fp32"):
        flashmla.merge_states(out, lse, out.astype(np.float16), lse)
    with pytest.raises(ValueError, match=r"^empty_lse: got 'inf'; want '\+inf' or '-inf'"):
        flashmla.merge_states(out, lse, out, lse, empty_lse="inf")


def test_numpy_booleans_are_booleans(call):
    assert np.array_equal(call(causal=np.bool_(True)), call(causal=True))
    assert np.array_equal(call(batch_invariant=np.bool_(True)), call(batch_invariant=True))


def test_explain_decode_of_more_tokens_than_pages_can_be():
    assert flashmla.explain_decode(batch=4096, heads_q=16, seq_k=2**20, page_size=1).backend == "cpu"


def test_explain_decode():
    for changes, text in (
        ({"page_size": 0}, "^page_size: got 0"),
        ({"seq_k": -5}, "^seq_k: got -5; want at least 0"),
        ({"batch": 2**62, "seq_q": 8}, "^shape.batch: got 4611686018427387904"),
        ({"dtype": "fp64"}, "^dtype: got 'fp64'; want 'fp32', 'fp16' or 'bf16'"),
        ({"backend": "gpu"}, "^backend: got 'gpu'"),
        ({"splits": 2**33}, "^splits: got 8589934592"),
        ({"device": "gpu"}, "^device: got 'gpu'; want None, 'cpu', 'cuda' or 'cuda:' and a number"),
        ({"device": "cuda:x"}, "^device: got 'cuda:x'"),
        ({"device": "cuda:1000000"}, "^device: got "),
        ({"device": "cuda", "backend": "cpu"}, "^backend: .*cpu"),
    ):
        with pytest.raises(ValueError, match=text):
            flashmla.explain_decode(**({"batch": 1, "heads_q": 16, "seq_k": 4096} | changes))
