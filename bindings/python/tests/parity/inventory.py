"""The members of a library, found by looking at it, and those that a module in its place lacks or has in another way.

inventory.py LIBRARY MODULE prints it as JSON.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import pkgutil
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def missing(library: str, ours: str) -> Iterator[tuple[str, str]]:
    """The public names of a library that ``ours`` has not, and the parameters that it has in another way.

    Of a module counts what is defined there, of the package itself everything. A name is dotted, from the library on; the
    word with it says what is wrong.
    """
    for name, module in _modules(importlib.import_module(library)):
        try:
            counterpart = importlib.import_module(ours + name[len(library) :])
        except ImportError:
            yield name, "no such module"
            continue
        for member in sorted(_defined(module)):
            if not hasattr(counterpart, member):
                yield f"{name}.{member}", "no such name"
                continue
            original, mine = getattr(module, member), getattr(counterpart, member)
            # The same, loaded a second time.
            if getattr(mine, "__module__", "").startswith("_trunkline_original"):
                continue
            if inspect.isclass(original):
                yield from _of_class(f"{name}.{member}", original, mine, library)
            elif inspect.isroutine(original):
                yield from _of_function(f"{name}.{member}", original, mine)
            elif isinstance(original, _PLAIN) and mine != original:
                yield f"{name}.{member}", f"it is {mine!r}, not {original!r}"


#: Values that are the same only where they are equal.
_PLAIN = (str, bytes, int, float, tuple)


def _modules(package: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    yield package.__name__, package
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        # Private ones, and those that only another system has.
        if not found.name.rpartition(".")[2].startswith(("_", "win_")):
            yield found.name, importlib.import_module(found.name)


def _defined(module: ModuleType) -> set[str]:
    """The public names that a module's source gives to something."""
    source = ast.parse(inspect.getsource(module))
    names = set(getattr(module, "__all__", ())) if hasattr(module, "__path__") else set()
    for node in ast.walk(source):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node in source.body:
            names.add(node.name)
        elif isinstance(node, ast.Assign) and node in source.body:
            names.update(each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name))
        elif isinstance(node, ast.ImportFrom) and hasattr(module, "__path__") and node in source.body:
            names.update(each.asname or each.name for each in node.names)
    return {name for name in names if not name.startswith("_") and hasattr(module, name)}


def _of_class(name: str, original: type, mine: Any, library: str) -> Iterator[tuple[str, str]]:
    if issubclass(original, BaseException):
        kinds = {each.__name__ for each in mine.__mro__}
        yield from (
            (name, f"it is not caught as {each.__name__}") for each in original.__mro__ if each.__name__ not in kinds
        )
    for member in sorted(_of_instances(original, library)):
        if not hasattr(mine, member) and member not in _of_instances(mine, "trunkline"):
            yield f"{name}.{member}", "no such attribute of instances"
    for member in sorted(dir(original)):
        owner = next((each for each in original.__mro__ if member in vars(each)), object)
        if not owner.__module__.startswith(library) or (member.startswith("_") and member != "__init__"):
            continue
        value = inspect.getattr_static(original, member)
        # Slots and annotations are filled in by the constructor.
        if inspect.ismemberdescriptor(value) or isinstance(value, property):
            if not (hasattr(mine, member) or f"self.{member}" in _source(mine)):
                yield f"{name}.{member}", "no such attribute"
        elif not hasattr(mine, member):
            yield f"{name}.{member}", "no such attribute"
        elif isinstance(value, _PLAIN) and getattr(mine, member) != value:
            yield f"{name}.{member}", f"it is {getattr(mine, member)!r}, not {value!r}"
        elif callable(getattr(original, member)):
            yield from _of_function(f"{name}.{member}", getattr(original, member), getattr(mine, member))


# To find a class's source, inspect parses its whole module.
_source_of = functools.cache(inspect.getsource)


@functools.cache
def _of_instances(kind: type, library: str) -> set[str]:
    """The public attributes that the methods of a class give to its instances."""
    names: set[str] = set()
    for each in kind.__mro__:
        # A named tuple's class has no source.
        if each.__module__.startswith(library) and "__slots__" not in vars(each):
            source = ast.parse(textwrap.dedent(_source_of(each)))
            for node in ast.walk(source):
                if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
                    continue
                if isinstance(node.value, ast.Name) and node.value.id == "self":
                    names.add(node.attr)
    return {name for name in names if not name.startswith("_") and not hasattr(kind, name)}


def _source(kind: type) -> str:
    return "".join(_source_of(each) for each in kind.__mro__ if each.__module__.startswith("trunkline"))


def _of_function(name: str, original: Any, mine: Any) -> Iterator[tuple[str, str]]:
    try:
        expected, found = _parameters(original), _parameters(mine)
    except (TypeError, ValueError):
        return
    takes_any = {each.kind for each in inspect.signature(mine).parameters.values()}
    for parameter in expected:
        if parameter not in found and inspect.Parameter.VAR_POSITIONAL not in takes_any:
            yield f"{name}({parameter})", "no such parameter"
    common = [each for each in expected if each in found]
    if [each for each in found if each in expected] != common:
        yield name, "the parameters are in another order"
    for parameter in common:
        before, now = expected[parameter].default, found[parameter].default
        if before is not inspect.Parameter.empty and now is inspect.Parameter.empty:
            yield f"{name}({parameter})", "it may not be left out"
        elif isinstance(before, _PLAIN) and now != before:
            yield f"{name}({parameter})", f"it is {now!r} where nothing is said, not {before!r}"


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
        and not name.startswith("_")
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


if __name__ == "__main__":
    print(json.dumps(list(missing(sys.argv[1], sys.argv[2]))))
