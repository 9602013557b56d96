"""Decodes with an installed wheel and compares with the formula: run by ./dev wheel in a clean environment."""

import numpy as np

import flashmla

rng = np.random.default_rng(1)
q = rng.standard_normal((2, 1, 16, 576), dtype=np.float32)
kv_cache = rng.standard_normal((6, 64, 1, 576), dtype=np.float32)
page_table = np.array([[4, 0, 2], [1, 5, 3]], dtype=np.int32)
seq_lens = np.array([190, 5], dtype=np.int32)
scale = 192**-0.5
out, lse = flashmla.decode(q, kv_cache, page_table, seq_lens, softmax_scale=scale, return_lse=True)
for request, length in enumerate(seq_lens):
    keys = kv_cache[page_table[request], :, 0].reshape(-1, 576)[:length].astype(np.float64)
    weights = np.exp(q[request, 0].astype(np.float64) @ keys.T * scale)
    np.testing.assert_allclose(out[request, 0], weights @ keys[:, :512] / weights.sum(1, keepdims=True), atol=1e-4)
    np.testing.assert_allclose(lse[request, :, 0], np.log(weights.sum(1)), rtol=1e-5)
backends = ", ".join(backend.name for backend in flashmla.backends())
print(f"flashmla {flashmla.__version__} decodes right; back ends: {backends}; loaded from {flashmla.__file__}")
