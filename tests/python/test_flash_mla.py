"""The drop-in's interface: names, order, defaults, both generations, and what it refuses by name."""

import inspect
import subprocess
import sys
import types

import pytest

from conftest import need

UPSTREAM = {
    "q": inspect.Parameter.empty,
    "k_cache": inspect.Parameter.empty,
    "block_table": inspect.Parameter.empty,
    "cache_seqlens": inspect.Parameter.empty,
    "head_dim_v": inspect.Parameter.empty,
    "tile_scheduler_metadata": inspect.Parameter.empty,
    "num_splits": None,
    "softmax_scale": None,
    "causal": False,
    "is_fp8_kvcache": False,
    "indices": None,
    "attn_sink": None,
    "extra_k_cache": None,
    "extra_indices_in_kvcache": None,
    "topk_length": None,
    "extra_topk_length": None,
}
FORKS = {"use_legacy": None, "kv_format": None, "descale_q": None, "descale_k": None, "enable_batch_invariant": False}


@pytest.fixture
def module():
    need("torch")
    import flashmla

    return flashmla.flash_mla


@pytest.fixture
def inputs(torch):
    torch.manual_seed(1)
    table = torch.arange(4, dtype=torch.int32).view(2, 2)
    return torch.randn(2, 1, 16, 576), torch.randn(4, 64, 1, 576), table, torch.tensor([100, 0], dtype=torch.int32)


def test_positions_names_and_defaults(module):
    parameters = inspect.signature(module.flash_mla_with_kvcache).parameters
    positional = {name: p.default for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    keyword_only = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert list(positional.items()) == list(UPSTREAM.items())
    assert keyword_only == FORKS


def test_metadata_without_arguments(module):
    metadata, splits = module.get_mla_metadata()
    assert isinstance(metadata, module.FlashMLASchedMeta) and splits is None
    assert (metadata.have_initialized, metadata.config) == (False, None)
    assert metadata.tile_scheduler_metadata is None and metadata.num_splits is None
    metadata.tile_scheduler_metadata = metadata.num_splits = "assignable"


@pytest.mark.parametrize(
    "arguments, keywords",
    [
        ((16, 1), {}),
        ((16, 1, 16, False, None), {}),
        ((), {"num_q_tokens_per_head_k": 16, "num_heads_k": 1, "is_fp8_kvcache": False}),
        ((), {"num_heads_per_head_k": 16, "num_heads_k": 1}),
        ((), {}),
    ],
)
def test_metadata_with_arguments(torch, module, arguments, keywords):
    parts, splits = module.get_mla_metadata(torch.tensor([3, 0, 70], dtype=torch.int32), *arguments, **keywords)
    assert parts.dtype == splits.dtype == torch.int32
    assert parts.ndim == 2 and parts.shape[0] >= 1 and parts.shape[1] == 8 and splits.shape == (4,)


def test_wrong_metadata_arguments(torch, module):
    lens = torch.tensor([3], dtype=torch.int32)
    for call, error, text in (
        (lambda: module.get_mla_metadata(lens.long(), 16, 1), ValueError, "cache_seqlens: got torch.int64"),
        (lambda: module.get_mla_metadata(None, 16, 1), ValueError, "cache_seqlens: got NoneType"),
        (lambda: module.get_mla_metadata(lens, 16, 1, is_fp8_kvcache=True), NotImplementedError, "is_fp8_kvcache: .*FP8"),
        (lambda: module.get_mla_metadata(lens, 16, 1, topk=64), NotImplementedError, "topk: sparse attention"),
    ):
        with pytest.raises(error, match=text):
            call()


def test_every_schedule_gives_the_same_bits(torch, module, inputs):
    """Stale, foreign and poisoned schedules included: none is read (vLLM #33638, #27368, TensorRT-LLM #12161)."""
    lens = inputs[3]
    metadata, _ = module.get_mla_metadata()
    want = module.flash_mla_with_kvcache(*inputs, 512, metadata)
    parts, splits = module.get_mla_metadata(lens, 16, 1)
    foreign = type("FlashMLASchedMeta", (), {})()
    poison = torch.full((7, 8), -(2**31), dtype=torch.int32), torch.full((1,), 2**31 - 1, dtype=torch.int32)
    for schedule in ((metadata, None), (parts, splits), (metadata, splits), (foreign, None), poison):
        for got, expected in zip(module.flash_mla_with_kvcache(*inputs, 512, *schedule), want, strict=True):
            assert torch.equal(got, expected)


def test_wrong_schedules_are_refused(module, inputs):
    with pytest.raises(ValueError, match="^tile_scheduler_metadata: got NoneType"):
        module.flash_mla_with_kvcache(*inputs, 512, None)
    with pytest.raises(ValueError, match="^num_splits: got int"):
        module.flash_mla_with_kvcache(*inputs, 512, *module.get_mla_metadata()[:1], 3)


def test_results(torch, module, inputs):
    q, cache, _, _ = inputs
    out, lse = module.flash_mla_with_kvcache(*inputs, 512, *module.get_mla_metadata())
    assert out.shape == (2, 1, 16, 512) and lse.shape == (2, 16, 1) and lse.dtype == torch.float32
    keys = cache.flatten(0, 2)[:100]
    scores = q[0, 0] @ keys.T * 576**-0.5  # the default scale
    torch.testing.assert_close(lse[0, :, 0], scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[0, 0], scores.softmax(-1) @ keys[:, :512], rtol=1e-4, atol=1e-5)
    assert (out[1] == 0).all() and (lse[1] == torch.inf).all()
    scaled, _ = module.flash_mla_with_kvcache(*inputs, 512, *module.get_mla_metadata(), 0.5)
    torch.testing.assert_close(scaled[0, 0], (scores * 12).softmax(-1) @ keys[:, :512], rtol=1e-3, atol=1e-4)


def test_accepted_fork_names(torch, module, inputs):
    schedule = module.get_mla_metadata()
    want = module.flash_mla_with_kvcache(*inputs, 512, *schedule)
    for keywords in ({"use_legacy": True}, {"use_legacy": False}, {"kv_format": "fp32"}, {"descale_q": None}):
        got = module.flash_mla_with_kvcache(*inputs, 512, *schedule, **keywords)
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    both = module.flash_mla_with_kvcache(*inputs, 512, *schedule, enable_batch_invariant=True)
    alone = module.flash_mla_with_kvcache(*(x[:1] if x is not inputs[1] else x for x in inputs), 512, *schedule,
                                          enable_batch_invariant=True)  # fmt: skip
    assert torch.equal(both[0][:1], alone[0]) and torch.equal(both[1][:1], alone[1])


@pytest.mark.parametrize(
    "name",
    ["indices", "attn_sink", "extra_k_cache", "extra_indices_in_kvcache", "topk_length", "extra_topk_length",
     "descale_q", "descale_k", "is_fp8_kvcache"],
)  # fmt: skip
def test_missing_features_are_named(torch, module, inputs, name):
    value = True if name == "is_fp8_kvcache" else torch.zeros(2)
    with pytest.raises(NotImplementedError, match=f"^{name}: (sparse attention|FP8) is not in this version"):
        module.flash_mla_with_kvcache(*inputs, 512, *module.get_mla_metadata(), **{name: value})


def test_other_refusals(torch, module, inputs):
    q, cache, table, lens = inputs
    schedule = module.get_mla_metadata()
    with pytest.raises(NotImplementedError, match="^kv_format: got 'fp8_ds_mla'"):
        module.flash_mla_with_kvcache(*inputs, 512, *schedule, kv_format="fp8_ds_mla")
    with pytest.raises(ValueError, match="^block_table: got NoneType"):
        module.flash_mla_with_kvcache(q, cache, None, lens, 512, *schedule)
    with pytest.raises(ValueError, match="^cache_seqlens: got NoneType"):
        module.flash_mla_with_kvcache(q, cache, table, None, 512, *schedule)
    with pytest.raises((ValueError, NotImplementedError), match="^q: got dtype|fp8"):
        fp8 = torch.float8_e4m3fn
        module.flash_mla_with_kvcache(q.to(fp8), cache.to(fp8), table, lens, 512, *schedule)


def test_errors_name_the_arguments_of_the_drop_in(torch, module, inputs):
    q, cache, table, lens = inputs
    schedule = module.get_mla_metadata()
    for arguments, text in (
        ((torch.tensor(1.0), cache, table, lens, 512), "^q: got 0 dimensions"),
        ((q[..., :0], cache, table, lens, 512), r"^q: got shape \[2, 1, 16, 0\]"),
        ((q, cache.half(), table, lens, 512), "^k_cache: got dtype fp16; want dtype fp32"),
        ((q, cache, table.long(), lens, 512), "^block_table: got dtype int64; want dtype int32"),
        ((q, cache, table + 9, lens, 512), r"^block_table\[0\]\[0\]: got 9; want 0 .. 3 \(k_cache has 4 pages\)"),
        ((q, cache, table, lens + 100, 512), r"^cache_seqlens\[0\]: got 200; want .*\(block_table width"),
        ((q, cache, table, lens, 500), "^head_dim_v: got 500"),
        ((q, cache.to("meta"), table, lens, 512), "^k_cache: got a tensor on meta in a call with tensors on cpu"),
    ):
        with pytest.raises(ValueError, match=text):
            module.flash_mla_with_kvcache(*arguments, *schedule)
    k, starts = torch.zeros(3, 1, 8), torch.tensor([0, 3], dtype=torch.int32)
    for arguments, text in (
        ((torch.tensor(1.0), k, k, starts, starts, 3, 3), "^q: got 0 dimensions"),
        ((k[..., :0], k[..., :0], k, starts, starts, 3, 3), "^d_qk: got 0"),
        ((k, k, k, starts + 5, starts, 3, 3), r"^cu_seqlens_qo\[0\]: got 5"),
        ((k, k, k, starts, None, 3, 3), "^cu_seqlens_kv: got NoneType; want a torch.Tensor"),
    ):
        with pytest.raises(ValueError, match=text):
            module.flash_attn_varlen_func(*arguments)


def test_missing_function_is_named(module):
    with pytest.raises(NotImplementedError, match="^flash_mla_sparse_fwd: .*prefill is not in this version of flashmla"):
        module.flash_mla_sparse_fwd(1, 2, three=3)


# What a user's own benchmark does: the published import lines, call forms and defaults for new tensors.
SCRIPT = """
import argparse
import torch
{imports}

parser = argparse.ArgumentParser()
parser.add_argument("--generation", type=int)
arguments = parser.parse_args()

if __name__ == "__main__":
    {defaults}
    torch.manual_seed(0)
    b, s_q, h_q, h_kv, d, dv = 3, 2, 16, 1, 576, 512
    cache_seqlens = torch.tensor([130, 64, 7], dtype=torch.int32)
    block_size, causal = 64, True
    q = torch.randn(b, s_q, h_q, d).to(torch.bfloat16)
    block_table = torch.arange(b * 4, dtype=torch.int32).view(b, 4)
    blocked_k = torch.randn(block_table.numel(), block_size, h_kv, d).to(torch.bfloat16)
    if arguments.generation == 1:
        tile_scheduler_metadata, num_splits = get_mla_metadata(cache_seqlens, s_q * h_q // h_kv, h_kv)
    else:
        tile_scheduler_metadata, num_splits = get_mla_metadata()

    def flash_mla():
        return flash_mla_with_kvcache(
            q, blocked_k, block_table, cache_seqlens, dv,
            tile_scheduler_metadata, num_splits, causal=causal,
        )

    for _ in range(2):
        out, lse = flash_mla()
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    for i in range(b):
        n = int(cache_seqlens[i])
        k = blocked_k.view(b, -1, d)[i, :n].float()
        scores = torch.einsum("shd,kd->hsk", q[i].float(), k) * d**-0.5
        hidden = torch.ones(s_q, n, dtype=torch.bool).tril(n - s_q).logical_not()
        scores.masked_fill_(hidden, float("-inf"))
        want = torch.einsum("hsk,kd->shd", scores.softmax(-1), k[:, :dv])
        torch.testing.assert_close(out[i].float(), want, atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(lse[i], scores.logsumexp(-1), atol=1e-2, rtol=1e-2)
    print("generation", arguments.generation, __file__)
"""
IMPORTS = {
    "package": "from flash_mla import flash_mla_with_kvcache, get_mla_metadata",
    "interface": "from flash_mla.flash_mla_interface import flash_mla_with_kvcache, get_mla_metadata",
    "attribute": "import flash_mla\nget_mla_metadata = flash_mla.get_mla_metadata\n"
    "flash_mla_with_kvcache = flash_mla.flash_mla_interface.flash_mla_with_kvcache",
}
DEFAULTS = {
    "plain": "pass",
    "bf16_on_a_device": "torch.set_default_dtype(torch.bfloat16); torch.set_default_device('cpu')",
}


def run(*command, **options):
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=300, **options)


@pytest.mark.parametrize("imports, defaults, generation",
                         [("package", "plain", 1), ("interface", "bf16_on_a_device", 1),
                          ("attribute", "bf16_on_a_device", 2)])  # fmt: skip
def test_a_benchmark_script_runs_unchanged(tmp_path, imports, defaults, generation):
    need("torch")
    script = tmp_path / "bench.py"
    script.write_text(SCRIPT.format(imports=IMPORTS[imports], defaults=DEFAULTS[defaults]))
    done = run("-m", "flashmla.compat", script, "--generation", generation)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"generation {generation} {script}"


def test_flash_mla_is_not_there_without_compat():
    done = run("-c", "import flashmla, flash_mla")
    assert done.returncode == 1 and "No module named 'flash_mla'" in done.stderr


def test_compat_passes_on_exit_codes_and_paths(tmp_path):
    need("torch")
    (tmp_path / "beside.py").write_text("value = 7\n")
    script = tmp_path / "script.py"
    script.write_text("import sys, beside\nassert sys.argv[1:] == ['-x', 'y']\nsys.exit(beside.value)\n")
    assert run("-m", "flashmla.compat", script, "-x", "y").returncode == 7


def test_compat_usage():
    for arguments, code, text in (([], 2, "usage: "), (["no/such.py"], 2, "SCRIPT: got 'no/such.py'"), (["-h"], 0, "SCRIPT")):
        done = run("-m", "flashmla.compat", *arguments)
        assert done.returncode == code and text in done.stdout + done.stderr


INSTALL = """
import importlib.util, sys
import flashmla
assert "torch" not in sys.modules and "flash_mla" not in sys.modules
flashmla.flash_mla.install()
flashmla.flash_mla.install()
import flash_mla
import flash_mla.flash_mla_interface as interface
assert flash_mla.flash_mla_with_kvcache is interface.flash_mla_with_kvcache is flashmla.flash_mla.flash_mla_with_kvcache
assert importlib.util.find_spec("flash_mla") is not None
assert importlib.util.find_spec("flash_mla.flash_mla_interface") is not None
assert flash_mla.__version__.endswith(flashmla.__version__)
try:
    import flash_mla.cuda
except ImportError:
    print("done")
"""


def test_install():
    need("torch")
    done = run("-c", INSTALL)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("name", ["flash_mla", "flash_mla.flash_mla_interface"])
def test_install_refuses_when_another_is_loaded(module, monkeypatch, name):
    other = types.ModuleType(name)
    other.__file__ = "/elsewhere/x.py"
    monkeypatch.setitem(sys.modules, name, other)
    with pytest.raises(RuntimeError, match=f"^install: another '{name}' is loaded from /elsewhere/x.py"):
        module.install()
    assert sys.modules[name] is other


def test_no_top_level_flash_mla_is_installed():
    from importlib import metadata

    files = [str(file) for file in metadata.files("flashmla") or []]
    assert files and not any(file.startswith("flash_mla") for file in files)
