"""The SGLang back end's steps on CPU tensors, with stand-ins for the engine's objects, against plain torch."""

import importlib
import sys
import types

import engine_fakes
import pytest

CONTRACT = engine_fakes.FIXTURES / "sglang-0.5.15.post1.json"
LATENT, ROPE, HEADS = 64, 16, 3
SCALE = 0.11
STALE = 2**31 - 1  # what req_to_token holds past a request's length


class Pool:
    """The latent pool as the engine has it: a row a slot, slot 0 for what padding writes."""

    def __init__(self, torch, slots, page, dtype, latent=LATENT, rope=ROPE):
        self.rows = torch.randn(slots + page, 1, latent + rope).to(dtype)
        self.latent = latent
        self.writes = []

    def get_key_buffer(self, layer_id):
        assert layer_id == 7
        return self.rows

    def set_kv_buffer(self, layer, loc, k, v):
        self.writes.append("set_kv_buffer")
        self.rows[loc] = k

    def set_mla_kv_buffer(self, layer, loc, k_nope, k_rope):
        self.writes.append("set_mla_kv_buffer")
        self.rows[loc, :, : self.latent] = k_nope
        self.rows[loc, :, self.latent :] = k_rope


class Prefill:
    """The engine's Triton back end, of which only the calls are looked at."""

    made = 0

    def __init__(self, runner):
        Prefill.made += 1
        self.calls = []

    def init_forward_metadata(self, forward_batch):
        self.calls.append(("eager", forward_batch))

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        self.calls.append(("graph", in_capture))

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None):
        self.calls.append((q, k, v, save_kv_cache))
        return "prefill"


def modes(*names):
    return lambda self: self.name in names


@pytest.fixture
def engine(torch):
    Prefill.made = 0
    backends, handlers = {"triton": Prefill}, {}
    base = "sglang.srt.layers.attention.base_attn_backend.AttentionBackend"
    mode = "sglang.srt.model_executor.forward_batch_info.ForwardMode"
    handler = "sglang.srt.models.deepseek_common.attention_backend_handler"
    behaviour = {
        "sglang.srt.layers.attention.attention_registry.ATTENTION_BACKENDS": backends,
        f"{handler}.AttentionBackendRegistry.register": lambda cls, name, rule: handlers.update({name: rule}),
        f"{base}.init_forward_metadata_in_graph": lambda self, forward_batch: None,
        f"{mode}.is_decode_or_idle": modes("DECODE", "IDLE"),
        f"{mode}.is_target_verify": modes("TARGET_VERIFY"),
        f"{mode}.is_draft_extend_v2": modes("DRAFT_EXTEND_V2"),
    }
    with engine_fakes.installed(engine_fakes.load(CONTRACT), behaviour) as plugin:
        yield types.SimpleNamespace(
            package=importlib.import_module(plugin),
            handlers=handlers,
            triton_rule=sys.modules[handler].handle_attention_triton,
            mode=sys.modules["sglang.srt.model_executor.forward_batch_info"].ForwardMode,
            decoder=sys.modules["sglang.srt.layers.radix_attention"].AttentionType.DECODER,
            encoder=sys.modules["sglang.srt.layers.radix_attention"].AttentionType.ENCODER_ONLY,
        )


def make_runner(torch, page=16, dtype="bfloat16", context=128, requests=6, **changes):
    """A runner whose request i (row i of req_to_token, from 1 on) owns pages of its own, in mixed order."""
    dtype = getattr(torch, dtype)
    torch.manual_seed(3)
    pages = context // page
    table = torch.full((requests + 1, context), STALE, dtype=torch.int32)
    table[0] = 0
    order = 1 + torch.randperm(requests * pages)
    for i in range(requests):
        own = order[i * pages : (i + 1) * pages]
        table[i + 1] = (own[:, None] * page + torch.arange(page)).flatten().to(torch.int32)
    runner = types.SimpleNamespace(
        use_mla_backend=True, dtype=dtype, kv_cache_dtype=dtype, device="cpu", page_size=page, dcp_size=1,
        sliding_window_size=None, token_to_kv_pool_allocator=object(),
        token_to_kv_pool=Pool(torch, requests * context, page, dtype),
        req_to_token_pool=types.SimpleNamespace(req_to_token=table, size=requests),
        model_config=types.SimpleNamespace(context_len=context, kv_lora_rank=LATENT, qk_rope_head_dim=ROPE),
        server_args=types.SimpleNamespace(
            speculative_algorithm=None, speculative_eagle_topk=None, speculative_num_draft_tokens=None
        ),
    )  # fmt: skip
    for name, value in changes.items():
        owner = runner.server_args if name.startswith("speculative") else runner
        setattr(owner, name, value)
    return runner


def make_layer(engine, **changes):
    return types.SimpleNamespace(**{
        "tp_q_head_num": HEADS, "head_dim": LATENT + ROPE, "v_head_dim": LATENT, "scaling": SCALE, "layer_id": 7,
        "logit_cap": 0.0, "sliding_window_size": -1, "is_cross_attention": False, "xai_temperature_len": -1,
        "attn_type": engine.decoder, "k_scale_float": None, **changes,
    })  # fmt: skip


def make_batch(torch, mode, rows, lengths, slots=None):
    return types.SimpleNamespace(
        forward_mode=mode, batch_size=len(rows), out_cache_loc=slots,
        req_pool_indices=torch.tensor(rows, dtype=torch.int64), seq_lens=torch.tensor(lengths, dtype=torch.int64),
    )  # fmt: skip


def slots_of_new(torch, table, rows, lengths, count):
    """Slots of the last `count` tokens of each request."""
    return torch.cat([table[r, n - count : n] for r, n in zip(rows, lengths, strict=True)]).long()


def expected(torch, q, pool, table, rows, lengths, count):
    """Plain attention in double precision; `lengths` with the new tokens."""
    out = []
    queries = q.double().view(len(rows), count, HEADS, -1)
    for query, row, length in zip(queries, rows, lengths, strict=True):
        keys = pool.rows[table[row, :length].long(), 0].double()
        scores = torch.einsum("shd,kd->shk", query, keys) * SCALE
        seen = torch.arange(length) <= torch.arange(length - count, length)[:, None]
        weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        out.append(torch.einsum("shk,kd->shd", weights, keys[:, :LATENT]))
    return torch.cat(out).flatten(1)


def check(torch, got, want, dtype):
    assert got.dtype == getattr(torch, dtype) and got.shape == want.shape
    bits = {"bfloat16": 8, "float16": 11}[dtype]
    # Twice the rounding of the result; the weights are rounded to the cache's dtype as well.
    torch.testing.assert_close(got.double(), want, rtol=2.0 ** (1 - bits), atol=2.0 ** (2 - bits))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_decode(torch, engine, page, dtype, split):
    runner = make_runner(torch, page, dtype)
    backend = engine.package.create_backend(runner)
    pool, table, layer = runner.token_to_kv_pool, runner.req_to_token_pool.req_to_token, make_layer(engine)
    rows, lengths = [4, 1, 6, 2, 3], [1, 15, 64, 65, 128]
    for row, length in zip(rows, lengths, strict=True):
        table[row, length:] = STALE
    batch = make_batch(torch, engine.mode.DECODE, rows, lengths, slots_of_new(torch, table, rows, lengths, 1))
    q = torch.randn(5, HEADS, LATENT + ROPE).to(runner.dtype)
    k = torch.randn(5, 1, LATENT + ROPE).to(runner.dtype)
    backend.init_forward_metadata(batch)
    if split:
        # As the model has it: the latent part is a transposed product.
        latent = q[..., :LATENT].transpose(0, 1).contiguous().transpose(0, 1)
        got = backend.forward_decode(
            latent, k[..., :LATENT], k[..., :LATENT], layer, batch, q_rope=q[..., LATENT:], k_rope=k[..., LATENT:]
        )
        assert pool.writes == ["set_mla_kv_buffer"]
    else:
        got = backend.forward_decode(q.flatten(1), k, k[..., :LATENT], layer, batch)
        assert pool.writes == ["set_kv_buffer"]
    assert torch.equal(pool.rows[batch.out_cache_loc], k)
    check(torch, got, expected(torch, q, pool, table, rows, lengths, 1), dtype)
    assert Prefill.made == 0


def test_verify(torch, engine):
    """Three drafts a request; SGLang's lengths are those before them."""
    runner = make_runner(
        torch, speculative_algorithm="EAGLE", speculative_eagle_topk=1, speculative_num_draft_tokens=3
    )
    backend = engine.package.create_backend(runner)
    pool, table = runner.token_to_kv_pool, runner.req_to_token_pool.req_to_token
    rows, before, after = [2, 5], [14, 60], [17, 63]
    batch = make_batch(torch, engine.mode.TARGET_VERIFY, rows, before, slots_of_new(torch, table, rows, after, 3))
    q, k = (torch.randn(6, n, LATENT + ROPE).to(runner.dtype) for n in (HEADS, 1))
    backend.init_forward_metadata(batch)
    got = backend.forward_extend(q.flatten(1), k, k[..., :LATENT], make_layer(engine), batch)
    check(torch, got, expected(torch, q, pool, table, rows, after, 3), "bfloat16")
    assert batch.seq_lens.tolist() == before
    with pytest.raises(ValueError, match="q: got 5 tokens; want 3 of each of the step's 2 requests"):
        backend.forward_extend(q[:5].flatten(1), None, None, make_layer(engine), batch)


@pytest.mark.parametrize("padding", [0, 1])
def test_graph_memory(torch, engine, padding):
    """What a captured graph reads stays in its place, and takes a later batch's values; padding rows do no harm."""
    runner = make_runner(torch)
    backend = engine.package.create_backend(runner)
    layer, pool, table = make_layer(engine), runner.token_to_kv_pool, runner.req_to_token_pool.req_to_token
    with pytest.raises(RuntimeError, match="before init_cuda_graph_state"):
        backend.init_forward_metadata_out_graph(make_batch(torch, engine.mode.DECODE, [0], [1]))
    backend.init_cuda_graph_state(max_bs=8, max_num_tokens=8)
    fill = backend.get_cuda_graph_seq_len_fill_value()
    backend.init_forward_metadata_out_graph(
        make_batch(torch, engine.mode.DECODE, [0, 0, 0, 0], [fill] * 4), in_capture=True
    )
    captured = backend.forward_metadata
    rows, lengths = [3, 1, 0, 0], [70, 20, padding, padding]
    batch = make_batch(torch, engine.mode.DECODE, rows, lengths)
    backend.init_forward_metadata_out_graph(batch)
    for name in ("page_table", "seq_lens"):
        assert getattr(captured, name).data_ptr() == getattr(backend.forward_metadata, name).data_ptr()
        assert getattr(captured, name).dtype == torch.int32
    backend.forward_metadata = captured
    backend.init_forward_metadata_in_graph(batch)
    q = torch.randn(4, HEADS, LATENT + ROPE).to(runner.dtype)
    got = backend.forward_decode(q.flatten(1), None, None, layer, batch)
    check(torch, got[:2], expected(torch, q[:2], pool, table, rows[:2], lengths[:2], 1), "bfloat16")
    assert got.isfinite().all() and pool.writes == []


def test_metadata_asks_the_device_for_nothing(torch, engine):
    """Tensors without values: reading one on the host raises."""
    runner = make_runner(torch)
    runner.req_to_token_pool.req_to_token = runner.req_to_token_pool.req_to_token.to("meta")
    backend = engine.package.create_backend(runner)
    backend.init_cuda_graph_state(4, 4)
    batch = make_batch(torch, engine.mode.DECODE, [1, 2], [5, 6])
    batch.req_pool_indices, batch.seq_lens = batch.req_pool_indices.to("meta"), batch.seq_lens.to("meta")
    for init in (backend.init_forward_metadata, backend.init_forward_metadata_out_graph):
        backend.forward_metadata = None
        init(batch)
        assert backend.forward_metadata.page_table.shape == (2, 8)


def test_idle_step_without_requests(torch, engine):
    backend = engine.package.create_backend(make_runner(torch))
    backend.init_forward_metadata(make_batch(torch, engine.mode.IDLE, [], []))
    assert backend.forward_metadata.page_table.shape == (0, 8)


def test_prompts_go_to_triton(torch, engine):
    runner = make_runner(torch)
    backend, layer = engine.package.create_backend(runner), make_layer(engine)
    assert engine.handlers == {"flashmla_native": engine.triton_rule}
    batch = make_batch(torch, engine.mode.EXTEND, [1], [4])
    backend.init_forward_metadata(batch)
    q, k = torch.randn(4, HEADS, LATENT + ROPE), torch.randn(4, 1, LATENT + ROPE)
    assert backend.forward_extend(q, k, k[..., :LATENT], layer, batch, False) == "prefill"
    parts = {"q_rope": q[..., LATENT:], "k_rope": k[..., LATENT:]}
    backend.forward_extend(q[..., :LATENT], k[..., :LATENT], k[..., :LATENT], layer, batch, **parts)
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    prefill = backend.prefill_backend
    assert Prefill.made == 1 and prefill.calls[0] == ("eager", batch) and prefill.calls[3] == ("graph", True)
    for call, save in zip(prefill.calls[1:3], (False, True), strict=True):
        assert torch.equal(call[0], q) and torch.equal(call[1], k) and call[3] is save


REFUSED = [
    ({"use_mla_backend": False}, ValueError, "model: got one without MLA"),
    ({"dtype": "float32"}, NotImplementedError, "dtype: got torch.float32"),
    ({"kv_cache_dtype": "float8_e4m3fn"}, NotImplementedError, "kv_cache_dtype: got torch.float8_e4m3fn"),
    ({"sliding_window_size": 128}, NotImplementedError, "sliding_window_size: got 128"),
    ({"dcp_size": 2}, NotImplementedError, "dcp_size: got 2"),
    ({"token_to_kv_pool": types.SimpleNamespace(use_dsa=True)}, NotImplementedError, "sparse attention"),
    ({"token_to_kv_pool_allocator": types.SimpleNamespace(translate_kv_loc=print)}, NotImplementedError, "memory pool"),
    ({"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 4}, NotImplementedError, "eagle_topk: got 4"),
]


@pytest.mark.parametrize(("changes", "error", "text"), REFUSED, ids=lambda v: "-".join(v) if type(v) is dict else None)
def test_refused_models(torch, engine, changes, error, text):
    if "kv_cache_dtype" in changes:
        changes = {"kv_cache_dtype": getattr(torch, changes["kv_cache_dtype"])}
    with pytest.raises(error, match=text):
        engine.package.create_backend(make_runner(torch, **changes))
    assert engine.handlers == {}


LAYERS = [
    ({"sliding_window_size": 4}, {}, NotImplementedError, "sliding_window_size: got 4"),
    ({"logit_cap": 30.0}, {}, NotImplementedError, "logit_cap: got 30.0"),
    ({"xai_temperature_len": 8}, {}, NotImplementedError, "xai_temperature_len: got 8"),
    ({"is_cross_attention": True}, {}, NotImplementedError, "attn_type: got cross-attention"),
    ({"attn_type": "encoder"}, {}, NotImplementedError, "attn_type: got"),
    ({"k_scale_float": 0.5}, {}, NotImplementedError, "k_scale: got 0.5"),
    ({"head_dim": 192}, {}, ValueError, "layer: got widths 192 and 64; want 80 and 64"),
    ({}, {"topk_indices": [1]}, NotImplementedError, "topk_indices: got list"),
    ({}, {"sinks": [1]}, NotImplementedError, "sinks: got list"),
]


@pytest.mark.parametrize(("changes", "others", "error", "text"), LAYERS, ids=lambda v: v if type(v) is str else "")
def test_refused_layers(torch, engine, changes, others, error, text):
    backend = engine.package.create_backend(make_runner(torch))
    if "attn_type" in changes:
        changes = {"attn_type": engine.encoder}
    batch = make_batch(torch, engine.mode.DECODE, [1], [4])
    backend.init_forward_metadata(batch)
    q = torch.zeros(1, HEADS * (LATENT + ROPE), dtype=torch.bfloat16)
    with pytest.raises(error, match=text):
        backend.forward_decode(q, None, None, make_layer(engine, **changes), batch, **others)
    backend.forward_decode(q, None, None, make_layer(engine, k_scale_float=1.0), batch, topk_indices=None)


def test_refused_draft_model(torch, engine):
    backend = engine.package.create_backend(make_runner(torch))
    with pytest.raises(NotImplementedError, match="--speculative-draft-attention-backend triton"):
        backend.init_forward_metadata(make_batch(torch, engine.mode.DRAFT_EXTEND_V2, [1], [4]))


def test_slow_page_size_is_said(torch, engine, caplog):
    engine.package.create_backend(make_runner(torch, page=64))
    assert caplog.text == ""
    engine.package.create_backend(make_runner(torch, page=1))
    assert "got --page-size 1" in caplog.text
