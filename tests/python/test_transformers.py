"""DeepSeek-V2 and -V3 models of transformers on this library: against transformers' own eager attention."""

import contextlib
import copy
import inspect
import io
import pathlib
import re
import types

import pytest
from conftest import need

try:
    torch, transformers = need("torch"), need("transformers")
except pytest.skip.Exception as reason:
    pytest.skip(str(reason), allow_module_level=True)

from flashmla.engines import transformers as engine  # noqa: E402

TOLERANCE = 2e-5  # fp32, beside the largest logit: both sides sum in fp32, in different orders
TINY = dict(
    vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24,
    kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2,
    n_shared_experts=1, n_group=2, topk_group=1, moe_intermediate_size=16, intermediate_size=48,
    first_k_dense_replace=1, max_position_embeddings=512, initializer_range=0.15, bos_token_id=0, eos_token_id=None,
    pad_token_id=0,
    rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64,
                         mscale=1.0, mscale_all_dim=1.0),
)  # fmt: skip
KERNEL_WIDTHS = dict(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
MODELS = {
    "v2-32+8": (transformers.DeepseekV2Config, dict(q_lora_rank=None, topk_method="greedy")),
    "v2-512+64": (transformers.DeepseekV2Config, dict(KERNEL_WIDTHS, topk_method="group_limited_greedy")),
    "v3-32+8": (transformers.DeepseekV3Config, {}),
    "v3-512+64": (transformers.DeepseekV3Config, dict(KERNEL_WIDTHS, q_lora_rank=None)),
}
LENS = [11, 4, 7]  # of the prompts
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    """A checkpoint with random weights."""
    return checkpoint(tmp_path_factory, request.param)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return checkpoint(tmp_path_factory, "v3-32+8")


def checkpoint(tmp_path_factory, name, **changes):
    kind, settings = MODELS[name]
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(kind(**dict(TINY, **settings, **changes)))
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder


def load(folder, attn_implementation="mla", enable=True, dtype=None, **options):
    engine.register()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=attn_implementation, dtype=dtype or torch.float32
    ).eval()
    if attn_implementation == "mla" and enable:
        engine.enable_mla_decode(model, **options)
    return model


@pytest.fixture
def calls(monkeypatch):
    """How often the library's operations ran."""
    counts = dict(prefill=0, decode=0)

    def counted(name):
        operation = getattr(engine, name)

        def call(*arguments, **options):
            counts[name] += 1
            return operation(*arguments, **options)

        monkeypatch.setattr(engine, name, call)

    for name in counts:
        counted(name)
    return counts


def batch(lens=LENS, seed=1, side="left"):
    """Token ids `[b, longest]` and their mask, padded at one side."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lens)
    ids = torch.randint(1, TINY["vocab_size"], (len(lens), longest), generator=generator)
    at = torch.arange(longest).expand(len(lens), -1)
    length = torch.tensor(lens)[:, None]
    kept = at >= longest - length if side == "left" else at < length
    return torch.where(kept, ids, 0), kept.long()


def steps(model, ids, kept, sizes, cache=None):
    """Logits of all tokens, computed step by step over one cache."""
    cache = transformers.DynamicCache(config=model.config) if cache is None else cache
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # 5.24, before it
    begin, logits = cache.get_seq_length(), []
    with torch.no_grad():
        for size in sizes:
            end = begin + size
            out = model(
                input_ids=ids[:, begin:end],
                attention_mask=None if kept is None else kept[:, :end],
                position_ids=None if kept is None else (kept[:, :end].cumsum(1) - 1).clamp(min=0)[:, begin:],
                **{name: cache},
            )
            logits.append(out.logits)
            begin = end
    return torch.cat(logits, dim=1)


def error_of(got, want, kept=None):
    """Largest difference beside the largest logit, over kept tokens."""
    if kept is not None:
        got, want = got[kept.bool()], want[kept.bool()]
    assert torch.isfinite(got).all()
    return ((got - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("lens", [[46], [46, 46], [46, 31, 40]], ids=["one", "equal", "padded"])
def test_logits_as_eager(folder, calls, lens):
    """A prompt, single tokens, three tokens at once, and a step so long that it is expanded (at the small widths)."""
    ids, kept = batch(lens)
    kept = None if min(lens) == max(lens) else kept
    sizes = [6, 1, 1, 3, 34, 1] if kept is None else [20, 1, 1, 3, 20, 1]
    want = steps(load(folder, "eager"), ids, kept, sizes)
    model = load(folder)
    assert error_of(steps(model, ids, kept, sizes), want, kept) < TOLERANCE
    layers = model.config.num_hidden_layers
    expanded = 1 + (kept is None and model.config.kv_lora_rank == 32)
    assert calls == dict(prefill=expanded * layers, decode=(len(sizes) - expanded) * layers)


def test_greedy_tokens_as_eager(folder, calls):
    ids, kept = batch()
    options = dict(max_new_tokens=24, do_sample=False)
    want = load(folder, "eager").generate(ids, attention_mask=kept, **options)
    model = load(folder)
    got = model.generate(ids, attention_mask=kept, **options)
    layers = model.config.num_hidden_layers
    assert got.shape == (len(LENS), max(LENS) + 24) and torch.equal(got, want)
    assert calls == dict(prefill=layers, decode=23 * layers)
    assert len({tuple(row) for row in got[:, max(LENS) :].tolist()}) == len(LENS), "the rows answer alike: a weak test"


def test_attention_function_alone_is_the_mha_form(folder, calls):
    ids, kept = batch()
    want = steps(load(folder, "eager"), ids, kept, [8, 1, 2])
    model = load(folder, enable=False)
    assert error_of(steps(model, ids, kept, [8, 1, 2]), want, kept) < TOLERANCE
    assert calls == dict(prefill=3 * model.config.num_hidden_layers, decode=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_absorbed_prefill_and_no_cache(folder, calls, side):
    ids, kept = batch(side=side)
    model = load(folder, absorb_prefill=True)
    with torch.no_grad():
        want = load(folder, "eager")(ids, attention_mask=kept, use_cache=False).logits
        assert error_of(model(ids, attention_mask=kept, use_cache=False).logits, want, kept) < TOLERANCE
    assert error_of(steps(model, ids, kept, [8, 3]), steps(load(folder, "eager"), ids, kept, [8, 3]), kept) < TOLERANCE
    assert calls == dict(prefill=0, decode=3 * model.config.num_hidden_layers)


def test_padding_at_the_right_and_between(tiny):
    """The MHA form takes any; a step over latents wants one run of kept tokens."""
    ids, kept = batch(side="right")
    more = torch.ones(len(LENS), 2, dtype=torch.long)
    ids, kept = torch.cat([ids, more], 1), torch.cat([kept, more], 1)
    want = steps(load(tiny, "eager"), ids, kept, [11, 2])
    assert error_of(steps(load(tiny, enable=False), ids, kept, [11, 2]), want, kept) < TOLERANCE
    model = load(tiny)
    assert error_of(steps(model, ids, kept, [11]), want[:, :11], kept[:, :11]) < TOLERANCE
    with pytest.raises(NotImplementedError, match="^attention_mask: got padding between kept tokens"):
        steps(model, ids, kept, [11, 2])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_as_near_as_eager(tmp_path_factory, calls, dtype):
    """Against fp32. Without experts, whose choice a rounding can turn."""
    folder = checkpoint(tmp_path_factory, "v3-512+64", first_k_dense_replace=2)
    ids, kept = batch([40, 21])
    sizes = [30] + [1] * 10
    exact = steps(load(folder, "eager"), ids, kept, sizes)
    dtype = getattr(torch, dtype)
    eager = error_of(steps(load(folder, "eager", dtype=dtype), ids, kept, sizes).float(), exact, kept)
    got = steps(load(folder, dtype=dtype), ids, kept, sizes)
    assert got.dtype == dtype and 0 < error_of(got.float(), exact, kept) < 2 * eager
    assert calls == dict(prefill=2, decode=20)


def test_beams_as_eager(tiny):
    """Beams reorder and repeat the cache."""
    ids, kept = batch()
    options = dict(max_new_tokens=12, do_sample=False, num_beams=3, num_return_sequences=2)
    want = load(tiny, "eager").generate(ids, attention_mask=kept, **options)
    assert torch.equal(load(tiny).generate(ids, attention_mask=kept, **options), want)


def test_cache_is_written_in_place(tiny):
    """Not concatenated step by step: new memory only when a quarter of it is used up."""
    layer, stock = engine.LatentLayer(), transformers.cache_utils.DynamicLayer()
    generator = torch.Generator().manual_seed(3)
    addresses = []
    for new in [5, *[1] * 395]:
        token = torch.randn(2, 1, new, 40, generator=generator).split([32, 8], dim=-1)
        assert all(torch.equal(a, b) for a, b in zip(layer.update(*token), stock.update(*token), strict=True))
        addresses.append(layer.keys.data_ptr())
        assert layer.values.data_ptr() - layer.keys.data_ptr() == 32 * 4  # a row holds 32 + 8 fp32 values
    assert layer.get_seq_length() == 400 and sum(a != b for a, b in zip(addresses, addresses[1:])) == 3

    ids, _ = batch([140, 140])
    model, cache = load(tiny), transformers.DynamicCache()
    got = steps(model, ids, None, [1] * 140, cache)  # from one token on, past the first 128
    assert isinstance(cache.layers[1], engine.LatentLayer)
    assert error_of(got, steps(load(tiny, "eager"), ids, None, [140])) < TOLERANCE


def test_replaced_parts_are_gathered():
    """Views that look alike but do not share rows, or do not begin at the first one, are copied, not read in place."""
    generator = torch.Generator().manual_seed(4)

    def tokens(new):
        return torch.randn(2, 1, new, 40, generator=generator).split([32, 8], dim=-1)

    layers = [engine.LatentLayer(), engine.LatentLayer()]
    for layer in layers:
        layer.update(*tokens(9))
    layers[0].values = layers[1].values
    layers[1].keys, layers[1].values = layers[1].keys[:, :, 2:], layers[1].values[:, :, 2:]
    for layer in layers:
        held, new = (layer.keys.clone(), layer.values.clone()), tokens(3)
        for got, old, more in zip(layer.update(*new), held, new, strict=True):
            assert torch.equal(got, torch.cat([old, more], dim=2))


def test_cache_operations_of_transformers(tiny):
    """Cut, copied, repeated, selected, emptied; filled by another attention; written in inference mode and after it."""
    ids, kept = batch([30, 22])
    model, eager = load(tiny), load(tiny, "eager")
    want = steps(eager, ids, kept, [30])
    cache = transformers.DynamicCache(config=model.config)
    with torch.inference_mode():
        steps(model, ids, kept, [20, 4], cache)
    kin = copy.deepcopy(cache)
    steps(model, ids.flip(1), kept, [3], cache)  # what the cut removes
    cache.crop(-5)
    assert cache.get_seq_length() == 22
    assert error_of(steps(model, ids, kept, [1, 7], cache), want[:, 22:], kept[:, 22:]) < TOLERANCE
    kin.batch_repeat_interleave(2)
    kin.batch_select_indices(torch.tensor([3, 0]))
    assert error_of(steps(model, ids[[1, 0]], kept[[1, 0]], [1, 5], kin), want[[1, 0], 24:]) < TOLERANCE

    other = transformers.DynamicCache(config=model.config)
    steps(eager, ids, kept, [24], other)
    assert error_of(steps(model, ids, kept, [6], other), want[:, 24:]) < TOLERANCE
    emptied = transformers.DynamicCache()
    steps(model, ids, kept, [24], emptied)
    emptied.crop(-24)
    assert error_of(steps(model, ids, kept, [24, 6], emptied), want, kept) < TOLERANCE


def test_snippet_of_the_document(monkeypatch, calls):
    """The demonstration model answers two questions of different lengths."""
    monkeypatch.chdir(ROOT)
    document = (ROOT / "docs" / "serving-transformers.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", document, re.M | re.S)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(snippet, "serving-transformers.md", "exec"), {})
    assert printed.getvalue() == "[' 42', ' 4821']\n"
    assert calls["prefill"] == 3 and calls["decode"] >= 9


def test_other_attention_after_enabling(tiny, calls):
    ids, kept = batch()
    want = steps(load(tiny, "eager"), ids, kept, [8, 1, 2])
    model = load(tiny)
    model.set_attn_implementation("eager")
    assert torch.equal(steps(model, ids, kept, [8, 1, 2]), want) and calls == dict(prefill=0, decode=0)
    model.set_attn_implementation("mla")
    engine.enable_mla_decode(model)
    assert error_of(steps(copy.deepcopy(model), ids, kept, [8, 1, 2]), want, kept) < TOLERANCE
    assert calls == dict(prefill=2, decode=4)


def test_wrong_models_are_refused(tiny, monkeypatch):
    with pytest.raises(ValueError, match="^model: got attn_implementation='eager'; want 'mla'"):
        engine.enable_mla_decode(load(tiny, "eager"))
    with pytest.raises(ValueError, match="^model: got Linear without DeepseekV2Attention or DeepseekV3Attention; want"):
        engine.enable_mla_decode(torch.nn.Linear(1, 1))
    model = load(tiny, enable=False)
    with monkeypatch.context() as older:
        older.delattr(type(model.model.layers[0].self_attn), "expand_kv")
        with pytest.raises(NotImplementedError, match="^model: got a DeepseekV3Attention without expand_kv; want tran"):
            engine.enable_mla_decode(model)
    model = load(tiny)
    ids, kept = batch()

    class Adapted(torch.nn.Linear):
        pass

    model.model.layers[1].self_attn.kv_b_proj.__class__ = Adapted
    with pytest.raises(NotImplementedError, match="^kv_b_proj: got Adapted.*want a torch.nn.Linear without bias"):
        steps(model, ids, kept, [10, 1])
    model = load(tiny, absorb_prefill=True)
    model.model.layers[0].self_attn.kv_b_proj.to(torch.float16)
    with pytest.raises(ValueError, match="^kv_b_proj: got a weight of torch.float16 on cpu for queries of torch.fl"):
        steps(model, ids, kept, [10])


def test_wrong_caches_are_refused(tiny):
    ids, _ = batch([6, 6])
    model = load(tiny)
    static = transformers.StaticCache(config=model.config, max_cache_len=16)
    with pytest.raises(NotImplementedError, match="^past_key_values: got a cache of 16 keys .* want a DynamicCache"):
        steps(model, ids, None, [5], static)
    full = transformers.StaticCache(config=model.config, max_cache_len=6)  # whose sizes are those of a DynamicCache
    with pytest.raises(NotImplementedError, match="^(cache|past_key_values): got a StaticCache; want a DynamicCache"):
        steps(model, ids, None, [6], full)
    cache = transformers.DynamicCache(config=model.config)
    cache.offloading = True
    with pytest.raises(NotImplementedError, match="^(cache|past_key_values): got an offloaded DynamicCache; want"):
        steps(model, ids, None, [3], cache)
    cache = transformers.DynamicCache(config=model.config)
    cache.layers[1] = transformers.cache_utils.DynamicSlidingWindowLayer(sliding_window=4)
    with pytest.raises(NotImplementedError, match="^(cache|past_key_values): got a layer of class DynamicSliding"):
        steps(model, ids, None, [3], cache)
    cache = transformers.DynamicCache(config=model.config)
    steps(model, ids, None, [3], cache)
    with pytest.raises(ValueError, match="^key_states: got a batch of 1 for a cache of 2; want one batch"):
        steps(model, ids[:1], None, [1], cache)
    with pytest.raises(ValueError, match="^key_states: got 4 heads; want 1"):
        engine.LatentLayer().update(torch.ones(1, 4, 2, 8), torch.ones(1, 4, 2, 8))
    module = model.model.layers[0].self_attn
    parts = (torch.ones(1, 4, 1, 24), torch.ones(1, 1, 3, 32), torch.ones(1, 1, 3, 8))
    with torch.no_grad(), pytest.raises(ValueError, match="^past_key_values: got cached latents .* side by side; want"):
        engine.attention(module, *parts, None, scaling=0.2)


def test_wrong_masks_and_options_are_refused(tiny):
    ids, kept = batch([6, 4])
    model = load(tiny)
    with torch.no_grad():
        with pytest.raises(NotImplementedError, match=r"^attention_mask: got 4 dimensions; want \[b, s_k\]"):
            model(ids, attention_mask=torch.zeros(2, 1, 6, 6))
        with pytest.raises(ValueError, match=r"^attention_mask: got shape \(2, 3\); want \[2, 6\]"):
            model(ids, attention_mask=kept[:, 3:])
        with pytest.raises(NotImplementedError, match="^attention_mask: got a mask that is not causal"):
            model(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), use_cache=False)
        with pytest.raises(NotImplementedError, match="^dropout: got 0.5; want 0"):
            model.model.layers[0].self_attn.attention_dropout = 0.5
            model.train()(ids, attention_mask=kept)
    model = load(tiny)
    with pytest.raises(ValueError, match="^key_states: got a tensor that requires a gradient; want torch.no_grad"):
        model(ids, attention_mask=kept)
    with pytest.raises(ValueError, match="^query: got a tensor that requires a gradient; want torch.no_grad"):
        model(ids, attention_mask=kept, use_cache=False)

    module = types.SimpleNamespace(is_causal=True)
    arrays = [torch.ones(1, 2, 3, 8)] * 3
    engine.attention(module, *arrays, None, scaling=0.2, sliding_window=None, output_attentions=False)
    for option in ("sliding_window", "softcap", "s_aux", "cu_seq_lens_q", "output_attentions"):
        with pytest.raises(NotImplementedError, match=f"^{option}: got one; want it left out"):
            engine.attention(module, *arrays, None, scaling=0.2, **{option: 4})
    with pytest.raises(NotImplementedError, match="^is_causal: got False; want causal"):
        engine.attention(module, *arrays, None, scaling=0.2, is_causal=False)
    with pytest.raises(ValueError, match="^scaling: got None; want the module's softmax scale"):
        engine.attention(module, *arrays, None)
    with pytest.raises(NotImplementedError, match="^query: got a tensor on meta; want the CPU, or enable_mla_decode"):
        engine.attention(module, *(a.to("meta") for a in arrays), None, scaling=0.2)
