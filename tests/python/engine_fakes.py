"""Serving engines as their contract files describe them: modules to import a plug-in against, without the engine.

A fake has the real names, bases, signatures, fields and enum members, and no behaviour but this: a constructor stores
its arguments, a dataclass is one, and what a test passes as `behaviour`. Everything else raises NotImplementedError.
"""

import abc
import collections
import contextlib
import dataclasses
import enum
import importlib
import inspect
import json
import pathlib
import sys
import types

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "engines"


def contract_files(engine):
    found = sorted(path for path in FIXTURES.glob("*.json") if json.loads(path.read_text())["engine"] == engine)
    assert found, f"no contract of {engine} below {FIXTURES}"
    return found


def load(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def title(contract):
    return f"{contract['distribution']} {contract['version']}"


def parsed(text):
    """(kinds, signature) of a contract's "static abstract (a, b=)"."""
    kinds, _, parameters = text.partition("(")
    scope = {}
    exec(f"def f({parameters.rstrip(')').replace('=', '=None')}): ...", scope)
    return set(kinds.split()), inspect.signature(scope["f"])


def _function(qualified, text, behaviour):
    kinds, signature = parsed(text)
    name = qualified.rsplit(".", 1)[1]
    if qualified in behaviour:
        run = behaviour[qualified]
    elif name == "__init__":

        def run(self, *arguments, **named):
            bound = signature.bind(self, *arguments, **named)
            bound.apply_defaults()
            for key, value in list(bound.arguments.items())[1:]:
                setattr(self, key, value)
    else:

        def run(*arguments, **named):
            signature.bind(*arguments, **named)
            raise NotImplementedError(f"{qualified} has no behaviour in the fake")

    def function(*arguments, **named):
        return run(*arguments, **named)

    function.__name__, function.__qualname__, function.__signature__ = name, qualified, signature
    made = abc.abstractmethod(function) if "abstract" in kinds else function
    for kind, wrap in (("static", staticmethod), ("class", classmethod), ("property", property)):
        if kind in kinds:
            made = wrap(made)
    return made


def _value(value):
    return None if value == "..." else value


class _Maker:
    def __init__(self, contract, behaviour):
        self.contract, self.behaviour = contract, behaviour
        self.where = {
            name: module for module, part in contract["modules"].items() for name in part.get("classes", {})
        }
        self.made = {}

    def class_(self, name):
        if name not in self.made:
            self.made[name] = self._make(self.where[name], name)
        return self.made[name]

    def _make(self, module, name):
        described = self.contract["modules"][module]["classes"][name]
        methods = {
            method: _function(f"{module}.{name}.{method}", text, self.behaviour)
            for method, text in described.get("methods", {}).items()
        }
        if "members" in described:
            return self._enum(module, name, described, methods)
        fields = described.get("fields", [])
        if "NamedTuple" in described["bases"]:
            defaults = [None] * sum(field.endswith("=") for field in fields)
            return collections.namedtuple(name, [f.rstrip("=") for f in fields], defaults=defaults, module=module)
        bases = tuple(self.class_(base) for base in described["bases"] if base in self.where)
        body = {key: _value(value) for key, value in described.get("attributes", {}).items()} | methods
        body["__module__"] = module
        body["__contract__"] = (module, name)
        body["__instance__"] = frozenset(described.get("instance", []))
        body["__class_getitem__"] = classmethod(lambda cls, _: cls)
        if "fields" in described:
            body["__annotations__"] = {field.rstrip("="): object for field in fields}
            body |= {field.rstrip("="): None for field in fields if field.endswith("=")}
        made = abc.ABCMeta(name, bases, body)
        return dataclasses.dataclass(made) if "fields" in described else made

    def _enum(self, module, name, described, methods):
        integers = "IntEnum" in described["bases"]
        members = {
            member: (i + 1 if integers else f"{module}.{name}.{member}") if value == "..." else value
            for i, (member, value) in enumerate(described["members"].items())
        }
        kind = enum.IntEnum if integers else enum.Enum
        made = kind(name, members, module=module, **({"type": str} if "str" in described["bases"] else {}))
        for method, function in methods.items():
            setattr(made, method, function)
        return made

    def modules(self):
        found = {}
        for name, described in self.contract["modules"].items():
            for depth in range(name.count(".") + 1):
                package = name.rsplit(".", depth)[0] if depth else name
                if package not in found:
                    found[package] = types.ModuleType(package)
                    found[package].__path__ = []
            module = found[name]
            for class_name in described.get("classes", {}):
                setattr(module, class_name, self.class_(class_name))
            for function, text in described.get("functions", {}).items():
                setattr(module, function, _function(f"{name}.{function}", text, self.behaviour))
            for value in [*described.get("values", {}), *described.get("imported", [])]:
                qualified = f"{name}.{value}"
                default = described.get("values", {}).get(value)
                setattr(module, value, self.behaviour.get(qualified, _value(default)))
            # Names that a module of the contract takes from another one of it.
            for other in described.get("imported", []):
                if other in self.where and f"{name}.{other}" not in self.behaviour:
                    setattr(module, other, self.class_(other))
        for name, module in found.items():
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(found[parent], child, module)
        return found


def _belongs(name, roots):
    return any(name == root or name.startswith(root + ".") for root in roots)


@contextlib.contextmanager
def installed(contract, behaviour=None):
    """The fakes in `sys.modules`, and the plug-in not yet imported; afterwards everything is as it was."""
    engine = contract["engine"]
    plugin = f"flashmla.engines.{engine}"
    engines = importlib.import_module("flashmla.engines")
    kept = {name: module for name, module in sys.modules.items() if _belongs(name, (engine, plugin))}
    attribute = engines.__dict__.pop(engine, None)
    for name in kept:
        del sys.modules[name]
    sys.modules.update(_Maker(contract, behaviour or {}).modules())
    try:
        yield plugin
    finally:
        for name in [name for name in sys.modules if _belongs(name, (engine, plugin))]:
            del sys.modules[name]
        sys.modules.update(kept)
        engines.__dict__.pop(engine, None)
        if attribute is not None:
            setattr(engines, engine, attribute)
