"""Programs that were written for parallel-ssh, on it and on this side by side."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Testbed, run_python, wait_until
from trunkline.compat.pssh import config as pssh_config
from trunkline.compat.pssh import exceptions, utils
from trunkline.compat.pssh.clients import ParallelSSHClient, SSHClient

OURS = "import trunkline.compat.pssh; trunkline.compat.pssh.install()\n"

#: What parallel-ssh's documentation shows; each prints what is to be the same.
PROGRAMS = {
    "output and status": """
output = client.run_command("echo $0 me; echo 'two  '; printf 'no end'; echo err >&2; exit 3")
client.join(output)
for host_out in output:
    show(host_out.host, list(host_out.stdout), list(host_out.stderr), host_out.exit_code, host_out.exception)
    show(host_out.fully_qualified_command)
""",
    "nothing to wait for": """
output = client.run_command("cat")
show([out.exit_code for out in output], client.finished(output))
for out in output:
    out.stdin.write("typed\\n")
    out.stdin.flush()
    out.channel.send_eof()
client.join(output)
show([list(out.stdout) for out in output], client.finished(output), [out.exit_code for out in output])
""",
    "arguments of hosts": """
output = client.run_command("echo %s", host_args=("first", "second", "third"))
show([list(out.stdout) for out in output])
output = client.run_command("echo %(word)s", host_args=[{"word": str(n)} for n in range(3)])
show([list(out.stdout) for out in output])
try:
    client.run_command("echo %s", host_args=["only"])
except HostArgumentError as error:
    show(type(error).__name__)
""",
    "shells and terminals": """
output = client.run_command("echo $0", shell="bash -c")
show([list(out.stdout) for out in output], output[0].fully_qualified_command)
output = client.run_command("test -t 1 && echo terminal; echo err >&2", use_pty=True)
show([(list(out.stdout), list(out.stderr)) for out in output])
""",
    "much output without reading": """
output = client.run_command("head -c 5000000 /dev/zero | tr '\\\\0' x; echo; head -c 5000000 /dev/zero >&2")
client.join(output)
show([len(next(iter(out.stdout))) for out in output])
client.join(output, consume_output=True)
show([list(out.stdout) for out in output])
""",
    "timeouts": """
output = client.run_command("echo first; cat", read_timeout=0.5)
for out in output:
    try:
        for line in out.stdout:
            show(line)
    except Timeout:
        show("timeout")
try:
    client.join(output, timeout=0.1)
except Timeout as error:
    show("still running", len(error.args))
for out in output:
    out.channel.send_eof()
client.join(output)
show(client.finished(output))
""",
    "encodings": """
output = client.run_command("printf '\\\\344\\\\n'", encoding="latin-1")
show([list(out.stdout) for out in output])
""",
    "one host": """
from pssh.clients import SSHClient
one = SSHClient(hosts[0], **arguments)
host_out = one.run_command("echo one")
show(list(host_out.stdout))
one.wait_finished(host_out)
show(host_out.exit_code)
with one.open_shell() as shell:
    shell.run("echo a")
    shell.run("echo b; exit 4")
show(list(shell.stdout), shell.exit_code)
""",
    "shells": """
shells = client.open_shell()
client.run_shell_commands(shells, ["cd /", "pwd"])
client.join_shells(shells)
show([list(shell.stdout) for shell in shells])
""",
    "files": """
import os, tempfile
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/source", "w") as file:
        file.write("content")
    jobs = client.copy_file(f"{folder}/source", f"{folder}/new/%(name)s/there", copy_args=[{"name": n} for n in "abc"])
    joinall(jobs, raise_error=True)
    show([open(f"{folder}/new/{n}/there").read() for n in "abc"])
    # Named apart: these hosts have one address.
    back = client.copy_remote_file(f"{folder}/source", f"{folder}/%(name)s", copy_args=[{"name": n} for n in "abc"])
    joinall(back, raise_error=True)
    show(sorted(os.listdir(folder)))
    os.makedirs(f"{folder}/tree/inner")
    open(f"{folder}/tree/inner/file", "w").close()
    one = client.copy_file(f"{folder}/tree", f"{folder}/%s", recurse=True, copy_args=["x", "y", "z"])
    joinall(one, raise_error=True)
    show(sorted(os.listdir(f"{folder}/y")), os.listdir(f"{folder}/y/inner"))
    jobs = client.copy_remote_file(f"{folder}/none", f"{folder}/never")
    joinall(jobs)
    show([isinstance(job.exception, Exception) for job in jobs])
    try:
        client.copy_file(f"{folder}/tree", f"{folder}/q")[0].get()
    except ValueError:
        show("not without recurse")
""",
}

PRELUDE = """
import json, sys
from gevent import joinall
from pssh.clients import ParallelSSHClient
from pssh.exceptions import HostArgumentError, Timeout
from pssh.config import HostConfig
hosts, user, ways = json.loads(sys.argv[1])
client = ParallelSSHClient(hosts, user=user, host_config=[HostConfig(port=port, private_key=key) for port, key in ways])
arguments = {"user": user, "port": ways[0][0], "pkey": ways[0][1]}
def show(*values):
    print(*map(repr, values), flush=True)
"""


@pytest.fixture
def arguments(testbed: Testbed) -> dict[str, Any]:
    host = testbed.about["hosts"][0]
    return {"user": host["user"], "pkey": host["key"]}


@pytest.fixture
def client(testbed: Testbed, arguments: dict[str, Any]) -> Iterator[ParallelSSHClient]:
    hosts = [host["address"] for host in testbed.about["hosts"]]
    settings = [
        pssh_config.HostConfig(port=port, private_key=host["key"])
        for port, host in zip(testbed.ports, testbed.about["hosts"])
    ]
    client = ParallelSSHClient(hosts, host_config=settings, num_retries=1, **arguments)
    yield client
    client.disconnect()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_the_same(name: str, testbed: Testbed) -> None:
    hosts = testbed.about["hosts"]
    about = json.dumps(
        [[host["address"] for host in hosts], hosts[0]["user"], [(host["port"], host["key"]) for host in hosts]]
    )
    program = PRELUDE + PROGRAMS[name]
    theirs = run_python(program, about)
    ours = run_python(OURS + program, about)
    assert ours.stdout, ours.stderr
    assert ours.stdout == theirs.stdout, ours.stderr


def test_a_host_that_fails_is_raised_or_a_value(client: ParallelSSHClient) -> None:
    client.host_config = None
    client.hosts = ["no-such-host.invalid"]
    with pytest.raises(exceptions.UnknownHostError):
        client.run_command("true")
    client.hosts = ["127.0.0.1"]
    client._arguments["port"] = 1
    (output,) = client.run_command("true", stop_on_errors=False)
    assert isinstance(output.exception, ConnectionError)
    assert (output.stdout, output.exit_code) == (None, None)
    client.join([output])


def test_a_wrong_key_is_not_tried_again(testbed: Testbed, tmp_path: Path, arguments: dict[str, Any]) -> None:
    from trunkline.compat.paramiko import Ed25519Key

    Ed25519Key.generate().write_private_key_file(tmp_path / "key")
    wrong = {**arguments, "pkey": str(tmp_path / "key"), "allow_agent": False}
    with pytest.raises(exceptions.AuthenticationError):
        SSHClient("127.0.0.1", port=testbed.ports[0], retry_delay=1000, **wrong)
    with pytest.raises(exceptions.PKeyFileError):
        SSHClient("127.0.0.1", port=testbed.ports[0], **{**arguments, "pkey": "/no/such/key"})


def test_a_proxy_leads_to_the_host(testbed: Testbed) -> None:
    hosts = testbed.about["hosts"]
    with SSHClient(
        hosts[1]["address"],
        user=hosts[1]["user"],
        port=hosts[1]["port"],
        pkey=Path(hosts[1]["key"]).read_bytes(),
        proxy_host=hosts[0]["address"],
        proxy_port=hosts[0]["port"],
        proxy_user=hosts[0]["user"],
        proxy_pkey=hosts[0]["key"],
    ) as inner:
        output = inner.run_command("echo ${SSH_CONNECTION##* }")
        assert list(output.stdout or ()) == [str(hosts[1]["port"])]


def test_lines_are_logged_as_they_are_read(client: ParallelSSHClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "pssh.host_logger"):
        client.join(client.run_command("echo line; echo trouble >&2"), consume_output=True)
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        ["[127.0.0.1]\tline", "[127.0.0.1]\t[err]\ttrouble"] * 3
    )
    utils.enable_host_logger()
    utils.host_logger.handlers.clear()


def test_no_thread_is_made_for_a_host(client: ParallelSSHClient) -> None:
    client.join(client.run_command("true"))
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        client.join(client.run_command("true"))
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_what_makes_no_sense_is_said() -> None:
    with pytest.raises(TypeError):
        ParallelSSHClient("localhost")
    with pytest.raises(ValueError, match="host configurations"):
        ParallelSSHClient(["a", "b"], host_config=[pssh_config.HostConfig()])
    with pytest.raises(exceptions.HostConfigError):
        ParallelSSHClient(["a"], host_config="b")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="port"):
        pssh_config.HostConfig(port="22")  # type: ignore[arg-type]
    with pytest.raises(exceptions.InvalidAPIUseError):
        ParallelSSHClient(["a"], keyboard_interactive=True)


def test_clients_that_are_forgotten_leave_nothing(testbed: Testbed, arguments: dict[str, Any]) -> None:
    def forget() -> None:
        client = ParallelSSHClient(["127.0.0.1"], port=testbed.ports[0], **arguments)
        (output,) = client.run_command("yes")
        assert next(output.stdout or iter(())) == "y"

    forget()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        forget()
    gc.collect()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)
