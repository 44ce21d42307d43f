"""known_hosts, as a program sees it. What a connection believes is decided by the engine, from the same files."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterator, Mapping, MutableMapping

from .pkey import PKey, decoded
from .ssh_exception import SSHException


class InvalidHostKey(Exception):
    """A line whose key is none."""

    def __init__(self, line: str, exc: Exception) -> None:
        super().__init__(line, exc)
        self.line = line
        self.exc = exc


class HostKeyEntry:
    """One line: names and a key."""

    def __init__(self, hostnames: list[str] | None = None, key: PKey | None = None) -> None:
        self.valid = hostnames is not None and key is not None
        self.hostnames = hostnames or []
        self._key = key

    @property
    def has_key(self) -> bool:
        """Whether there is a key, and not the name alone."""
        return self._key is not None

    def is_of(self, keytype: str) -> bool:
        """Return whether its key is of this type."""
        return self._key is not None and self._key.get_name() == keytype

    @property
    def key(self) -> PKey:
        if self._key is None:
            raise SSHException("this entry has no key")
        return self._key

    @key.setter
    def key(self, key: PKey) -> None:
        self._key = key

    @classmethod
    def from_line(cls, line: str, lineno: int | None = None) -> HostKeyEntry | None:
        """``None`` for a line without a key that is to be believed: comments, ``@revoked`` keys, authorities."""
        words = line.split()
        if len(words) < 3 or words[0].startswith(("#", "@")):
            return None
        try:
            return cls(words[0].split(","), decoded(words[2]))
        except SSHException as error:
            if isinstance(error.__cause__, binascii.Error):
                raise InvalidHostKey(line, error.__cause__) from error
            return None

    def to_line(self) -> str | None:
        """The line, with its end; ``None`` without names or without a key."""
        if not self.valid:
            return None
        return f"{','.join(self.hostnames)} {self.key.get_name()} {self.key.get_base64()}\n"

    def matches(self, hostname: str) -> bool:
        """Return whether it is about this host."""
        return any(_names(pattern, hostname) for pattern in self.hostnames) and not any(
            fnmatch.fnmatchcase(hostname, pattern[1:]) for pattern in self.hostnames if pattern.startswith("!")
        )

    def __repr__(self) -> str:
        return f"<HostKeyEntry {self.hostnames!r}: {self._key!r}>"


class KeysOfHost(MutableMapping[str, PKey]):
    """A host's keys by their types. What is set here is set in the ``HostKeys`` that it is of."""

    def __init__(self, hostname: str, entries: list[HostKeyEntry], hosts: HostKeys) -> None:
        self._hostname = hostname
        self._entries = entries
        self._hosts = hosts

    def __getitem__(self, keytype: str) -> PKey:
        for entry in self._entries:
            if entry.is_of(keytype):
                return entry.key
        raise KeyError(keytype)

    def __setitem__(self, keytype: str, key: PKey) -> None:
        for entry in self._entries:
            if entry.is_of(keytype):
                entry.key = key
                return
        entry = HostKeyEntry([self._hostname], key)
        self._entries.append(entry)
        self._hosts.append(entry)

    def __delitem__(self, keytype: str) -> None:
        """Of what was looked up; the file's entry stays, as with Paramiko."""
        key = self[keytype]
        self._entries.remove(next(entry for entry in self._entries if entry.is_of(keytype) and entry.key is key))

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> list[str]:  # type: ignore[override]
        """The types, in the order of the entries."""
        return [entry.key.get_name() for entry in self._entries if entry.has_key]


class HostKeys(MutableMapping[str, Mapping[str, PKey]]):
    """Hosts, each with its keys by their types."""

    def __init__(self, filename: str | None = None) -> None:
        self._entries: list[HostKeyEntry] = []
        if filename is not None:
            self.load(filename)

    def add(self, hostname: str, keytype: str, key: PKey) -> None:
        """Adds a key, in place of one of the same type."""
        for entry in self._entries:
            if hostname in entry.hostnames and entry.is_of(keytype):
                entry.key = key
                return
        self._entries.append(HostKeyEntry([hostname], key))

    def load(self, filename: str) -> None:
        """Adds what a file has."""
        with open(filename) as file:
            for line in file:
                try:
                    entry = HostKeyEntry.from_line(line)
                except InvalidHostKey:
                    continue
                if entry is None:
                    continue
                # What is there already, as where a file is loaded again, would be written twice.
                entry.hostnames = [name for name in entry.hostnames if not self.check(name, entry.key)]
                if entry.hostnames:
                    self._entries.append(entry)

    def save(self, filename: str) -> None:
        """Writes them all to a file."""
        with open(filename, "w") as file:
            file.writelines(line for entry in self._entries if (line := entry.to_line()) is not None)

    def append(self, entry: HostKeyEntry) -> None:
        """Adds a line."""
        self._entries.append(entry)

    def lookup(self, hostname: str) -> KeysOfHost | None:
        """A host's keys by their types."""
        found = [entry for entry in self._entries if entry.matches(hostname)]
        return KeysOfHost(hostname, found, self) if found else None

    def check(self, hostname: str, key: PKey) -> bool:
        """Return whether this is the host's key."""
        known = self.lookup(hostname)
        return known is not None and known.get(key.get_name()) == key

    def clear(self) -> None:
        self._entries.clear()

    def __getitem__(self, hostname: str) -> Mapping[str, PKey]:
        found = self.lookup(hostname)
        if found is None:
            raise KeyError(hostname)
        return found

    def __setitem__(self, hostname: str, keys: Mapping[str, PKey]) -> None:
        for keytype, key in keys.items():
            self.add(hostname, keytype, key)
        if not keys:
            # A name without a key.
            self._entries.append(HostKeyEntry([hostname]))

    def __delitem__(self, hostname: str) -> None:
        for entry in self._entries:
            if entry.matches(hostname):
                self._entries.remove(entry)
                return
        raise KeyError(hostname)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> list[str]:  # type: ignore[override]
        """All names, hashed ones as they are written."""
        return list(dict.fromkeys(name for entry in self._entries for name in entry.hostnames))

    def values(self) -> list[Mapping[str, PKey]]:  # type: ignore[override]
        """The keys of each."""
        return [self[name] for name in self.keys()]

    @staticmethod
    def hash_host(hostname: str, salt: str | bytes | None = None) -> str:
        """A name as ``HashKnownHosts`` has it; ``salt`` is that of another hashed name."""
        if salt is None:
            salt = os.urandom(hashlib.sha1().digest_size)
        elif isinstance(salt, str):
            salt = base64.b64decode(salt.removeprefix("|1|").partition("|")[0])
        digest = hmac.new(salt, hostname.encode(), hashlib.sha1).digest()
        return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _names(pattern: str, hostname: str) -> bool:
    if pattern.startswith("|1|") and not hostname.startswith("|1|"):
        return hmac.compare_digest(HostKeys.hash_host(hostname, pattern), pattern)
    return pattern == hostname or ("[" not in pattern and fnmatch.fnmatchcase(hostname, pattern))
