"""The calls that vLLM's MLA layer makes of our back end, one by one, against a plain computation in double."""

import types

import pytest
import torch
from vllm.model_executor.layers.attention.mla_attention import MLACommonDecodeMetadata

import flashmla
from flashmla.engines.vllm import backend

HEADS, LATENT, ROPE, PAGE, SCALE = 4, 512, 64, 16, 0.1147
LENGTHS = [70, 3, 0, 33]


def impl(need_lse):
    made = object.__new__(backend.FlashMLAImpl)  # the engine's constructor wants a whole configuration
    made.kv_lora_rank, made.scale, made.need_to_return_lse_for_decode = LATENT, SCALE, need_lse
    made._batch_invariant, made._threads = False, 2
    return made


def cache_of(dtype, layers=1):
    """A cache of 12 pages, with pages of other layers between them where `layers` > 1; a page table with stale entries."""
    generator = torch.Generator().manual_seed(3)
    pool = torch.randn(12, layers, PAGE, LATENT + ROPE, generator=generator).to(dtype)
    table = torch.full((len(LENGTHS), 8), 99, dtype=torch.int32)
    pages = iter(torch.randperm(12, generator=generator).tolist())
    for row, length in enumerate(LENGTHS):
        for column in range(-(-length // PAGE)):
            table[row, column] = next(pages)
    return pool[:, layers - 1], table


def expected(q, cache, table, query_lens):
    rows, lses, first = [], [], 0
    for request, count in enumerate(query_lens):
        length = LENGTHS[request]
        pages = table[request, : -(-length // PAGE)].long()
        keys = cache[pages].reshape(-1, LATENT + ROPE)[:length].double()
        for i in range(count):
            seen = keys[: max(0, length - count + i + 1)]
            scores = q[first + i].double() @ seen.T * SCALE
            rows.append(torch.softmax(scores, -1) @ seen[:, :LATENT])
            lses.append(torch.logsumexp(scores, -1))
        first += count
    return torch.stack(rows), torch.stack(lses)


def step(table, query_lens, padded_tokens=0):
    start = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    tokens = padded_tokens or int(start[-1])
    builder = object.__new__(backend.FlashMLAMetadataBuilder)
    arguments = dict(
        block_table_tensor=table, seq_lens_device=torch.tensor(LENGTHS, dtype=torch.int32), max_seq_len=max(LENGTHS),
        query_start_loc_cpu=start, query_start_loc_device=start, num_decode_tokens=tokens, max_query_len=max(query_lens),
        dcp_tot_seq_lens_device=None,
    )  # fmt: skip
    return types.SimpleNamespace(decode=builder._build_decode(**arguments), causal=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("parts", [True, False], ids=["latent-and-rope", "one-tensor"])
@pytest.mark.parametrize("query_lens", [(1, 1, 1, 1), (2, 2, 2, 2), (1, 3, 1, 2)], ids=["single", "uniform", "ragged"])
def test_forward_mqa(query_lens, parts, layers, dtype):
    cache, table = cache_of(dtype, layers)
    tokens = sum(query_lens)
    generator = torch.Generator().manual_seed(4)
    # As the layer makes them: the latent part transposed, the RoPE part a slice of something wider.
    latent = torch.randn(HEADS, tokens, LATENT, generator=generator).to(dtype).transpose(0, 1)
    rope = torch.randn(tokens, HEADS, 3 * ROPE, generator=generator).to(dtype)[..., 2 * ROPE :]
    whole = torch.cat((latent, rope), dim=-1)
    metadata = step(table, query_lens)
    assert metadata.decode.uniform_query_len == (query_lens[0] if len(set(query_lens)) == 1 else 0)
    out, lse = impl(True).forward_mqa((latent, rope) if parts else whole, cache, metadata, None)
    want_out, want_lse = expected(whole, cache, table, query_lens)
    assert out.shape == (tokens, HEADS, LATENT) and out.dtype == dtype
    assert lse.shape == (tokens, HEADS) and lse.dtype == torch.float32
    empty = want_lse.isneginf()
    assert empty.any() and torch.equal(lse.isneginf(), empty) and not out[empty].any()
    bound = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    assert (out.double() - want_out.nan_to_num(0.0)).abs().max() < bound * want_out.nan_to_num(0.0).abs().max()
    assert (lse[~empty].double() - want_lse[~empty]).abs().max() < 1e-3
    assert impl(False).forward_mqa(whole, cache, metadata, None)[1] is None


def test_rows_that_pad_a_graph():
    """Two requests in a graph captured for four: the others have no query tokens, but rows."""
    cache, table = cache_of(torch.float32)
    whole = torch.randn(8, HEADS, LATENT + ROPE, generator=torch.Generator().manual_seed(6))
    metadata = step(table, (2, 2, 0, 0), padded_tokens=8)
    metadata.decode.seq_lens[2:] = 0
    assert metadata.decode.uniform_query_len == 2
    out, lse = impl(True).forward_mqa(whole, cache, metadata, None)
    want_out, want_lse = expected(whole, cache, table, (2, 2, 0, 0))
    assert (out[:4].double() - want_out).abs().max() < 1e-4 and (lse[:4].double() - want_lse).abs().max() < 1e-4
    assert not out[4:].any() and lse[4:].isneginf().all()


@pytest.mark.parametrize(
    ("query_lens", "tokens", "uniform"),
    [
        ((1, 1, 1), 3, 1), ((3, 3), 6, 3), ((1, 2), 3, 0), ((2, 1, 1, 0), 4, 0), ((0, 1), 2, 0), ((1, 1, 0, 0), 4, 1),
        ((0, 0), 2, 1), ((2, 2, 0, 0), 4, 0), ((1, 2), 4, 0), ((2, 0, 2, 0), 8, 0),
    ],
)  # fmt: skip
def test_uniform_only_where_every_row_lies_as_in_a_grid(query_lens, tokens, uniform):
    start = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    assert backend._uniform_query_len(start, tokens) == uniform


def test_cache_write():
    generator = torch.Generator().manual_seed(8)
    pool = torch.zeros(6, 2, PAGE, LATENT + ROPE)
    cache = pool[:, 1]  # pages of two layers side by side
    latent, rope = torch.randn(7, LATENT, generator=generator), torch.randn(7, 1, ROPE, generator=generator)
    slots = torch.tensor([0, 17, -1, 95, 33])  # two tokens more than slots: a padded step
    impl(False).do_kv_cache_update(latent, rope, cache, slots, "auto", torch.ones(1))
    want = torch.zeros_like(pool)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            want[slot // PAGE, 1, slot % PAGE] = torch.cat((latent[token], rope[token, 0]))
    assert torch.equal(pool, want)
    impl(False).do_kv_cache_update(latent, rope, torch.empty(0), slots, "auto", torch.ones(1), False)  # profiling: no cache


def test_batch_without_causal_mask_is_refused():
    cache, table = cache_of(torch.float32)
    metadata = step(table, (1, 1, 1, 1))
    metadata.causal = False
    with pytest.raises(NotImplementedError, match="got a batch without causal mask; want a causal one"):
        impl(False).forward_mqa(torch.zeros(4, HEADS, LATENT + ROPE), cache, metadata, None)


def test_metadata_is_the_engines():
    assert isinstance(step(cache_of(torch.float32)[1], (1, 1, 1, 1)).decode, MLACommonDecodeMetadata)


def test_batch_invariant_mode_has_one_form(monkeypatch):
    """With drafts, a request's call must not depend on whether its neighbours have as many query tokens."""
    cache, table = cache_of(torch.float32)
    whole = torch.randn(8, HEADS, LATENT + ROPE, generator=torch.Generator().manual_seed(9))
    decode, forms = flashmla.decode, []

    def noted(q, *arguments, **options):
        forms.append((q.ndim, options["cu_seqlens_q"] is not None))
        return decode(q, *arguments, **options)

    monkeypatch.setattr(flashmla, "decode", noted)
    layer = impl(True)
    layer._batch_invariant = True
    alone = layer.forward_mqa(whole, cache, step(table, (2, 2, 2, 2)), None)
    mixed = layer.forward_mqa(whole[:7], cache, step(table, (2, 2, 2, 1)), None)
    assert forms == [(3, True), (3, True)]
    assert all(torch.equal(a[:6], b[:6]) for a, b in zip(alone, mixed))
    layer.forward_mqa(whole[:4], cache, step(table, (1, 1, 1, 1)), None)
    assert forms[-1] == (4, False)


@pytest.mark.parametrize(
    ("ranks", "drafts", "support"),
    [(1, None, "UNIFORM_BATCH"), (1, "ngram", "UNIFORM_BATCH"), (2, None, "UNIFORM_BATCH"),
     (2, "ngram", "UNIFORM_SINGLE_TOKEN_DECODE")],
)  # fmt: skip
def test_what_is_captured(ranks, drafts, support):
    parallel = types.SimpleNamespace(decode_context_parallel_size=ranks)
    config = types.SimpleNamespace(parallel_config=parallel, speculative_config=drafts)
    assert backend.FlashMLAMetadataBuilder.get_cudagraph_support(config, None).name == support
