"""Programs for Paramiko that give it things in other forms, or leave something undone."""

from __future__ import annotations

import copy
import io
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from .programs_paramiko import Program, See, _client, kind, raised


def log_ins(paramiko: Any, see: See, about: Any) -> None:
    near = {"key_filename": None, "port": about["paramiko"]}
    # A user's name and a password as bytes; nobody's name; no host, which is not this one.
    client = _client(paramiko, about, **near, username=b"me", password=b"sesame")
    see(client.get_transport().is_authenticated())
    client.close()
    see(raised(lambda: _client(paramiko, about, **near, username="me", password=b"wrong")))
    see(kind(lambda: _client(paramiko, about, **near, username="me", password=5)))
    see(raised(lambda: _client(paramiko, about, username="")), kind(lambda: _client(paramiko, {**about, "address": ""})))
    # The names of signatures by users' keys, which are those of host keys too.
    disabled = {"pubkeys": ["ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256"]}
    _client(paramiko, about, disabled_algorithms=disabled).close()
    transport = paramiko.Transport((about["address"], about["port"]))
    transport.get_security_options().ciphers = ["aes128-cbc"]
    see(kind(lambda: transport.connect(username=about["user"], password="x")))


def host_key_over_a_socket(paramiko: Any, see: See, about: Any) -> None:
    """As in Paramiko's demos, which look at the host key before they log in."""
    with socket.create_connection((about["address"], about["port"])) as sock:
        transport = paramiko.Transport(sock)
        transport.start_client()
        shown = transport.get_remote_server_key()
        see(shown.get_name(), transport.is_active(), transport.is_authenticated())
        transport.auth_publickey(about["user"], paramiko.Ed25519Key.from_private_key_file(about["key"]))
        see(transport.get_remote_server_key() == shown, transport.is_authenticated())
        transport.close()


def keys(paramiko: Any, see: See, about: Any) -> None:
    key = paramiko.Ed25519Key.from_private_key_file(about["key"])
    same = copy.deepcopy({"pkey": key})["pkey"]
    see(same == key, same.can_sign())
    path = os.path.join(about["directory"], "known_hosts")
    with open(path, "w") as file:
        file.write(f"one {key.get_name()} {key.get_base64()}\n" * 2)
    client = paramiko.SSHClient()
    client.load_host_keys(path)
    client.load_host_keys(path)
    client.get_host_keys().add("three", key.get_name(), key)
    client.save_host_keys(path)
    with open(path) as file:
        see([line.split()[0] for line in file])
    # As Ansible's plugin does, which has learned a key.
    client.load_system_host_keys(path)
    client._host_keys.clear()
    client._host_keys.add("learned", key.get_name(), key)
    client._host_keys.update(client._system_host_keys)
    see(sorted(client._host_keys))


def commands(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    see(kind(lambda: client.exec_command(None)), client.exec_command(bytearray(b"echo there"))[1].read())
    channel = client.get_transport().open_session()
    channel.exec_command("cat")
    see(kind(lambda: channel.send(5)), kind(lambda: channel.sendall(5)), channel.send(memoryview(b"x")))
    channel.shutdown_write()
    see(channel.recv(100))
    _, stdout, _ = client.exec_command("seq 3")
    see(iter(stdout) is stdout, list(stdout), stdout.close(), raised(lambda: list(stdout)))
    client.close()


def files(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    sftp = client.open_sftp()
    sftp.chdir(about["directory"])

    def length(name: str) -> int:
        return os.path.getsize(os.path.join(about["directory"], name))

    # Whoever looks meanwhile sees what was written.
    for mode, size in (("w", -1), ("a", 0), ("r+", -1), ("w+", 0), ("w", 1), ("w", 4)):
        with sftp.open(b"file", mode, size) as file:
            file.write("one\ntw")
            see(mode, size, length("file"), sftp.stat("file").st_size)
    with sftp.open("file", "rw") as file:
        see(file.readable(), file.writable(), length("file"))
        file.write("a\r\nb\rc\n")
    with sftp.open("file", "rU") as file:
        see(list(file), iter(file) is file)
    see(sftp.listdir(b"."), sftp.stat(b"file").st_size, sftp.rename(b"file", "other"), sftp.chdir(b".."), sftp.getcwd())
    # The last one is neither closed nor let go.
    file = sftp.open(os.path.join(about["directory"], "left"), "w")
    file.write("open")
    client.close()
    see(length("left"))


def progress(paramiko: Any, see: See, about: Any) -> None:
    client = _client(paramiko, about)
    sftp = client.open_sftp()
    path = os.path.join(about["directory"], "file")
    steps: list[tuple[int, int]] = []
    sftp.putfo(io.BytesIO(bytes(100_000)), path, 100_000, lambda *step: steps.append(step))
    sftp.getfo(path, io.BytesIO(), lambda *step: steps.append(step))
    see(steps)
    sftp.chmod(path, 0o640)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    see(str(sftp.stat(path)))
    # Programs resume copies with this, by names of its arguments.
    steps.clear()
    with open(path + ".part", "ab") as target, sftp.open(path) as source:
        source.seek(99_000)
        more: dict[str, Any] = {
            "reader": source,
            "writer": target,
            "file_size": 101_000,
            "callback": lambda *step: steps.append(step),
        }
        see(sftp._transfer_with_callback(**more), steps)
    see(os.path.getsize(path + ".part"))

    def enough(copied: int, size: int) -> None:
        if copied > 100_000:
            raise EOFError(size)

    # A file that has no size, and one that has no end: the program's word ends it.
    see(raised(lambda: sftp.get("/dev/zero", path, enough)), os.path.getsize(path) > 0)
    sftp.get("/proc/version", path)
    see(sftp.stat("/proc/version").st_size, Path(path).read_text() == Path("/proc/version").read_text())
    client.close()


def by_handle(paramiko: Any, see: See, about: Any) -> None:
    """Changes by handle affect the open file, whatever has its name by now; and a server's line about each name."""
    client = _client(paramiko, about)
    sftp = client.open_sftp()
    directory = os.path.join(about["directory"], "handles")
    os.mkdir(directory)
    names = [os.path.join(directory, name) for name in ("first", "moved", "gone")]
    file = sftp.open(names[0], "w")
    os.rename(names[0], names[1])
    for path in (names[0], names[2]):
        with open(path, "w"):
            os.chmod(path, 0o644)
        # A name's line has its time.
        os.utime(path, (3, 3))
    file.chmod(0o600)
    file.utime((1, 2))
    gone = sftp.open(names[2], "r+")
    os.remove(names[2])
    gone.chmod(0o600)
    gone.truncate(3)
    see([(os.stat(path).st_mode, os.stat(path).st_mtime == 2) for path in names[:2]], gone.stat().st_size)
    see(sorted(attributes.longname for attributes in sftp.listdir_attr(directory)))
    client.close()


def paths(paramiko: Any, see: See, about: Any) -> None:
    """Empty paths, and paths below the directory of ``chdir``."""
    client = _client(paramiko, about)
    sftp, directory = client.open_sftp(), about["directory"]
    os.makedirs(f"{directory}/deep/below")
    for cwd in (None, f"{directory}/deep", f"{directory}/deep/", "/"):
        sftp.chdir(cwd)
        for path in ("", b"", ".", "below", "..", "/", "//", "none", "below/", f"{directory}/deep"):
            see(cwd, path, sftp.getcwd())
            calls: list[tuple[str, ...]] = [(name,) for name in ("stat", "lstat", "listdir_attr", "readlink", "normalize")]
            if (not path and cwd != "/") or (cwd not in (None, "/") and path in ("below", "none", "below/")):
                # What makes something does so below the directory.
                calls += [("mkdir",), ("open", "w"), ("remove",), ("rename", ""), ("posix_rename", ""), ("open",)]
            for name, *more in calls:
                see(name, raised(lambda: str(getattr(sftp, name)(path, *more)), "errno"))  # noqa: B023
            see(raised(lambda: sftp.listdir_iter(path)), raised(lambda: next(sftp.listdir_iter(path))))  # noqa: B023
    sftp.chdir(None)
    see(raised(lambda: sftp.symlink("", f"{directory}/empty"))[0], raised(lambda: sftp.chmod("", 0o700), "errno"))
    see(raised(lambda: sftp.utime("", None), "errno"), raised(lambda: sftp.chown("", 0, 0), "errno"))
    see(raised(lambda: sftp.rmdir(""), "errno"), raised(lambda: sftp.chdir(""), "errno"))
    see(raised(lambda: sftp.put(about["key"], ""), "errno"), raised(lambda: sftp.get("", f"{directory}/x"), "errno"))
    client.close()


def default_keys(paramiko: Any, see: See, about: Any) -> None:
    """Keys in the user's home, an agent's, and passwords: of several that lead nowhere the last one tells."""
    home, directory = os.environ.get("HOME", ""), Path(about["directory"])
    os.environ["HOME"] = str(directory)
    (directory / ".ssh").mkdir()
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", directory / "s"], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    # It listens once it has said where.
    agent.stdout.readline()
    os.environ["SSH_AUTH_SOCK"] = str(directory / "s")

    def log_in(look_for_keys: bool = True, **more: Any) -> None:
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        # Servers let few wait who are not logged in.
        with client:
            client.connect(about["address"], about["port"], about["user"], look_for_keys=look_for_keys, **more)

    try:
        for beside in (None, about["encrypted"], about["other_key"]):
            if beside is not None:
                shutil.copy(beside, directory / ".ssh/id_ed25519")
            for more in ({}, {"key_filename": about["encrypted"]}, {"key_filename": about["other_key"]}):
                for password in (None, "wrong"):
                    see(beside, more, password, kind(lambda: log_in(password=password, **more)))  # noqa: B023
        see(raised(lambda: log_in(look_for_keys=False)))
        subprocess.run(["ssh-add", "-q", about["other_key"]], check=True, capture_output=True)
        see(raised(lambda: log_in(look_for_keys=False)))
        see(kind(lambda: log_in(look_for_keys=False, key_filename=about["encrypted"])))
    finally:
        os.environ["HOME"] = home
        del os.environ["SSH_AUTH_SOCK"]
        agent.terminate()
        agent.wait()


def full_buffers(paramiko: Any, see: See, about: Any) -> None:
    """A buffer that is full leaves as a whole."""
    client = _client(paramiko, about)
    channel = client.get_transport().open_session()
    channel.exec_command("cat")
    channel.settimeout(10)
    written, came = channel.makefile("w", 16), b""
    for piece in ("not full, ", "full by now, "):
        written.write(piece)
    while len(came) < 23:
        came += channel.recv(100)
    see(came)
    written.write("the rest")
    written.flush()
    see(channel.recv(100))
    path = f"{about['directory']}/file"
    with client.open_sftp() as sftp, sftp.open(path, "w", 16) as file:
        for size in (10, 5, 1, 40, 3):
            file.write(b"x" * size)
            see(os.stat(path).st_size)
    client.close()


def words_of_proxies(paramiko: Any, see: See, about: Any) -> None:
    """Standard error of a proxy command is kept, and not shown."""
    proxy = paramiko.ProxyCommand("sh -c 'echo trouble >&2; cat'")
    proxy.settimeout(10)
    see(proxy.send(b"hello"), proxy.recv(5), proxy.process.stderr.readline())
    proxy.close()
    ended = paramiko.ProxyCommand("true")
    ended.process.wait()
    see(raised(lambda: [ended.send(b"x") for _ in range(2)], "error"))


def sizes_of_keys(paramiko: Any, see: See, about: Any) -> None:
    for bits in (-1, 0, 100, 1023, 1024, 1100):
        see(bits, raised(lambda: paramiko.RSAKey.generate(bits)))  # noqa: B023
    for bits in (0, 128, 256, 384, 521, 999):
        see(bits, raised(lambda: paramiko.ECDSAKey.generate(bits=bits)))  # noqa: B023


def names_in_attributes(paramiko: Any, see: See, about: Any) -> None:
    """Only what was listed has a name."""
    client = _client(paramiko, about)
    sftp, path = client.open_sftp(), f"{about['directory']}/file"
    with sftp.open(path, "w") as file:
        file.utime((1_000_000_000, 1_000_000_000))
        found = [
            file.stat(),
            sftp.stat(path),
            sftp.lstat(path),
            paramiko.SFTPAttributes(),
            *sftp.listdir_attr(about["directory"]),
        ]
    found += [paramiko.SFTPAttributes.from_stat(os.stat(path), name) for name in (None, "", "name")]
    for attributes in found:
        see([getattr(attributes, name, "missing") for name in ("filename", "longname")], str(attributes).split(" ")[-1])
    client.close()


def algorithms(paramiko: Any, see: See, about: Any) -> None:
    """Algorithms chosen by the names that recipes use."""
    key = paramiko.Ed25519Key.from_private_key_file(about["key"])
    chosen = {
        "_preferred_ciphers": ("aes256-ctr",),
        "_preferred_macs": ["hmac-sha2-512"],
        "_preferred_keys": ("ssh-ed25519",),
        "_preferred_kex": ("ecdh-sha2-nistp384",),
    }

    def log_in(kind: Any, **more: Any) -> None:
        transport = kind((about["address"], about["port"]))
        for name, names in more.items():
            setattr(transport, name, names)
        options, names = transport.get_security_options(), {*more, *(() if kind is paramiko.Transport else vars(kind))}
        see(options.compression, [list(getattr(transport, name[1:])) for name in chosen if name in names])
        see(list(options.ciphers) == chosen["_preferred_ciphers"], list(options.kex) == chosen["_preferred_kex"])
        try:
            transport.start_client()
            transport.auth_publickey(about["user"], key)
            see("_preferred_ciphers" not in names or transport.remote_cipher, transport.host_key_type)
        finally:
            transport.close()

    log_in(paramiko.Transport, **chosen)
    log_in(type("Mine", (paramiko.Transport,), chosen))
    see(kind(lambda: log_in(paramiko.Transport, _preferred_ciphers=["aes128-cbc"])))
    see(kind(lambda: log_in(paramiko.Transport, _preferred_kex=("diffie-hellman-group1-sha1",))))
    see(kind(lambda: log_in(type("Old", (paramiko.Transport,), {"_preferred_keys": ("ecdsa-sha2-nistp521",)}))))
    before = paramiko.Transport._preferred_ciphers
    paramiko.Transport._preferred_ciphers = ("aes192-ctr",)
    try:
        client = _client(paramiko, about)
        see(client.get_transport().remote_cipher)
        client.close()
    finally:
        paramiko.Transport._preferred_ciphers = before
    transport = paramiko.Transport(
        (about["address"], about["port"]), disabled_algorithms={"ciphers": ["aes128-ctr"], "kex": ["ecdh-sha2-nistp256"]}
    )
    see("aes128-ctr" in transport.preferred_ciphers, "aes256-ctr" in transport.preferred_ciphers)
    see("ecdh-sha2-nistp256" in transport.preferred_kex, transport.preferred_compression)
    for compress in (True, False):
        transport.use_compression(compress)
        see(transport.get_security_options().compression, transport._preferred_compression)


on_openssh: dict[str, Program] = {
    "full buffers": full_buffers,
    "words of proxy commands": words_of_proxies,
    "files by their handles": by_handle,
    "log-ins with what is given in other forms": log_ins,
    "host key over a socket": host_key_over_a_socket,
    "copies of keys and of known hosts": keys,
    "commands of other types": commands,
    "files in the middle of being written": files,
    "progress": progress,
    "paths": paths,
    "algorithms by private names": algorithms,
    "sizes of keys": sizes_of_keys,
    "names in attributes": names_in_attributes,
    "default keys": default_keys,
}
