"""The part that is Paramiko's own: servers, and whatever else the engine has no part in, if Paramiko is installed.

Its modules are loaded a second time, under a name of their own and only when somebody asks for them, so that they neither
stand in the way of ``install`` nor are found in this package's place. Their exceptions and attributes of files are
this package's.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.util
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from .pkey import PKey
from .ssh_exception import SSHException

_NAME = "_trunkline_original_paramiko"
_OURS = __name__.rpartition(".")[0]

#: Modules of this package that the original uses in place of its own.
_SHARED = ("paramiko.sftp_attr", "paramiko.ssh_exception")


def attributes_of(module: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``: what this package's module has not is the original's."""

    def attribute(name: str) -> Any:
        if not name.startswith("_"):
            original = _NAME + module[len(_OURS) :]
            try:
                return getattr(importlib.import_module(original), name)
            except (ImportError, AttributeError):
                pass
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return attribute


def names_of(module: str) -> Callable[[], list[str]]:
    """A module's ``__dir__``: its own names, and those of the original's that it has by ``__getattr__``."""

    def names() -> list[str]:
        try:
            original = dir(importlib.import_module(_NAME + module[len(_OURS) :]))
        except ImportError:
            original = []
        return sorted({*vars(sys.modules[module]), *(name for name in original if not name.startswith("_"))})

    return names


def transport_class() -> Any:
    """The original's transports, which can serve."""
    try:
        return importlib.import_module(f"{_NAME}.transport").Transport
    except ImportError:
        raise SSHException("servers are Paramiko's own, and the package paramiko is not installed") from None


def key(mine: Any) -> Any:
    """A private key of this package's as the original has it."""
    if not isinstance(mine, PKey):
        return mine
    kind = getattr(importlib.import_module(_NAME), type(mine).__name__)
    return kind.from_private_key(io.StringIO(mine.text()))


class _Loader(SourceFileLoader):
    """Runs a module of the original's, for which ``import paramiko`` means the original."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)
        if module.__name__ == f"{_NAME}.pkey":
            _make_comparable(module.PKey)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> ModuleType:
    if level == 0 and (name == "paramiko" or name.startswith("paramiko.")):
        name = (_OURS if name in _SHARED else _NAME) + name[len("paramiko") :]
    return builtins.__import__(name, globals, locals, fromlist, level)


def _make_comparable(kind: Any) -> None:
    """Has keys be equal to this package's keys of the same content."""
    among_themselves = kind.__eq__

    def equal(self: Any, other: object) -> bool:
        if isinstance(other, kind):
            return bool(among_themselves(self, other))
        return isinstance(other, PKey) and bool(self.asbytes() == other.asbytes())

    kind.__eq__ = equal
    kind.__hash__ = lambda self: hash(self.asbytes())


class _OfOriginal(importlib.abc.MetaPathFinder):
    """Finds the modules of the original. Its package has an empty path, or others would find them too."""

    def __init__(self) -> None:
        self._directories: list[str] | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        found = PathFinder.find_spec("paramiko" + fullname[len(_NAME) :], None if fullname == _NAME else self._directories)
        if found is None or found.origin is None or not isinstance(found.loader, SourceFileLoader):
            return None
        if fullname == _NAME:
            self._directories = list(found.submodule_search_locations or ())
        return ModuleSpec(fullname, _Loader(fullname, found.origin), origin=found.origin, is_package=fullname == _NAME)


class _Missing(importlib.abc.MetaPathFinder):
    """Finds modules that this package has not, by its own name or in the place of the original's."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package not in (_OURS, "paramiko") or name.startswith("_") or sys.modules.get(package) is not sys.modules[_OURS]:
            return None
        original = f"{_NAME}.{name}"
        if importlib.util.find_spec(_NAME) is None or importlib.util.find_spec(original) is None:
            return None
        return ModuleSpec(fullname, _Same(original))


class _Same(importlib.abc.Loader):
    """Gives a module of the original's another name."""

    def __init__(self, original: str) -> None:
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._original)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


sys.meta_path += [_OfOriginal(), _Missing()]
