"""Decode problems in NumPy, the double-precision formula, and the contract's bound. No framework beyond NumPy."""

import dataclasses

import numpy as np

GARBAGE_PAGES = (-1, 2**31 - 1)  # what stands in table entries past a length


def to_bf16(values):
    """fp32 -> bf16 bits (uint16), to nearest even; values are finite or NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values, dtype):
    """fp32 values as `dtype` holds them, in fp32."""
    if dtype == "bf16":
        return from_bf16(to_bf16(values))
    return np.asarray(values, {"fp16": np.float16, "fp32": np.float32}[dtype]).astype(np.float32)


def stored(values, dtype):
    """fp32 values as the array that goes into a call: bf16 becomes uint16."""
    if dtype == "bf16":
        return to_bf16(values)
    return np.ascontiguousarray(values, {"fp16": np.float16, "fp32": np.float32}[dtype])


def loaded(array, dtype):
    return from_bf16(array) if dtype == "bf16" else np.asarray(array, np.float32)


@dataclasses.dataclass
class Problem:
    """q [b, s_q, h_q, d_qk], cache [pages, page, h_kv, d_qk], both fp32 and exact in `dtype`; NaN past every length."""

    q: np.ndarray
    cache: np.ndarray
    table: np.ndarray
    lens: np.ndarray
    scale: float
    causal: bool
    latent_dim: int
    dtype: str

    def arrays(self):
        return stored(self.q, self.dtype), stored(self.cache, self.dtype), self.table, self.lens

    def options(self):
        options = {"softmax_scale": self.scale, "causal": self.causal, "latent_dim": self.latent_dim}
        return options | ({"dtype": "bf16"} if self.dtype == "bf16" else {})

    def keys(self, request):
        """The cached rows of a request, [len, h_kv, d_qk]."""
        length = int(self.lens[request])
        page = self.cache.shape[1]
        pages = self.table[request, : -(-length // page)]
        return self.cache[pages].reshape(-1, *self.cache.shape[2:])[:length]


def make(seed, lens, *, seq_q=1, heads_q=4, heads_kv=1, latent_dim=64, rope_dim=16, page_size=16, dtype="fp32",
         causal=False, spare_pages=3, width=None):  # fmt: skip
    rng = np.random.default_rng(seed)
    lens = np.asarray(lens, np.int32)
    used = -(-lens // page_size)
    width = max(int(used.max(initial=0)), 1) if width is None else width
    pages = int(used.sum()) + spare_pages
    order = rng.permutation(pages).astype(np.int32)
    table = rng.choice(np.array(GARBAGE_PAGES, np.int32), (len(lens), width))
    cache = np.full((pages, page_size, heads_kv, latent_dim + rope_dim), np.nan, np.float32)
    first = 0
    for request, count in enumerate(used):
        table[request, :count] = order[first : first + count]
        rows = rounded(rng.standard_normal((lens[request], *cache.shape[2:]), np.float32), dtype)
        for token, row in enumerate(rows):
            cache[table[request, token // page_size], token % page_size] = row
        first += count
    q = rounded(rng.standard_normal((len(lens), seq_q, heads_q, latent_dim + rope_dim), np.float32), dtype)
    return Problem(q, cache, table, lens, float((latent_dim + rope_dim) ** -0.5), causal, latent_dim, dtype)


def formula(problem, request, precision=np.float64):
    """(out [s_q, h_q, d_v], lse [h_q, s_q]) of a request in `precision`; float32 also rounds P to the tensor's dtype."""
    q = problem.q[request].astype(precision)
    keys = problem.keys(request).astype(precision)
    seq_q, heads_q, _ = q.shape
    keys = np.repeat(keys, heads_q // keys.shape[1], axis=1)
    scores = np.einsum("shd,khd->hsk", q, keys) * precision(problem.scale)
    if problem.causal:
        last = len(keys) - seq_q + np.arange(seq_q)
        scores = np.where(np.arange(len(keys))[None, None, :] <= last[None, :, None], scores, -np.inf)
    top = scores.max(axis=-1, initial=-np.inf, keepdims=True)
    empty = top == -np.inf
    weights = np.exp(scores - np.where(empty, 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    if precision is np.float32:
        weights = rounded(weights, problem.dtype)
    out = np.einsum("hsk,khv->hsv", weights, keys[..., : problem.latent_dim]) / np.where(empty, 1, total)
    lse = np.where(empty, np.inf, top + np.log(np.where(empty, 1, total)))
    out = rounded(out, problem.dtype) if precision is np.float32 else out
    return out.transpose(1, 0, 2), lse[..., 0]


def check(problem, out, lse, marker=np.inf):
    """Asserts the contract's accuracy bound on a result of the whole problem (out as stored in the call's dtype)."""
    out = loaded(out, problem.dtype)
    for request in range(len(problem.lens)):
        want_out, want_lse = formula(problem, request)
        near_out, _ = formula(problem, request, np.float32)
        empty = np.isinf(want_lse)
        np.testing.assert_array_equal(np.where(empty, lse[request], 0), np.where(empty, marker, 0), err_msg="markers")
        assert np.isfinite(lse[request][~empty]).all(), f"request {request}: lse is not finite"
        assert np.isfinite(out[request]).all(), f"request {request}: out is not finite"
        largest = np.abs(problem.keys(request)[..., : problem.latent_dim]).max(initial=0)
        bound = 2 * np.abs(near_out - want_out).max(initial=0) + 1e-5 * largest
        assert np.abs(out[request] - want_out).max(initial=0) <= bound, f"request {request}: out"
        error = np.abs(lse[request][~empty] - want_lse[~empty])
        relative = 1e-6 if problem.dtype == "fp32" else 1.2e-4
        assert (error <= 1e-6 + relative * np.abs(want_lse[~empty])).all(), f"request {request}: lse"
