"""Holds a plug-in's sources and classes against an engine's contract. Every problem names version, module and name."""

import ast
import importlib
import inspect
import pathlib
import sys

from engine_fakes import title


class Source:
    """A file of a plug-in: its tree, and what it imports from the engine."""

    def __init__(self, path, engine):
        self.path, self.module = path, f"flashmla.engines.{engine}"
        if path.stem != "__init__":
            self.module += f".{path.stem}"
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.names = []  # (engine's module, name, whether it may be missing)
        self.local = {}  # what a name here stands for: (module, name)
        self.aliases = {}  # what a name here stands for: module
        self._collect(self.tree.body, engine, False)

    def _collect(self, body, engine, optional):
        for node in body:
            if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == engine:
                for alias in node.names:
                    self.names.append((node.module, alias.name, optional))
                    self.local[alias.asname or alias.name] = (node.module, alias.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == engine and alias.asname:
                        self.aliases[alias.asname] = alias.name
            elif isinstance(node, ast.Try):
                catches = any(
                    isinstance(n, ast.Name) and n.id in ("ImportError", "ModuleNotFoundError", "AttributeError")
                    for handler in node.handlers
                    for n in ast.walk(handler.type or ast.Name("ImportError"))
                )
                self._collect(node.body, engine, optional or catches)
                for handler in node.handlers:
                    self._collect(handler.body, engine, optional)
            else:
                for part in ("body", "orelse"):
                    inner = getattr(node, part, None)
                    if isinstance(inner, list):
                        self._collect(inner, engine, optional)
        if body is self.tree.body:
            for node in ast.walk(self.tree):
                owner = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else None
                if owner in self.aliases:
                    self.names.append((self.aliases[owner], node.attr, False))

    def classes(self):
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]


def sources(engine):
    engines = importlib.import_module("flashmla.engines")
    files = sorted(pathlib.Path(engines.__file__).parent.joinpath(engine).glob("*.py"))
    assert files, f"flashmla has no plug-in of {engine}"
    return [Source(path, engine) for path in files]


def import_problems(contract, parts):
    """Names that the plug-in imports and the engine lacks. Function bodies count as well."""
    for source in parts:
        for module, name, optional in source.names:
            described = contract["modules"].get(module)
            if module in contract["absent_modules"] or (described and name in described.get("absent", [])):
                if not optional:
                    yield f"{title(contract)}: {module}.{name}: {source.path.name} imports it, the engine lacks it"
                continue
            known = {} if described is None else {
                n for part in ("classes", "functions", "values", "imported") for n in described.get(part, ())
            }  # fmt: skip
            if name not in known:
                yield (
                    f"{title(contract)}: {module}.{name}: {source.path.name} imports it, the contract lacks it "
                    f"(renamed in the engine, or missing in HOOKS of tools/make_engine_contracts.py)"
                )


def _engine_object(source, name):
    """What the plug-in imports from the engine under a name; None for other names."""
    module, original = source.local.get(name, ("", ""))
    return getattr(sys.modules.get(module), original, None)


def member_problems(contract, source):
    """Members of the engine's classes that the plug-in names, as `AttentionType.DECODER`; before it is imported."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            cls = _engine_object(source, node.value.id)
            if isinstance(cls, type) and node.attr not in attributes_of(cls):
                where = ".".join([*source.local[node.value.id], node.attr])
                yield f"{title(contract)}: {where}: {source.path.name}:{node.lineno} names it, the class lacks it"


def _bases(cls):
    return [base for base in cls.__mro__[1:] if "__contract__" in vars(base)]


def _plain(member):
    """(function, called on the class) of a class member; (None, False) where it is no method."""
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__, True
    if isinstance(member, property):
        return member.fget, False
    return (member, False) if inspect.isfunction(member) else (None, False)


def _parameters(member):
    """Parameters as a caller sees them: without self and cls."""
    function, _ = _plain(member)
    found = list(inspect.signature(function).parameters.values())
    return found if isinstance(member, staticmethod) else found[1:]


def refuses(ours, theirs, by_name=False):
    """Why a call that fits `theirs` may fail on `ours`; None where every one fits. With `by_name`, callers pass by name
    what `ours` does not list (constructors)."""
    kinds = inspect.Parameter
    mine = {p.name: p for p in ours}
    order = [p for p in ours if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    takes_more = any(p.kind is kinds.VAR_POSITIONAL for p in ours)
    takes_names = any(p.kind is kinds.VAR_KEYWORD for p in ours)
    wanted = set()
    for i, p in enumerate(theirs):
        if p.kind is kinds.VAR_POSITIONAL:
            if not takes_more:
                return f"*{p.name} is not taken"
        elif p.kind is kinds.VAR_KEYWORD:
            if not takes_names:
                return f"**{p.name} is not taken"
        else:
            wanted.add(p.name)
            own = mine.get(p.name)
            if own is None and not takes_names:
                return f"{p.name!r} is not taken by its name"
            if p.kind is not kinds.KEYWORD_ONLY:
                at = order[i].name if i < len(order) else None
                if at != p.name and not (at is None and (takes_more or by_name)):
                    return f"position {i + 1} is {at!r}; want {p.name!r}"
            if p.default is not kinds.empty and own is not None and own.default is kinds.empty:
                return f"{p.name!r} has no default"
    for p in ours:
        is_open = p.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        if p.name not in wanted and p.default is kinds.empty and not is_open:
            return f"{p.name!r} is not passed by the engine and has no default"
    return None


def override_problems(contract, cls, missing):
    """Methods that do not fit the engine's. `missing` lists public ones that this version does not have."""
    def problem(base, name, text):
        module, class_name = base.__contract__
        return f"{title(contract)}: {module}.{class_name}.{name}: {cls.__name__}.{name}: {text}"

    bases = _bases(cls)
    for name, member in vars(cls).items():
        function, on_class = _plain(member)
        if function is None or (name.startswith("__") and name != "__init__"):
            continue
        holders = [base for base in bases if name in vars(base)]
        if not holders:
            public = not name.startswith("_") and f"{cls.__name__}.{name}" not in missing
            is_own = isinstance(member, property)
            if public and not is_own:
                yield problem(bases[0], name, "the engine has no such method to override")
            continue
        if f"{cls.__name__}.{name}" in missing:
            yield problem(holders[0], name, "is there, though the test lists it as missing in this version")
        if name == "__init__":
            # What the engine itself relies on is the most basic constructor; those between are helpers for subclasses.
            why = refuses(_parameters(member), _parameters(vars(holders[-1])[name]), by_name=True)
            if why:
                yield problem(holders[-1], name, why)
            continue
        for base in holders:
            theirs, theirs_on_class = _plain(vars(base)[name])
            if theirs is None:
                yield problem(base, name, "is no method in the engine")
                continue
            why = None
            if theirs_on_class and not on_class:
                why = "is called on the class"
            elif name.startswith("_") and contract_calls(contract, base, name):
                calls = contract_calls(contract, base, name)
                why = next((w for call in calls if (w := _call_refused(_parameters(member), call))), None)
            else:
                why = refuses(_parameters(member), _parameters(vars(base)[name]))
            if why:
                yield problem(base, name, why)


def contract_calls(contract, base, name):
    """How the engine's own class calls a private method of itself: (number of positional arguments, names)."""
    module, class_name = base.__contract__
    calls = contract["modules"][module]["classes"][class_name].get("calls", {}).get(name, [])
    return [(int(count), [n for n in names.strip().split(", ") if n]) for count, names in (c.split(";") for c in calls)]


def _call_refused(parameters, call):
    count, names = call
    signature = inspect.Signature(parameters)
    try:
        signature.bind(*[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        return str(error)
    return None


def abstract_problems(contract, cls):
    for name in sorted(getattr(cls, "__abstractmethods__", ())):
        holder = next(base for base in cls.__mro__ if name in vars(base) and "__contract__" in vars(base))
        module, class_name = holder.__contract__
        yield f"{title(contract)}: {module}.{class_name}.{name}: abstract, and {cls.__name__} has none"


def attributes_of(cls):
    found = set(dir(cls))
    for base in cls.__mro__:
        found |= set(vars(base).get("__instance__", ())) | set(vars(base).get("__annotations__", ()))
    return found


def _annotated(function, resolve):
    """(name, class) of parameters and variables whose annotation is a class of the engine or of the plug-in."""
    arguments = function.args
    nodes = [(a.arg, a.annotation) for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
    nodes += [
        (n.target.id, n.annotation)
        for n in ast.walk(function)
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    ]
    for name, annotation in nodes:
        cls = resolve(annotation.id) if isinstance(annotation, ast.Name) else None
        if cls is not None:
            yield name, cls


def _from_engine(found):
    return isinstance(found, type) and any("__contract__" in vars(base) for base in found.__mro__)


def attribute_problems(contract, source):
    """Attributes that the plug-in reads and the classes lack: of `self`, and of what is annotated with a class."""
    module = sys.modules[source.module]

    def resolve(name):
        found = getattr(module, name, None) or _engine_object(source, name)
        return found if _from_engine(found) else None

    def reads(function, name, cls, own):
        known = attributes_of(cls) | own
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Load)
                and isinstance(node.value, ast.Name)
                and node.value.id == name
                and node.attr not in known
            ):
                where = next(b for b in cls.__mro__ if "__contract__" in vars(b)).__contract__
                yield (
                    f"{title(contract)}: {'.'.join(where)}.{node.attr}: {source.path.name}:{node.lineno} reads it, the "
                    f"class lacks it"
                )

    functions = [(None, n) for n in source.tree.body if isinstance(n, ast.FunctionDef)]
    for class_node in source.classes():
        functions += [(class_node, n) for n in class_node.body if isinstance(n, ast.FunctionDef)]
    for class_node, function in functions:
        for name, cls in _annotated(function, resolve):
            yield from reads(function, name, cls, set())
            yield from call_problems(contract, source, function, name, cls)
        if class_node is not None and function.args.args and function.args.args[0].arg in ("self", "cls"):
            cls = resolve(class_node.name)
            stored = {
                n.attr for n in ast.walk(class_node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
            }
            if cls is not None:
                yield from reads(function, function.args.args[0].arg, cls, stored)


def _bind_problem(signature, call):
    positional = [None for a in call.args if not isinstance(a, ast.Starred)]
    named = {k.arg: None for k in call.keywords if k.arg is not None}
    is_open = len(positional) != len(call.args) or len(named) != len(call.keywords)
    try:
        (signature.bind_partial if is_open else signature.bind)(*positional, **named)
    except TypeError as error:
        return str(error)
    return None


def call_problems(contract, source, tree, name, cls):
    """Calls `name.method(..)` that the method of the engine's class `cls` does not take."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if getattr(node.func.value, "id", "") != name:
            continue
        base = next((b for b in cls.__mro__ if node.func.attr in vars(b) and "__contract__" in vars(b)), None)
        if base is None or _plain(vars(base)[node.func.attr])[0] is None:
            continue
        why = _bind_problem(inspect.Signature(_parameters(vars(base)[node.func.attr])), node)
        if why:
            where = f"{'.'.join(base.__contract__)}.{node.func.attr}"
            yield f"{title(contract)}: {where}: {source.path.name}:{node.lineno} calls it: {why}"


def function_problems(contract, source):
    """Calls of the engine's functions, and of classes with fields or a constructor of the engine, that do not fit."""
    for name in source.local:
        if _from_engine(_engine_object(source, name)):
            yield from call_problems(contract, source, source.tree, name, _engine_object(source, name))
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        found = _engine_object(source, node.func.id)
        where = ".".join(source.local.get(node.func.id, ()))
        if found is None:
            found = getattr(sys.modules[source.module], node.func.id, None)
            if not _from_engine(found):
                continue
            where = ".".join(_bases(found)[0].__contract__)
        if not inspect.isfunction(found) and not _from_engine(found):
            continue
        why = _bind_problem(inspect.signature(found), node)
        if why:
            yield f"{title(contract)}: {where}: {source.path.name}:{node.lineno} calls {node.func.id}: {why}"


def super_problems(contract, source, missing):
    """Calls `super().name(..)` that the engine's method does not take."""
    for class_node in source.classes():
        cls = getattr(sys.modules[source.module], class_node.name)
        for node in ast.walk(class_node):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Call)
                and getattr(node.func.value.func, "id", "") == "super"
            ):
                continue
            name = node.func.attr
            holder = next((b for b in cls.__mro__[1:] if name in vars(b)), None)
            where = f"{source.path.name}:{node.lineno}"
            base = next((b for b in cls.__mro__[1:] if "__contract__" in vars(b)), None)
            if base is None or (holder is None and f"{cls.__name__}.{name}" in missing):
                continue
            if holder is None:
                yield f"{title(contract)}: {'.'.join(base.__contract__)}.{name}: {where} calls it, the class lacks it"
                continue
            if "__contract__" not in vars(holder):
                continue
            why = _bind_problem(inspect.Signature(_parameters(vars(holder)[name])), node)
            if why:
                yield f"{title(contract)}: {'.'.join(holder.__contract__)}.{name}: {where} calls it: {why}"


def _names(source, class_node):
    return vars(getattr(sys.modules[source.module], class_node.name))


def problems(contract, missing=(), skipped=()):
    """All of them, for a contract whose fakes are installed.

    `missing` lists our public methods ("Class.method") that this version does not have, `skipped` the plug-in's files
    that this version never loads.
    """
    parts = [source for source in sources(contract["engine"]) if source.path.name not in skipped]
    found = list(import_problems(contract, parts))
    if not found:
        found = [problem for source in parts for problem in member_problems(contract, source)]
    if found:
        return found  # or the import below would fail, and say less
    for source in parts:
        importlib.import_module(source.module)
    for source in parts:
        module = sys.modules[source.module]
        for node in source.classes():
            cls = getattr(module, node.name)
            if _bases(cls):
                found += [*override_problems(contract, cls, missing), *abstract_problems(contract, cls)]
        found += [*attribute_problems(contract, source), *super_problems(contract, source, missing)]
        found += function_problems(contract, source)
    ours = {f"{node.name}.{name}" for source in parts for node in source.classes() for name in _names(source, node)}
    found += [f"{title(contract)}: {name}: listed as missing there, but not ours" for name in set(missing) - ours]
    return found
