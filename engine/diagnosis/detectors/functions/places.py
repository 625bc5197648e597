"""Where a custom function's forward leaves something for its backward, beside its context: on a class, on a module, in
a dictionary or a global name, by itself or by functions of the program's that it calls.
Read off their source and the values of their global names; no code of the program's runs."""

from __future__ import annotations

import ast
import os
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.diagnosis.source import function_named, inside, parameters_of
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_library
from adbg.engine.types import SourceLine

_ABOUT = frozenset(("shape", "dtype", "device", "ndim", "size", "numel", "place"))
_DEEPEST = 3  # calls within calls
_MOST = 60  # names that are followed to what they were given
Key = tuple[Any, str]


@dataclass(slots=True)
class Place:
    """Where forward keeps something that backward reads, beside its context. ``name``: as backward has it. ``line``: in
    forward, which may call what keeps it."""

    name: str
    line: SourceLine
    attribute: str  # or key
    holder: Callable[[], Any]
    argument: int = -1  # the holder is that argument of forward's


@dataclass(slots=True)
class _Text:
    """A function, and those that it calls. ``names``: what parameters and attributes of theirs hold, as far as it is
    known: an object, or a number for that argument of forward's. ``line``: of the call in the outermost one."""

    function: types.FunctionType
    tree: ast.FunctionDef | ast.AsyncFunctionDef
    names: Mapping[str, Any]
    line: int = 0
    shown: bool = False  # nothing is made of its result
    caller: _Text | None = None
    given: dict[str, ast.expr] = field(default_factory=dict)  # by its parameters
    calls: dict[int, _Text] = field(default_factory=dict)  # by the id of the node

    def every(self) -> Iterator[_Text]:
        yield self
        for each in self.calls.values():
            yield from each.every()


def places_of(function: type, values: Sequence[Any] = ()) -> Iterator[Place]:
    """Not what backward sets as well (it restores it, or makes its own), what is made of itself (a running statistic),
    or what backward only prints. ``values``: arguments that forward was given, whose methods may be called."""
    forward, backward, setup = (_plain(function, name) for name in ("forward", "backward", "setup_context"))
    split = setup is not None and not is_library(setup.__code__.co_filename)  # the framework has one that does nothing
    trees = [_tree(each) if each is not None else None for each in (forward, backward)]
    if forward is None or backward is None or trees[0] is None or trees[1] is None:
        return
    parameters = list(parameters_of(trees[0]))
    context = next(iter(parameters), "")
    arguments = {name: at for at, name in enumerate(parameters if split else parameters[1:])}
    handed = {} if split else _handed_on(trees[0], context, arguments)
    here = {**arguments, **{f"{context}.{name}": at for name, at in handed.items()}}
    texts = [_text(forward, trees[0], here, values)]
    if split and setup is not None and (tree := _tree(setup)) is not None:
        texts.append(_text(setup, tree, {}, values))
    back = _text(backward, trees[1], _handed_back(trees[1], handed), values)
    read = _read_by(back)
    told: set[Key] = set()
    mine = [
        (known, node, value, text) for one in texts for text in one.every() for node, value in _set_in(text.tree)
        if (known := _where(node, text)) is not None
    ]  # fmt: skip
    own = {_key(known) for known, _, value, text in mine if value is None or _made_of(_key(known), value, text)}
    for known, node, _, text in mine:
        key = _key(known)
        if key in own or key in told or key not in read:
            continue
        told.add(key)
        holder, attribute = known
        argument = holder if isinstance(holder, int) else -1
        top = text
        while top.caller is not None:
            top = top.caller
        code = top.function.__code__
        line = SourceLine(os.path.abspath(code.co_filename), text.line or node.lineno, code.co_name)
        yield Place(read[key], line, attribute, weakly(None if argument >= 0 else holder), argument)


def _read_by(back: _Text) -> dict[Key, str]:
    """What backward reads and does not set, and what it calls that."""
    read: dict[Key, str] = {}
    for text in back.every():
        for node in _read_in(text.tree) if not text.shown else ():
            known = _where(node, text)
            if known is not None:
                read.setdefault(_key(known), ast.unparse(node) if text is back else _named(known, back))
    for text in back.every():
        for node, _ in _set_in(text.tree):
            known = _where(node, text)
            if known is not None:
                read.pop(_key(known), None)
    return read


def _named(known: Key, back: _Text) -> str:
    holder, name = known
    if isinstance(holder, int):
        found = next((each for each, at in back.names.items() if at == holder), "")
        return f"{found}.{name}" if found else name
    if isinstance(holder, dict):
        return name if "__builtins__" in holder else f"[{name!r}]"
    return f"{holder.__name__ if isinstance(holder, type) else type(holder).__name__}.{name}"


# ---- functions, and those that they call


def _plain(function: type, name: str) -> types.FunctionType | None:
    return _unwrapped(getattr(function, name, None))


def _unwrapped(method: Any) -> types.FunctionType | None:
    method = getattr(method, "__wrapped__", method)
    found = getattr(method, "__func__", method)
    return found if type(found) is types.FunctionType else None


def _tree(function: types.FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    return function_named(function.__code__.co_filename, function.__code__.co_firstlineno)


def _text(
    function: types.FunctionType,
    tree: Any,
    names: Mapping[str, Any],
    values: Sequence[Any],
    caller: _Text | None = None,
) -> _Text:
    text = _Text(function, tree, names, caller=caller)
    depth, above = 0, caller
    while above is not None:
        if above.function is function:  # it calls itself
            return text
        depth, above = depth + 1, above.caller
    shown = _shown_in(tree)
    for node in _sorted(tree) if depth < _DEEPEST else ():
        called = _called(node, text, values) if isinstance(node, ast.Call) else None
        if called is None or not isinstance(node, ast.Call):
            continue
        helper, bound = called
        inner = _tree(helper)
        if inner is None or is_library(helper.__code__.co_filename):
            continue
        parameters = list(parameters_of(inner))
        known = {parameters.pop(0): bound} if bound is not None and parameters else {}
        given = dict(zip(parameters, node.args)) if not any(isinstance(each, ast.Starred) for each in node.args) else {}
        given |= {each.arg: each.value for each in node.keywords if each.arg is not None}
        known |= {name: held for name, each in given.items() if (held := _holder(each, text)) is not None}
        found = _text(helper, inner, known, values, text)
        found.given = given
        found.shown = text.shown or id(node) in shown
        for each in found.every():
            each.line = node.lineno
            each.shown = each.shown or found.shown
        text.calls[id(node)] = found
    return text


def _called(call: ast.Call, text: _Text, values: Sequence[Any]) -> tuple[types.FunctionType, Any] | None:
    """A function of the program's, and what its first parameter is where a method is called."""
    if isinstance(call.func, ast.Name):
        found = _object(call.func, text.function) if call.func.id not in text.names else None
        bound = found.__self__ if type(found) is types.MethodType else None
    elif isinstance(call.func, ast.Attribute):
        receiver = _holder(call.func.value, text)
        owner = receiver
        if isinstance(receiver, int):
            owner = values[receiver] if receiver < len(values) else None
        if owner is None:
            return None
        if isinstance(owner, types.ModuleType):
            found, bound = vars(owner).get(call.func.attr), None
        else:
            kind = owner if isinstance(owner, type) else type(owner)
            found = next((vars(each)[call.func.attr] for each in kind.__mro__ if call.func.attr in vars(each)), None)
            bound = kind if isinstance(found, classmethod) else None
            if type(found) is types.FunctionType and owner is not kind:
                bound = receiver
    else:
        return None
    function = _unwrapped(found)
    return (function, bound) if function is not None else None


def _sorted(tree: ast.AST) -> list[ast.AST]:
    return sorted(inside(tree), key=lambda each: getattr(each, "lineno", 0))


def _set_in(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """(target, value) of each assignment; no value where it adds to what was there."""
    for node in _sorted(tree):
        if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            yield node.target, None if isinstance(node, ast.AugAssign) else node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for each in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                    yield each, node.value
        elif isinstance(node, ast.Call) and len(node.args) == 3 and (found := _by_name(node, "setattr")) is not None:
            yield found, node.args[2]


def _by_name(call: ast.Call, function: str) -> ast.Attribute | None:
    """``setattr(Clip, "mask", x)`` and ``getattr(Clip, "mask")`` as ``Clip.mask``."""
    if not isinstance(call.func, ast.Name) or call.func.id != function or len(call.args) < 2:
        return None
    name = call.args[1].value if isinstance(call.args[1], ast.Constant) else None
    return ast.copy_location(ast.Attribute(call.args[0], name, ast.Load()), call) if isinstance(name, str) else None


def _read_in(tree: ast.AST) -> Iterator[ast.expr]:
    """Not of which only the shape or the like is taken."""
    shown = _shown_in(tree)
    shown |= {id(node.value) for node in inside(tree) if isinstance(node, ast.Attribute) and node.attr in _ABOUT}
    return (found for node in inside(tree) if id(node) not in shown and (found := _reading(node)) is not None)


def _shown_in(tree: ast.AST) -> set[int]:
    """A statement that is a call alone, ``print(…)``, makes nothing of what it reads."""
    return {id(each) for node in inside(tree) if isinstance(node, ast.Expr) for each in ast.walk(node)}


def _reading(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Call):
        return _by_name(node, "getattr")
    if isinstance(node, (ast.Attribute, ast.Subscript, ast.Name)) and isinstance(node.ctx, ast.Load):
        return node
    return None


def _made_of(key: Key, value: ast.expr, text: _Text) -> bool:
    """Whether what lies at a place is used in the expression, by way of variables, parameters and calls as well."""
    todo = [(value, text)]
    names: set[tuple[int, str]] = set()
    while todo:
        one, where = todo.pop()
        for node in ast.walk(one):
            read = _reading(node)
            known = _where(read, where) if read is not None else None
            if known is not None and _key(known) == key:
                return True
            called = where.calls.get(id(node))
            if called is not None and any(
                (there := _where(each, inner)) is not None and _key(there) == key
                for inner in called.every() for each in _read_in(inner.tree)
            ):  # fmt: skip
                return True
            if not isinstance(node, ast.Name) or (id(where), node.id) in names or len(names) > _MOST:
                continue
            names.add((id(where), node.id))
            if node.id in where.given and where.caller is not None:
                todo.append((where.given[node.id], where.caller))
            before = [
                made for target, made in _set_in(where.tree) if made is not None
                and isinstance(target, ast.Name) and target.id == node.id and target.lineno < one.lineno
            ]  # fmt: skip
            todo += [(each, where) for each in before]
    return False


# ---- what has it


def _handed_on(tree: ast.AST, context: str, arguments: Mapping[str, int]) -> dict[str, int]:
    """ "ctx.layer" of ``ctx.layer = layer``, and which argument that is."""
    found = {}
    for target, value in _set_in(tree):
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Name) and ast.unparse(target.value) == context:
            at = arguments.get(value.id)
            if at is not None:
                found[target.attr] = at
    return found


def _handed_back(tree: ast.AST, handed: Mapping[str, int]) -> dict[str, int]:
    """What backward calls these: "ctx.layer", and "layer" after ``layer = ctx.layer``."""
    context = next(iter(parameters_of(tree)), "")
    found = {f"{context}.{name}": at for name, at in handed.items()}
    for target, value in _set_in(tree):
        if isinstance(target, ast.Name) and value is not None and ast.unparse(value) in found:
            found[target.id] = found[ast.unparse(value)]
    return found


def _where(node: ast.expr, text: _Text) -> Key | None:
    """(what has it, its name there) of ``Clip.mask``, ``cache["mask"]``, ``layer.mask``, or a global name. What has it
    is a number where that is an argument of forward's. None of what is the function's own."""
    function = text.function
    if isinstance(node, ast.Name):
        shared = any(isinstance(each, ast.Global) and node.id in each.names for each in inside(text.tree))
        own = {*function.__code__.co_varnames, *function.__code__.co_cellvars, *function.__code__.co_freevars}
        return (function.__globals__, node.id) if shared or node.id not in own else None
    if isinstance(node, ast.Subscript):
        name = node.slice.value if isinstance(node.slice, ast.Constant) else None
    else:
        name = node.attr if isinstance(node, ast.Attribute) else None
    if not isinstance(name, str) or not isinstance(node, (ast.Subscript, ast.Attribute)):
        return None
    holder = _holder(node.value, text)
    fits = isinstance(holder, (int, dict)) if isinstance(node, ast.Subscript) else not isinstance(holder, dict)
    return (holder, name) if holder is not None and fits else None


def _holder(node: ast.expr, text: _Text) -> Any:
    """An object, or a number for an argument of forward's; None where it cannot be told, and of plain numbers."""
    known = text.names.get(ast.unparse(node))
    if known is not None:
        return known
    if isinstance(node, ast.Attribute):
        holder = _holder(node.value, text)
        found = value_at(holder, node.attr) if holder is not None and not isinstance(holder, int) else None
    else:
        found = _object(node, text.function)
    return found if not isinstance(found, int) else None


def _object(node: ast.expr, function: types.FunctionType) -> Any:
    """What a name is now, without code of the program's; None where that cannot be told."""
    if not isinstance(node, ast.Name):
        return None
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        if name == node.id:
            with suppress(ValueError):  # not assigned yet
                return cell.cell_contents
    return function.__globals__.get(node.id) if node.id not in (*code.co_varnames, *code.co_cellvars) else None


def keys_read(function: type, name: str) -> list[Any] | None:
    """By which keys, constants, backward takes parts of what lies under ``name``, but for those of which it asks the
    shape or the like; [] where it takes all of it; None where a key is not known."""
    backward = _plain(function, "backward")
    tree = _tree(backward) if backward is not None else None
    nodes = list(inside(tree)) if tree is not None else []
    about = {id(each.value) for each in nodes if isinstance(each, ast.Attribute) and each.attr in _ABOUT}
    over = {
        each.target.id: [part.value for part in each.iter.elts if isinstance(part, ast.Constant)]
        for each in nodes if isinstance(each, (ast.For, ast.comprehension)) and isinstance(each.target, ast.Name)
        and isinstance(each.iter, (ast.Tuple, ast.List))
    }  # fmt: skip
    taken = [each for each in nodes if isinstance(each, ast.Subscript) and ast.unparse(each.value) == name]
    if sum(isinstance(each, ast.expr) and ast.unparse(each) == name for each in nodes) > len(taken):
        return []  # as a whole, or by another name
    keys: list[Any] = []
    for each in taken:
        if id(each) in about:
            continue
        if isinstance(each.slice, ast.Constant):
            keys.append(each.slice.value)
        elif isinstance(each.slice, ast.Name) and over.get(each.slice.id):
            keys += over[each.slice.id]
        else:
            return None
    return list(dict.fromkeys(keys)) if keys or not taken else None


def value_at(holder: Any, name: str) -> Any:
    """What it has under that name, looked up in its dictionaries."""
    if isinstance(holder, dict):
        return dict.get(holder, name)
    if isinstance(holder, type):
        return next((vars(kind)[name] for kind in holder.__mro__ if name in vars(kind)), None)
    own = getattr(holder, "__dict__", None)
    if not isinstance(own, dict):
        return None
    for each in (own, own.get("_buffers"), own.get("_modules"), own.get("_sub_layers")):
        if isinstance(each, dict) and name in each:
            return each[name]
    return None


def _key(known: Key) -> Key:
    holder, name = known
    return ("argument", holder) if isinstance(holder, int) else id(holder), name


def weakly(value: Any) -> Callable[[], Any]:
    """A way to it that does not keep it, but where that cannot be: dictionaries."""
    if isinstance(value, dict):
        return lambda: value
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: None
