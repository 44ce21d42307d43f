"""ssh_config as Paramiko reads it: what is said of a host, and nothing else."""

from __future__ import annotations

import fnmatch
import getpass
import glob
import hashlib
import importlib
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

from .ssh_exception import ConfigParseError, CouldNotCanonicalize

try:
    invoke: Any = importlib.import_module("invoke")
except ImportError:
    invoke = None

if TYPE_CHECKING:
    from typing_extensions import Self

SSH_PORT = 22

#: How deep included files may include others (OpenSSH's READCONF_MAX_DEPTH).
_DEEPEST = 16

#: Directives of which all count, not the first one alone.
_LISTS = ("identityfile", "localforward", "remoteforward")

#: The tokens of directives that have any, and of what Match runs.
_TOKENS = {
    "controlpath": ("%C", "%h", "%l", "%L", "%n", "%p", "%r", "%u"),
    "hostname": ("%h",),
    "identityfile": ("%C", "~", "%d", "%h", "%l", "%u", "%r"),
    "proxycommand": ("~", "%h", "%p", "%r"),
    "proxyjump": ("%h", "%p", "%r"),
    "match-exec": ("%C", "%d", "%h", "%L", "%l", "%n", "%p", "%r", "%u"),
}

#: What Match asks about, of which the first two take no argument but stand for themselves.
_ALONE = ("all", "canonical", "final")
_WITH_ARGUMENT = ("exec", "host", "originalhost", "user", "localuser")


class SSHConfigDict(dict[str, Any]):
    """The ssh_config of a host, by directives in lower case."""

    def as_bool(self, key: str) -> bool:
        """Return whether it says yes."""
        value = self[key]
        return value if isinstance(value, bool) else str(value).lower() == "yes"

    def as_int(self, key: str) -> int:
        """Its number."""
        return int(self[key])


class SSHConfig:
    """One or more files. The first that says something of a host counts, as for ssh."""

    def __init__(self) -> None:
        #: The blocks of all files, in the order in which they count. Fabric copies it.
        self._config: list[dict[str, Any]] = []

    @classmethod
    def from_text(cls, text: str) -> Self:
        """A configuration that is not a file."""
        config = cls()
        config.parse(text.splitlines())
        return config

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> Self:
        """A file."""
        with open(path) as file:
            return cls.from_file(file)

    @classmethod
    def from_file(cls, flo: IO[str]) -> Self:
        """An open file."""
        config = cls()
        config.parse(flo)
        return config

    def parse(self, file_obj: Iterable[str]) -> None:
        """Adds a file: it counts where those before it say nothing. ``ConfigParseError`` if it has a line that is none."""
        self._parse(file_obj, None, 0)

    def _parse(self, lines: Iterable[str], within: dict[str, Any] | None, depth: int) -> None:
        """Adds a file's blocks, which count where ``within`` does."""
        block = self._begin({"host": ["*"]}, within)
        for line in lines:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            match = re.match(r"(\w+)(?:\s*=\s*|\s+)(.+)", line)
            if match is None:
                raise ConfigParseError(f"Unparsable line {line}")
            key, value = match[1].lower(), match[2]
            if key == "host":
                block = self._begin({"host": _words(value)}, within)
            elif key == "match":
                block = self._begin({"matches": _conditions(value)}, within)
            elif key == "include":
                for path in _included(value) if depth < _DEEPEST else ():
                    with open(path) as file:
                        self._parse(file, block, depth + 1)
                block = self._begin({name: block[name] for name in ("host", "matches") if name in block}, within)
            else:
                _set(block["config"], key, value)

    def _begin(self, block: dict[str, Any], within: dict[str, Any] | None) -> dict[str, Any]:
        block["config"] = {}
        if within is not None:
            block["within"] = within
        self._config.append(block)
        return block

    def lookup(self, hostname: str) -> SSHConfigDict:
        """Return the configuration of a host. ``CouldNotCanonicalize`` if its name should have an address and has none."""
        options = self._lookup(hostname)
        options.setdefault("hostname", hostname)
        most_dots = int(options.get("canonicalizemaxdots", 1))
        if options.get("canonicalizehostname") in ("yes", "always") and hostname.count(".") <= most_dots:
            hostname = self.canonicalize(hostname, options, options.get("canonicaldomains", "").split())
            options["hostname"] = hostname
            return self._lookup(hostname, options, canonical=True, final=True)
        return self._lookup(hostname, options, canonical=False, final=True)

    def _lookup(
        self, hostname: str, options: SSHConfigDict | None = None, canonical: bool = False, final: bool = False
    ) -> SSHConfigDict:
        found = SSHConfigDict() if options is None else options
        for block in self._config:
            if not _counts(block, hostname, canonical, final, found):
                continue
            for key, value in block["config"].items():
                if key not in found:
                    # A list of its own, which grows.
                    found[key] = value[:] if value is not None else None
                elif key == "identityfile":
                    found[key].extend(each for each in value if each not in found[key])
        if final:
            for key in found:
                found[key] = _expanded_all(found, hostname, key)
        return found

    def canonicalize(self, hostname: str, options: Mapping[str, Any], domains: Iterable[str]) -> str:
        """The name with the first of the domains in which it has an address."""
        for domain in domains:
            candidate = f"{hostname}.{domain}"
            try:
                if options.get("addressfamily", "any").lower() == "any":
                    socket.gethostbyname(candidate)
                else:
                    socket.getaddrinfo(candidate, None, _family(options))
            except socket.gaierror:
                continue
            return candidate
        if options.get("canonicalizefallbacklocal", "yes") == "yes":
            return hostname
        raise CouldNotCanonicalize(hostname)

    def get_hostnames(self) -> set[str]:
        """All names and patterns of its ``Host`` lines."""
        return {name for block in self._config for name in block.get("host", ())}


def _set(config: dict[str, Any], key: str, value: str) -> None:
    """Sets a directive of a block, of which the first counts."""
    if key == "proxycommand" and value.lower() == "none":
        # Those of later blocks count no more.
        config.setdefault(key, None)
        return
    if len(value) > 1 and value.startswith('"') and value.endswith('"'):
        value = value[1:-1]
    if key in _LISTS:
        config.setdefault(key, []).append(value)
    else:
        config.setdefault(key, value)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise ConfigParseError(f"Unparsable host {text}") from None


def _conditions(text: str) -> list[dict[str, Any]]:
    """Return the conditions of a Match line."""
    words = _words(text)
    conditions: list[dict[str, Any]] = []
    while words:
        word = words.pop(0)
        kind = word.lower().lstrip("!")
        if kind not in _ALONE and kind not in _WITH_ARGUMENT:
            raise ConfigParseError(f"Unsupported Match keyword {word}")
        if kind in _WITH_ARGUMENT and not words:
            raise ConfigParseError(f"Missing argument to Match {word}")
        parameter = words.pop(0) if kind in _WITH_ARGUMENT else None
        conditions.append({"type": kind, "negate": word.startswith("!"), "param": parameter})
    kinds = [condition["type"] for condition in conditions]
    if "all" in kinds and ([each for each in kinds if each not in ("all", "canonical")] or kinds[-1] != "all"):
        raise ConfigParseError("Match does not allow 'all' mixed with anything but 'canonical'")
    return conditions


def _included(value: str) -> list[str]:
    """The files of an Include line: below ~/.ssh where they are not absolute."""
    directory = os.path.expanduser("~/.ssh")
    patterns = (os.path.join(directory, os.path.expanduser(word)) for word in _words(value))
    return [path for pattern in patterns for path in sorted(glob.glob(pattern)) if os.path.isfile(path)]


def _counts(block: dict[str, Any], hostname: str, canonical: bool, final: bool, options: Mapping[str, Any]) -> bool:
    """Return whether a block is about the host."""
    if "within" in block and not _counts(block["within"], hostname, canonical, final, options):
        return False
    if "matches" in block:
        return all(_holds(each, hostname, canonical, final, options) for each in block["matches"])
    return _matches(block["host"], hostname)


def _holds(condition: dict[str, Any], original: str, canonical: bool, final: bool, options: Mapping[str, Any]) -> bool:
    """Return whether a condition of Match holds."""
    local = getpass.getuser()
    asked: dict[str, Callable[[], bool]] = {
        "all": lambda: True,
        "canonical": lambda: canonical,
        "final": lambda: final,
        "host": lambda: _matches(condition["param"].split(","), options.get("hostname") or original),
        "originalhost": lambda: _matches(condition["param"].split(","), original),
        "user": lambda: _matches(condition["param"].split(","), options.get("user") or local),
        "localuser": lambda: _matches(condition["param"].split(","), local),
        "exec": lambda: _succeeds(_expanded(options, original, "match-exec", condition["param"])),
    }
    return asked[condition["type"]]() is not condition["negate"]


def _succeeds(command: str) -> bool:
    """Return whether a command of Match says yes: run by Invoke, as Paramiko does it, if that is installed."""
    if invoke is not None:
        return bool(invoke.run(command, hide="stdout", warn=True).ok)
    done = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return done.returncode == 0


def _matches(patterns: Iterable[str], name: str) -> bool:
    matched = False
    for pattern in patterns:
        if pattern.startswith("!"):
            if fnmatch.fnmatch(name, pattern[1:]):
                return False
        elif fnmatch.fnmatch(name, pattern):
            matched = True
    return matched


def _expanded_all(options: Mapping[str, Any], hostname: str, key: str) -> Any:
    """A directive's value, or all values, with its tokens replaced."""
    value = options[key]
    if isinstance(value, list):
        return [_expanded(options, hostname, key, each) for each in value]
    return _expanded(options, hostname, key, value) if isinstance(value, str) else value


def _expanded(options: Mapping[str, Any], original: str, key: str, value: str) -> str:
    """A value with those tokens replaced that its directive has."""
    allowed = _TOKENS.get(key, ())
    if not allowed:
        return value
    configured = options.get("hostname", original)
    # What a name stands for cannot have its own name in it.
    host = original if key == "hostname" else configured
    local = getpass.getuser()
    user = options.get("user", local)
    port = str(options.get("port", SSH_PORT))
    node = socket.gethostname()
    values: dict[str, Callable[[], str]] = {
        "%C": lambda: hashlib.sha1(f"{node.split('.')[0]}{original}{port}{user}".encode()).hexdigest(),
        "%d": lambda: os.path.expanduser("~"),
        "%h": lambda: host,
        "%L": lambda: node.split(".")[0],
        "%l": lambda: _full_name(options, node),
        "%n": lambda: original,
        "%p": lambda: port,
        "%r": lambda: user,
        "%u": lambda: local,
        "~": lambda: os.path.expanduser("~"),
    }
    return re.sub("%.|~", lambda token: values[token[0]]() if token[0] in allowed else token[0], value)


def _full_name(options: Mapping[str, Any], node: str) -> str:
    """This machine's name with its domain, of the address family that counts."""
    if options.get("addressfamily", "any").lower() != "any":
        try:
            found = socket.getaddrinfo(
                node, None, _family(options), socket.SOCK_DGRAM, socket.IPPROTO_IP, socket.AI_CANONNAME
            )
        except socket.gaierror:
            found = []
        for *_, name, _address in found:
            if "." in name:
                return name
    return socket.getfqdn()


def _family(options: Mapping[str, Any]) -> socket.AddressFamily:
    return socket.AF_INET6 if options.get("addressfamily", "any").lower() == "inet6" else socket.AF_INET
