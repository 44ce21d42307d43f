"""Programs of others that are written for Paramiko, as they are, from their own packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import Testbed, run_python
from trunkline.compat.paramiko import RSAKey

OURS = "import trunkline.compat.paramiko; trunkline.compat.paramiko.install()\n"

SSHTUNNEL = """
import socket, sys, sshtunnel
host, port, user, key = sys.argv[1:]
with sshtunnel.open_tunnel((host, int(port)), ssh_username=user, ssh_pkey=key, allow_agent=False, host_pkey_directories=[],
                           remote_bind_address=(host, int(port))) as tunnel:
    with socket.create_connection(("127.0.0.1", tunnel.local_bind_port)) as through:
        print(through.recv(4), tunnel.is_active, tunnel.tunnel_is_up != {})
print(tunnel.is_active)
"""

PYSFTP = """
import os, sys, tempfile, pysftp
host, port, user, key = sys.argv[1:]
options = pysftp.CnOpts()
options.hostkeys = None
with tempfile.TemporaryDirectory() as folder, pysftp.Connection(host, user, key, port=int(port), cnopts=options) as sftp:
    with open(folder + "/file", "w") as file:
        file.write("content")
    with sftp.cd(folder):
        sftp.put(folder + "/file", "there")
        print(sftp.listdir(), sftp.exists("there"), sftp.isfile("there"), sftp.stat("there").st_size)
        sftp.makedirs("a/b")
        sftp.get("there", folder + "/back")
        print(open(folder + "/back").read(), sftp.execute("echo ran"), sftp.isdir("a/b"))
    print(sftp.active_compression, type(sftp.remote_server_key).__name__ != "")
"""

JUMPSSH = """
import sys
from jumpssh import SSHSession
host, port, user, key = sys.argv[1:]
with SSHSession(host, user, port=int(port), private_key_file=key, look_for_keys=False).open() as gate:
    print(gate.get_cmd_output("echo first"), gate.is_active())
    inner = gate.get_remote_session(host, username=user, port=int(port), private_key_file=key, look_for_keys=False)
    print(inner.get_cmd_output("echo second"), inner.run_cmd("exit 3", raise_if_error=False).exit_code)
"""

SCP = """
import os, sys, tempfile, paramiko
from scp import SCPClient, SCPException
host, port, user, key = sys.argv[1:]
client = paramiko.SSHClient()
client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
client.connect(host, port=int(port), username=user, key_filename=key, allow_agent=False, look_for_keys=False)
with tempfile.TemporaryDirectory() as folder:
    os.makedirs(folder + "/tree/inner")
    with open(folder + "/tree/inner/file", "wb") as file:
        file.write(b"x" * 300000)
    done = []
    with SCPClient(client.get_transport(), progress=lambda name, size, sent: done.append((size, sent))) as scp:
        scp.put(folder + "/tree/inner/file", folder + "/one")
        scp.get(folder + "/one", folder + "/two")
        scp.put(folder + "/tree", folder + "/copy", recursive=True)
        scp.get(folder + "/copy", folder + "/back", recursive=True)
        print(os.path.getsize(folder + "/two"), os.listdir(folder + "/back/inner"), done[-1])
        try:
            scp.get(folder + "/none", folder + "/x")
        except SCPException as error:
            print(type(error).__name__, "No such file" in str(error))
client.close()
"""

PLUMBUM = """
import sys, tempfile
from plumbum.machines.paramiko_machine import ParamikoMachine
import paramiko
host, port, user, key = sys.argv[1:]
with ParamikoMachine(host, user=user, port=int(port), keyfile=key, load_system_host_keys=False,
                     missing_host_policy=paramiko.AutoAddPolicy(), look_for_keys=False, connect_timeout=20) as remote:
    print(remote["echo"]("hello"), remote["sh"]["-c", "exit 3"].run(retcode=None)[0])
    with remote.tempdir() as folder:
        (folder / "file").write("content")
        print((folder / "file").read(), [path.name for path in folder.list()], (folder / "file").exists())
    print(remote.env["HOME"] != "", remote.cwd == remote.env["HOME"])
    with remote.cwd("/"):
        print(remote["pwd"]())
"""

PROGRAMS = {"sshtunnel": SSHTUNNEL, "pysftp": PYSFTP, "jumpssh": JUMPSSH, "scp": SCP, "plumbum": PLUMBUM}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_runs(program: str, testbed: Testbed, tmp_path: Path) -> None:
    about = testbed.about["hosts"][0]
    # pysftp takes RSA keys only.
    key = RSAKey.generate(2048)
    key.write_private_key_file(tmp_path / "key")
    for authorized in testbed.folder.glob("**/authorized_keys"):
        with authorized.open("a") as file:
            file.write(f"\n{key.get_name()} {key.get_base64()}\n")
    arguments = about["address"], str(about["port"]), about["user"], str(tmp_path / "key")
    ours = run_python(OURS + program, *arguments)
    assert ours.returncode == 0, ours.stderr
    # pysftp wants names that Paramiko 4 dropped.
    if "pysftp" in program:
        assert "['file', 'there'] True True 7" in ours.stdout
        assert "content [b'ran\\n'] True" in ours.stdout
        return
    theirs = run_python(program, *arguments)
    assert theirs.returncode == 0 or "DSSKey" in theirs.stderr, theirs.stderr
    if theirs.returncode == 0:
        assert ours.stdout == theirs.stdout


def test_they_are_the_ones_that_are_named() -> None:
    import jumpssh
    import sshtunnel

    for module in (jumpssh, sshtunnel):
        assert Path(str(module.__file__)).is_relative_to(sys.prefix)
