"""Writes tests/fixtures/engines/*.json: what serving engines offer to the plug-ins, read from their wheels.

    pip download --no-deps vllm==0.33.0 -d wheels
    python tools/make_engine_contracts.py wheels/*.whl [--out tests/fixtures/engines]

A wheel is read with `ast` and never imported, so that neither torch nor a GPU nor the engine's requirements are needed.
HOOKS lists the names that the plug-ins touch. A name that a version lacks is listed under "absent"; a module that it
lacks under "absent_modules". tests/python/test_engine_contracts.py holds the plug-ins against the files.

A signature is written as Python writes it, without types, every default as `=`, after the words that its decorators
mean: "static abstract (num_blocks, cache_dtype_str=)". "calls" says how a class calls its own private methods:
"number of positional arguments; names".
"""

import argparse
import ast
import email
import json
import pathlib
import re
import sys
import zipfile

# Module -> names; with a tuple of names, only those members of a class that is large and used for a few of them.
_RUNNER = (
    "attn_backend", "dcp_size", "device", "dtype", "is_draft_worker", "kv_cache_dtype", "model_config", "page_size",
    "req_to_token_pool", "server_args", "sliding_window_size", "token_to_kv_pool", "token_to_kv_pool_allocator",
    "use_mla_backend",
)  # fmt: skip
_PLATFORM = ("check_and_update_config", "get_attn_backend_cls", "get_mla_prefill_backend_cls")
HOOKS = {
    "sglang": {
        "sglang.srt.plugins": {"GENERAL_PLUGINS_GROUP": None, "load_plugins": None},
        "sglang.srt.layers.attention.attention_registry": {
            "ATTENTION_BACKENDS": None, "register_attention_backend": None, "create_triton_backend": None,
        },
        "sglang.srt.layers.attention.base_attn_backend": {"AttentionBackend": None},
        "sglang.srt.layers.attention.triton_backend": {
            "TritonAttnBackend": ("forward_extend", "init_forward_metadata", "init_forward_metadata_out_graph"),
        },
        "sglang.srt.layers.radix_attention": {"AttentionType": None, "RadixAttention": None},
        "sglang.srt.mem_cache.memory_pool": {
            "KVCache": (
                "dtype", "get_key_buffer", "page_size", "set_kv_buffer", "size", "start_layer", "store_dtype",
            ),
            "MLATokenToKVPool": None,
            "ReqToTokenPool": ("max_context_len", "req_to_token", "size"),
        },
        "sglang.srt.model_executor.forward_batch_info": {
            "ForwardBatch": (
                "batch_size", "forward_mode", "out_cache_loc", "req_pool_indices", "seq_lens", "seq_lens_cpu",
                "spec_info",
            ),
            "ForwardMode": None,
        },
        "sglang.srt.model_executor.model_runner": {
            "ModelRunner": _RUNNER,
            "CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS": None,
            "add_chunked_prefix_cache_attention_backend": None,
        },
        "sglang.srt.model_executor.model_runner_kv_cache_mixin": {"ModelRunnerKVCacheMixin": _RUNNER},
        "sglang.srt.configs.model_config": {
            "ModelConfig": (
                "attention_arch", "context_len", "kv_lora_rank", "num_attention_heads", "qk_rope_head_dim", "scaling",
            ),
        },
        "sglang.srt.models.deepseek_common.attention_backend_handler": {
            "AttentionBackendRegistry": None, "handle_attention_triton": None,
        },
        "sglang.srt.server_args": {
            "ATTENTION_BACKEND_CHOICES": None,
            "add_attention_backend_choices": None,
            "ServerArgs": (
                "attention_backend", "decode_attention_backend", "page_size", "prefill_attention_backend",
                "speculative_algorithm", "speculative_draft_attention_backend", "speculative_eagle_topk",
                "speculative_num_draft_tokens",
            ),
        },
    },
    "vllm": {
        "vllm.envs": {"VLLM_BATCH_INVARIANT": None},
        "vllm.logger": {"init_logger": None},
        "vllm.config": {"VllmConfig": (), "get_current_vllm_config": None},
        "vllm.model_executor.layers.attention.mla_attention": {
            "MLAAttention": ("kv_lora_rank", "num_heads", "qk_rope_head_dim", "impl"),
            "MLACommonBackend": None,
            "MLACommonBaseImpl": None,
            "MLACommonDecodeMetadata": None,
            "MLACommonImpl": None,
            "MLACommonMetadata": None,
            "MLACommonMetadataBuilder": None,
            "MLACommonPrefillMetadata": None,
            "QueryLenSupport": None,
        },
        "vllm.platforms": {"cpu_platform_plugin": None, "current_platform": None},
        "vllm.platforms.cpu": {"CpuPlatform": _PLATFORM},
        "vllm.platforms.interface": {
            "CpuArchEnum": None,
            "DeviceCapability": None,
            "Platform": (*_PLATFORM, "get_device_capability", "is_cpu", "is_cuda"),
            "PlatformEnum": None,
        },
        "vllm.utils.import_utils": {"resolve_obj_by_qualname": None},
        "vllm.v1.attention.backend": {
            "AttentionBackend": None,
            "AttentionCGSupport": None,
            "AttentionImpl": None,
            "AttentionImplBase": None,
            "AttentionLayer": None,
            "AttentionMetadata": None,
            "AttentionMetadataBuilder": None,
            "AttentionType": None,
            "CommonAttentionMetadata": None,
            "MLAAttentionImpl": None,
            "MultipleOf": None,
        },
        "vllm.v1.attention.backends.mla.prefill.base": {"MLAPrefillBackend": None},
        "vllm.v1.attention.backends.mla.prefill.registry": {
            "MLAPrefillBackendEnum": None, "register_mla_prefill_backend": None,
        },
        "vllm.v1.attention.backends.registry": {"AttentionBackendEnum": None, "register_backend": None},
        "vllm.v1.attention.selector": {"AttentionSelectorConfig": None},
    },
}  # fmt: skip


def name_of(node):
    """The last part of a base's or decorator's name: 'Generic' of `typing.Generic[T]`; '' for anything else."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def signature(function):
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    first_default = len(positional) - len(a.defaults)
    words = [p.arg + ("=" if i >= first_default else "") for i, p in enumerate(positional)]
    if a.posonlyargs:
        words.insert(len(a.posonlyargs), "/")
    if a.vararg:
        words.append("*" + a.vararg.arg)
    elif a.kwonlyargs:
        words.append("*")
    words += [p.arg + ("=" if d is not None else "") for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    if a.kwarg:
        words.append("**" + a.kwarg.arg)
    kinds = {"staticmethod": "static", "classmethod": "class", "abstractmethod": "abstract", "property": "property",
             "cached_property": "property"}  # fmt: skip
    found = [kinds[name] for name in map(name_of, function.decorator_list) if name in kinds]
    return " ".join([*sorted(found, reverse=True), f"({', '.join(words)})"])


def statements(body):
    """Statements, those inside `if`, `try` and `with` too; without what only a type checker sees."""
    for node in body:
        if isinstance(node, ast.If) and name_of(node.test) == "TYPE_CHECKING":
            yield from statements(node.orelse)
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)
        else:
            yield node


def literal(node):
    """A short constant, or a list of names, as it is; '...' for every other expression."""
    try:
        value = ast.literal_eval(node)
    except (TypeError, ValueError):
        return "..."
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return value
    return value if isinstance(value, (bool, int, float, str, type(None))) and len(str(value)) <= 60 else "..."


def targets(node):
    """(name, value) of the names that a statement assigns."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name):
                    yield name.id, node.value


def instance_attributes(class_node):
    """Names that methods of the class assign on `self`."""
    methods = [part for part in statements(class_node.body) if isinstance(part, ast.FunctionDef)]
    stored = [n for m in methods for n in ast.walk(m) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    return {node.attr for node in stored if name_of(node.value) == "self"}


def private_calls(class_node):
    """Method -> "number of positional arguments; names", for what the class calls on `self`; private methods only."""
    found = {}
    for node in ast.walk(class_node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and name_of(node.func.value) == "self":
            name, named = node.func.attr, [k.arg for k in node.keywords]
            spread = None in named or any(isinstance(a, ast.Starred) for a in node.args)
            if name.startswith("_") and not spread:
                found.setdefault(name, set()).add((len(node.args), tuple(sorted(named))))
    return {name: [f"{n}; {', '.join(named)}" for n, named in sorted(calls)] for name, calls in sorted(found.items())}


def describe_class(node, wanted):
    def take(names):
        return [name for name in names if wanted is None or name in wanted]

    bases = [name for name in map(name_of, node.bases) if name]
    is_enum = any(name in ("Enum", "IntEnum", "StrEnum") for name in bases)
    has_fields = any(name_of(d) == "dataclass" for d in node.decorator_list) or "NamedTuple" in bases
    methods, attributes, fields, members = {}, {}, [], {}
    for part in statements(node.body):
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if not any(name_of(d) in ("overload", "setter") for d in part.decorator_list):
                methods[part.name] = signature(part)
            continue
        for name, value in targets(part):
            annotation = part.annotation if isinstance(part, ast.AnnAssign) else None
            if is_enum:
                members[name] = literal(value)
            elif has_fields and annotation is not None and name_of(annotation) != "ClassVar":
                fields.append(name + ("" if value is None else "="))
            else:
                attributes[name] = None if value is None else literal(value)
    described = {"bases": bases}
    if has_fields:
        described["fields"] = [f for f in fields if wanted is None or f.rstrip("=") in wanted]
    if is_enum:
        described["members"] = members
    if wanted is not None:
        described["only"] = sorted(wanted)
    described["attributes"] = {name: attributes[name] for name in sorted(take(attributes))}
    described["instance"] = sorted(take(instance_attributes(node)))
    described["methods"] = {name: methods[name] for name in sorted(take(methods))}
    described["calls"] = {name: calls for name, calls in private_calls(node).items() if name in take(methods)}
    return {key: value for key, value in described.items() if value or key in ("bases", "fields", "members")}


def describe_module(source, names):
    tree = ast.parse(source)
    classes, functions, values, bound = {}, {}, {}, set()
    for node in statements(tree.body):
        if isinstance(node, ast.ClassDef):
            classes[node.name] = node
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        for name, value in targets(node):
            values[name] = literal(value) if value is not None else "..."
    described = {"classes": {}, "functions": {}, "values": {}, "imported": [], "absent": []}
    # Names that a module makes on request are constants in it.
    if "__getattr__" in functions:
        bound |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    for name in sorted(names):
        if name in classes:
            described["classes"][name] = describe_class(classes[name], names[name])
        elif name in functions:
            described["functions"][name] = signature(functions[name])
        elif name in values:
            described["values"][name] = values[name]
        elif name in bound:
            described["imported"].append(name)
        else:
            described["absent"].append(name)
    return {key: value for key, value in described.items() if value}


def contract(wheel):
    """The contract of a wheel as a dictionary.

    Raises:
        ValueError: the file is not a wheel of a known engine.
    """
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        metadata = [name for name in files if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
        if len(metadata) != 1:
            raise ValueError(f"wheel: got {wheel} with {len(metadata)} METADATA files; want a wheel")
        headers = email.message_from_string(archive.read(metadata[0]).decode())
        engine = headers["Name"].split("-")[0]
        if engine not in HOOKS:
            raise ValueError(f"wheel: got {headers['Name']}; want a wheel of {' or '.join(HOOKS)}")
        modules, absent = {}, []
        for module, names in sorted(HOOKS[engine].items()):
            path = module.replace(".", "/")
            found = next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in files), None)
            if found is None:
                absent.append(module)
            else:
                modules[module] = describe_module(archive.read(found).decode(), names)
    return {
        "engine": engine,
        "distribution": headers["Name"],
        "version": headers["Version"],
        "absent_modules": absent,
        "modules": modules,
    }


def text_of(described):
    """The file's text: one line a class member, so that a new version shows as a readable difference."""
    return json.dumps(described, indent=1) + "\n"


def file_name(described):
    return f"{described['distribution']}-{described['version']}.json"


def main():
    parser = argparse.ArgumentParser(description="Writes the contracts of engine wheels.")
    parser.add_argument("wheels", nargs="+", type=pathlib.Path, metavar="WHEEL")
    default = pathlib.Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "engines"
    parser.add_argument("--out", type=pathlib.Path, default=default, help="folder (default: %(default)s)")
    arguments = parser.parse_args()
    for wheel in arguments.wheels:
        try:
            described = contract(wheel)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            sys.exit(f"make_engine_contracts: {error}")
        path = arguments.out / file_name(described)
        path.write_text(text_of(described), encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
