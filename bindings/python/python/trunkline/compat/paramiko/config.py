"""ssh_config, read by ssh itself."""

from __future__ import annotations

import functools
import getpass
import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

from .ssh_exception import ConfigParseError

if TYPE_CHECKING:
    from typing_extensions import Self

SSH_PORT = 22

#: Directives of which there may be several.
_LISTS = {"certificatefile", "dynamicforward", "identityfile", "localforward", "remoteforward", "sendenv", "setenv"}
#: Those whose values are paths, and those with tokens that ``ssh -G`` leaves as they are.
_PATHS = {"certificatefile", "identityfile"}
_TOKENS = {*_PATHS, "proxycommand"}


class SSHConfigDict(dict[str, Any]):
    """What ssh_config says of a host, by directives in lower case."""

    def as_bool(self, key: str) -> bool:
        """Whether it says yes."""
        value = self[key]
        return value if isinstance(value, bool) else str(value).lower() == "yes"

    def as_int(self, key: str) -> int:
        """Its number."""
        return int(self[key])


class SSHConfig:
    """One or more files. What they mean is asked of ``ssh -G``: ``Match``, ``Include`` and patterns are as for ssh.

    What they say is told as far as it differs from ssh's defaults, which a host without any configuration has too.
    """

    def __init__(self) -> None:
        #: The files' contents, in the order in which they count. Fabric copies it.
        self._config: list[str] = []

    @classmethod
    def from_text(cls, text: str) -> Self:
        """A configuration that is not a file."""
        config = cls()
        config._config.append(text)
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
        """Adds a file: it counts where those before it say nothing."""
        self._config.append("".join(file_obj))

    def lookup(self, hostname: str) -> SSHConfigDict:
        """What it says of a host; ``ConfigParseError`` if ssh does not understand it."""
        found = SSHConfigDict(hostname=hostname)
        if not self._config:
            return found
        defaults = _defaults()
        for name, values in _asked("\nMatch all\n".join(self._config), hostname).items():
            if name == "hostname" or (name != "host" and values != defaults.get(name)):
                found[name] = values if name in _LISTS else values[0]
        for name in _TOKENS & found.keys():
            value = found[name]
            expanded = [_expanded(each, found, hostname, name) for each in (value if name in _LISTS else [value])]
            found[name] = expanded if name in _LISTS else expanded[0]
        if str(found.get("proxycommand", "")).lower() == "none":
            del found["proxycommand"]
        return found

    def get_hostnames(self) -> set[str]:
        """All names and patterns of its ``Host`` lines."""
        names = {"*"}
        for text in self._config:
            for line in text.splitlines():
                directive, _, rest = line.strip().replace("=", " ", 1).partition(" ")
                if directive.lower() == "host":
                    names.update(shlex.split(rest))
        return names


@functools.lru_cache(maxsize=1)
def _defaults() -> dict[str, list[str]]:
    """What ssh makes of no configuration."""
    return _asked("", "localhost")


def _asked(text: str, hostname: str) -> dict[str, list[str]]:
    """What ssh makes of a configuration. Each directive has its values in order."""
    # Directives that this ssh does not know are not an error, as for Paramiko.
    content = f"IgnoreUnknown *\n{text}\n"
    descriptor = os.memfd_create("ssh_config")
    try:
        os.write(descriptor, content.encode())
        # ssh closes other descriptors than the first three. It reads the file twice for "Match final", and opens it anew.
        command = ["ssh", "-G", "-F", "/dev/stdin", "--", hostname]
        asked = subprocess.run(command, stdin=descriptor, capture_output=True, text=True)
    finally:
        os.close(descriptor)
    if asked.returncode != 0:
        raise ConfigParseError(asked.stderr.strip() or "ssh -G failed")
    found: dict[str, list[str]] = {}
    for line in asked.stdout.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, []).append(value)
    return found


def _expanded(value: str, found: SSHConfigDict, original: str, name: str) -> str:
    """The tokens that make sense before a connection is made (ssh_config(5), TOKENS)."""
    user = getpass.getuser()
    tokens = {
        "%%": "%",
        "%d": os.path.expanduser("~"),
        "%h": found["hostname"],
        "%i": str(os.getuid()),
        "%L": os.uname().nodename.partition(".")[0],
        "%l": os.uname().nodename,
        "%n": original,
        "%p": found.get("port", "22"),
        "%r": found.get("user", user),
        "%u": user,
    }
    result = re.sub("%.", lambda token: str(tokens.get(token[0], token[0])), value)
    return os.path.expanduser(result) if name in _PATHS else result
