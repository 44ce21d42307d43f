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
with tempfile.TemporaryDirectory() as directory, pysftp.Connection(host, user, key, port=int(port), cnopts=options) as sftp:
    with open(directory + "/file", "w") as file:
        file.write("content")
    with sftp.cd(directory):
        sftp.put(directory + "/file", "there")
        print(sftp.listdir(), sftp.exists("there"), sftp.isfile("there"), sftp.stat("there").st_size)
        sftp.makedirs("a/b")
        sftp.get("there", directory + "/back")
        print(open(directory + "/back").read(), sftp.execute("echo ran"), sftp.isdir("a/b"))
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
with tempfile.TemporaryDirectory() as directory:
    os.makedirs(directory + "/tree/inner")
    with open(directory + "/tree/inner/file", "wb") as file:
        file.write(b"x" * 300000)
    done = []
    with SCPClient(client.get_transport(), progress=lambda name, size, sent: done.append((size, sent))) as scp:
        scp.put(directory + "/tree/inner/file", directory + "/one")
        scp.get(directory + "/one", directory + "/two")
        scp.put(directory + "/tree", directory + "/copy", recursive=True)
        scp.get(directory + "/copy", directory + "/back", recursive=True)
        print(os.path.getsize(directory + "/two"), os.listdir(directory + "/back/inner"), done[-1])
        try:
            scp.get(directory + "/none", directory + "/x")
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
                     missing_host_policy=paramiko.AutoAddPolicy(), look_for_keys=False, connect_timeout=60) as remote:
    print(remote["echo"]("hello"), remote["sh"]["-c", "exit 3"].run(retcode=None)[0])
    with remote.tempdir() as directory:
        (directory / "file").write("content")
        print((directory / "file").read(), [path.name for path in directory.list()], (directory / "file").exists())
    print(remote.env["HOME"] != "", remote.cwd == remote["pwd"]().strip())
    with remote.cwd("/"):
        print(remote["pwd"]())
"""

SPUR = """
import io, sys, tempfile, time, spur
host, port, user, key = sys.argv[1:]
shell = spur.SshShell(hostname=host, port=int(port), username=user, private_key_file=key, load_system_host_keys=False,
                      missing_host_key=spur.ssh.MissingHostKey.accept, look_for_private_keys=False)
with shell, tempfile.TemporaryDirectory() as directory:
    print(shell.run(["echo", "-n", "hello"]).output, shell.run(["sh", "-c", "exit 4"], allow_error=True).return_code)
    try:
        shell.run(["sh", "-c", "echo oops >&2; exit 3"])
    except spur.RunProcessError as error:
        print(error.return_code, error.stderr_output)
    print(shell.run(["sh", "-c", "pwd; echo $X"], cwd="/", update_env={"X": "y"}, encoding="utf-8").output)
    shown = io.BytesIO()
    process = shell.spawn(["cat"], store_pid=True, stdout=shown)
    process.stdin_write(b"in")
    print(process.is_running(), process.pid > 0)
    while shown.getvalue() != b"in":  # What a signal comes before is lost.
        time.sleep(0.01)
    process.send_signal(15)
    try:
        process.wait_for_result()
    except spur.RunProcessError as error:
        print(error.return_code, error.output)
    written = io.BytesIO()
    shell.run(["echo", "streamed"], stdout=written)
    print(written.getvalue(), shell.run(["tty"], use_pty=True, allow_error=True).output.startswith(b"/dev/pts"))
    try:
        shell.run(["no-such-command"])
    except spur.NoSuchCommandError as error:
        print(type(error).__name__)
    with shell.open(directory + "/file", "w") as file:
        file.write("content")
    with shell.open(directory + "/file") as file:
        print(file.read())
for more in {"password": "wrong", "missing_host_key": spur.ssh.MissingHostKey.accept}, {"private_key_file": key}:
    try:
        spur.SshShell(hostname=host, port=int(port), username=user, look_for_private_keys=False, **more).run(["true"])
    except spur.ssh.ConnectionError as error:
        print(type(error.__cause__ or error.__context__).__name__)
"""

EXPECT = """
import sys, paramiko
from paramiko_expect import SSHClientInteraction
host, port, user, key = sys.argv[1:]
client = paramiko.SSHClient()
client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
client.connect(host, port=int(port), username=user, key_filename=key, allow_agent=False, look_for_keys=False)
# It looks at the last lines that have come. With one, what is waited for is missed when the prompt behind it comes along.
with SSHClientInteraction(client, timeout=60, display=False, lines_to_check=20) as shell:
    # Written in two, so that the terminal's echo is not it.
    shell.send("echo o'n'e")
    print(shell.expect([".*one.*", ".*two.*"]))
    shell.send("echo re'a'dy; read x; echo g'o't $x")
    # Paramiko-expect ends a line with a carriage return. One that arrives while the shell's line editor has the terminal
    # in raw mode stays one, and `read` waits for ever: type when the command runs.
    shell.expect(".*ready.*")
    shell.send("word")
    print(shell.expect(".*got word.*"))
    shell.send("exit")
    shell.expect()
client.close()
"""

FABRIC = """
import io, os, sys, tempfile, fabric
from invoke.exceptions import CommandTimedOut, UnexpectedExit
from paramiko.ssh_exception import AuthenticationException, SSHException
host, port, user, key = sys.argv[1:]
quiet = fabric.config.Config(overrides={"run": {"in_stream": False, "hide": True}, "load_ssh_configs": False})
def connection(**more):
    given = {"key_filename": key, "look_for_keys": False, "allow_agent": False, **more.pop("connect_kwargs", {})}
    return fabric.Connection(host, user=user, port=int(port), config=quiet, connect_kwargs=given, **more)
with connection() as box, tempfile.TemporaryDirectory() as directory:
    print(box.is_connected, box.run("echo out; echo err >&2").stderr, box.is_connected, box.transport.active)
    print(repr(box.run("exit 4", warn=True)), box.run("echo $NAME", env={"NAME": "value"}).stdout)
    print(box.run("cat", in_stream=io.StringIO("typed")).stdout, box.run("stty size", pty=True).stdout != "")
    try:
        box.run("echo oops; exit 3")
    except UnexpectedExit as error:
        print(error.result.return_code, error.result.stdout)
    try:
        box.run("sleep 100", timeout=0.3)
    except (CommandTimedOut, UnexpectedExit) as error:
        # Invoke takes an end that it sees before its timer's thread has ended for one of the command's own.
        print(error.result.exited)
    with open(directory + "/source", "wb") as file:
        file.write(b"x" * 100000)
    os.chmod(directory + "/source", 0o640)
    put = box.put(directory + "/source", directory + "/there")
    print(put.remote == directory + "/there", oct(os.stat(put.remote).st_mode))
    print(box.get(put.remote, directory + "/back").local == directory + "/back")
    into = io.BytesIO()
    box.get(put.remote, into)
    print(len(into.getvalue()), box.put(io.StringIO("text"), directory + "/text").remote == directory + "/text")
    print(box.run("cat " + directory + "/text").stdout)
    for call in (lambda: box.get(directory + "/none", directory + "/x"), lambda: box.put(directory + "/none")):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, error.errno)
    box.close()
    print(box.is_connected, box.run("echo again").stdout)
with connection(gateway=connection()) as inner:
    print(inner.run("echo through the gate").stdout)
for more in {"connect_kwargs": {"key_filename": [], "password": "wrong"}}, {"connect_timeout": 5, "gateway": "sh -c false"}:
    try:
        connection(**more).run("true")
    except SSHException as error:
        # Of a command that ends at once Paramiko may hear in two ways.
        print(isinstance(error, AuthenticationException))
group = fabric.ThreadingGroup.from_connections([connection(), connection()])
print(sorted(each.stdout for each in group.run("echo all").values()))
try:
    group.run("exit 2")
except fabric.exceptions.GroupException as error:
    print(len(error.result.failed), [type(each).__name__ for each in error.result.failed.values()])
group.close()
"""

NETMIKO = """
import socket, sys, tempfile
from netmiko import ConnectHandler, NetmikoAuthenticationException, NetmikoTimeoutException, file_transfer
from netmiko.exceptions import ReadTimeout
host, port, user, key = sys.argv[1:]
device = {"device_type": "linux", "host": host, "port": int(port), "username": user, "use_keys": True, "key_file": key}
with tempfile.TemporaryDirectory() as directory, ConnectHandler(**device, session_log=directory + "/log") as box:
    print(box.is_alive(), box.find_prompt()[:-1] == box.base_prompt, box.send_command("echo one; echo two"))
    print(len(box.send_command("seq 5000").split()), box.send_command_timing("echo ti'm'ed").strip())
    print(box.send_command("echo $((6 * 7))"), "done" in box.send_command("echo d'o'ne", expect_string=r"done"))
    print(box.send_multiline(["echo a'b'c", "echo d'e'f"]).count("\\n") > 1)
    try:
        box.send_command("sleep 100", read_timeout=0.5)
    except ReadTimeout as error:
        print(type(error).__name__)
    box.write_channel("\\x03")
    box.clear_buffer()
with tempfile.TemporaryDirectory() as directory, ConnectHandler(**device) as box:
    with open(directory + "/source", "w") as file:
        file.write("content" * 1000)
    options = {"file_system": directory, "overwrite_file": True, "verify_file": False, "disable_md5": True}
    print(file_transfer(box, source_file=directory + "/source", dest_file="there", direction="put", **options))
    print(file_transfer(box, source_file="there", dest_file=directory + "/back", direction="get", **options))
    with open(directory + "/back") as file:
        print(len(file.read()))
    box.disconnect()
    print(box.is_alive())
with socket.socket() as unused:
    # Nobody listens there, and nobody else is given it.
    unused.bind(("127.0.0.1", 0))
    wrong = {"use_keys": False, "key_file": None, "password": "wrong"}
    for more in wrong, {"port": unused.getsockname()[1], "conn_timeout": 3}, {"host": "no-such-host.invalid"}:
        try:
            ConnectHandler(**{**device, **more})
        except (NetmikoAuthenticationException, NetmikoTimeoutException) as error:
            print(type(error).__name__, str(error).split("\\n")[0].split(":")[0])
"""

#: Netmiko on the command line of a switch.
SWITCH = """
import sys
from netmiko import ConnectHandler
from netmiko.exceptions import ReadTimeout
host, port, user, key = sys.argv[1:]
device = {"device_type": "cisco_ios", "host": host, "port": int(port), "username": user, "use_keys": True, "key_file": key,
          "secret": "swordfish"}
with ConnectHandler(**device) as switch:
    print(switch.find_prompt(), switch.check_enable_mode(), switch.send_command("show version"))
    switch.enable()
    print(switch.find_prompt(), switch.check_config_mode(), len(switch.send_command("show log")))
    print(switch.send_config_set(["interface Gi1", "description up'link", "no shutdown"]))
    print(switch.send_command("show running-config"), switch.send_command("show nonsense"))
    print(switch.send_command("reload", expect_string="confirm"), switch.send_command("y", expect_string="#"))
    print(switch.save_config(), switch.is_alive())
    try:
        switch.send_command("show version", expect_string="never", read_timeout=0.5)
    except ReadTimeout as error:
        print(type(error).__name__)
try:
    with ConnectHandler(**{**device, "secret": "wrong"}) as switch:
        switch.enable()
except ValueError as error:
    print(type(error).__name__)
"""

PROGRAMS = {
    "sshtunnel": SSHTUNNEL,
    "pysftp": PYSFTP,
    "jumpssh": JUMPSSH,
    "fabric": FABRIC,
    "netmiko": NETMIKO,
    "scp": SCP,
    "plumbum": PLUMBUM,
    "spur": SPUR,
    "paramiko-expect": EXPECT,
}


#: How many seconds a program may take.
TIMEOUT = 180


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_runs(program: str, testbed: Testbed, tmp_path: Path) -> None:
    about = testbed.about["hosts"][0]
    # pysftp takes RSA keys only.
    key = RSAKey.generate(2048)
    key.write_private_key_file(tmp_path / "key")
    for authorized in testbed.directory.glob("**/authorized_keys"):
        with authorized.open("a") as file:
            file.write(f"\n{key.get_name()} {key.get_base64()}\n")
    arguments = about["address"], str(about["port"]), about["user"], str(tmp_path / "key")
    ours = run_python(OURS + program, *arguments, timeout=TIMEOUT)
    assert ours.returncode == 0, ours.stderr
    # pysftp wants names that Paramiko 4 dropped.
    if "pysftp" in program:
        assert "['file', 'there'] True True 7" in ours.stdout
        assert "content [b'ran\\n'] True" in ours.stdout
        return
    # The original has races of its own.
    for _ in range(3):
        theirs = run_python(program, *arguments, timeout=TIMEOUT)
        if theirs.returncode == 0 or "DSSKey" in theirs.stderr:
            break
    assert theirs.returncode == 0 or "DSSKey" in theirs.stderr, theirs.stderr
    if theirs.returncode == 0:
        assert ours.stdout == theirs.stdout


def test_netmiko_runs_on_a_switch() -> None:
    bed = Testbed("--config", f"ForceCommand {sys.executable} {Path(__file__).with_name('cli_of_a_switch.py')}")
    about = bed.about["hosts"][0]
    arguments = about["address"], str(about["port"]), about["user"], about["key"]
    # netmiko waits a fixed time for a prompt: on a busy machine it may read one twice, over either library.
    for _ in range(3):
        ours, theirs = (run_python(before + SWITCH, *arguments, timeout=TIMEOUT) for before in (OURS, ""))
        if ours.returncode == theirs.returncode == 0 and ours.stdout == theirs.stdout:
            break
    bed.close()
    assert ours.returncode == theirs.returncode == 0, ours.stderr + theirs.stderr
    assert ours.stdout == theirs.stdout


def test_they_are_the_ones_that_are_named() -> None:
    import jumpssh
    import sshtunnel

    for module in (jumpssh, sshtunnel):
        assert Path(str(module.__file__)).is_relative_to(sys.prefix)
