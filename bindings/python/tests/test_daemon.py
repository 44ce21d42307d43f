"""The same through the daemon, whose connections other processes share."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trunkline
from conftest import Testbed, run_python, time_is_up
from trunkline import _options


@pytest.fixture
def box(daemon: None, testbed: Testbed) -> Iterator[trunkline.Connection]:
    with trunkline.connect("box1", config=testbed.config, daemon=True) as connection:
        yield connection


def test_commands_run_through_the_daemon(box: trunkline.Connection) -> None:
    result = box.run("cat; echo err >&2; exit 3", input="in")
    assert (result.returncode, result.stdout, result.stderr) == (3, "in", "err\n")
    assert box.run("kill -TERM $$").signal == "TERM"
    assert box.run('echo "$TEST_ONE"', env={"TEST_ONE": "a b"}).stdout == "a b\n"
    data = os.urandom(5_000_000)
    assert box.run("cat", input=data, encoding=None).stdout == data
    assert box.run("stty size", terminal=trunkline.Terminal("vt100", 101, 33)).stdout.split() == ["33", "101"]


def test_who_uses_the_daemon_has_no_engine_of_its_own(daemon: None, testbed: Testbed) -> None:
    program = (
        "import sys, trunkline\nfrom pathlib import Path\n"
        "def kept():\n"
        "    return 'host-memory\\n' in [file.read_text() for file in Path('/proc/self/task').glob('*/comm')]\n"
        "def connect(daemon):\n"
        "    return trunkline.connect('box1', config=sys.argv[1], daemon=daemon)\n"
        "with connect(True) as box:\n    box.run('true', check=True)\n    print(kept())\n"
        "with connect(False) as box:\n    print(kept())\n"
    )
    done = run_python(program, testbed.config)
    assert (done.stdout, done.stderr) == ("False\nTrue\n", "")


def test_settings_bind_a_program_with_an_engine_of_its_own(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    # The file is read once in a process.
    program = (
        "import sys, trunkline, trunkline.compat.paramiko as paramiko\n"
        "def ssh2():\n"
        "    client = paramiko.SSHClient()\n"
        "    client.connect('box1.example', port=1, username='nobody', password='none')\n"
        "for daemon in (False, 'auto'):\n"
        "    try:\n        trunkline.connect('box1', config=sys.argv[1], daemon=daemon)\n"
        "    except trunkline.ConfigurationError as error:\n        print(error)\n"
        "try:\n    ssh2()\nexcept Exception as error:\n    print(error)\n"
        "print(trunkline.connect('box2', config=sys.argv[1], daemon=False).run('echo here').stdout)\n"
    )
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("TRUNKLINE_DIR", directory)
        settings = Path(directory) / "config.toml"
        settings.write_text("strict_hosts = ['box1*']\n")
        said = run_python(program, testbed.config).stdout.splitlines()
        assert (len(said), said[3]) == (5, "here")
        assert all("only shared connections may be used" in line for line in said[:3])
        settings.write_text("audit = 'loud'\n")
        assert f"{settings} line 1: audit is" in run_python(program, testbed.config).stdout


def test_its_errors_are_the_same(box: trunkline.Connection) -> None:
    error = time_is_up(lambda limit: box.run("echo early; exec sleep 1000", timeout=limit), b"early\n")
    assert error.execution == "may have started"
    with pytest.raises(trunkline.NetworkError) as unreached:
        trunkline.connect("127.0.0.1", port=1, config="none", daemon=True)
    assert (unreached.value.errno, unreached.value.address) == (errno.ECONNREFUSED, ("127.0.0.1", 1))
    with pytest.raises(trunkline.UnknownHostError):
        trunkline.connect("nowhere.invalid", config="none", daemon=True)


def test_a_refused_log_in_says_what_the_server_would_take(daemon: None, testbed: Testbed) -> None:
    with pytest.raises(trunkline.AuthenticationError) as caught:
        trunkline.connect("box1", config=testbed.config, options={"PubkeyAuthentication": "no"}, daemon=True)
    assert "publickey" in caught.value.allowed


def test_connections_are_told_in_one_form(box: trunkline.Connection, testbed: Testbed) -> None:
    with trunkline.connect("box1", config=testbed.config, daemon=False) as own:
        [here, *_], [there, *_] = own.stats(), box.stats()
    assert here.algorithms == there.algorithms
    assert len(here.algorithms.split()) == 3


def test_processes_have_streams(box: trunkline.Connection) -> None:
    with box.start("while read line; do echo got $line; done") as process:
        process.started()
        process.stdin.write("one\n")
        assert process.stdout.readline() == "got one\n"
        assert process.communicate("two\n") == ("got two\n", "")
    with box.start("sleep 1000") as process:
        process.started()
    with pytest.raises(trunkline.ClosedError) as caught:
        process.wait()
    assert caught.value.may_have_run


def test_files_and_ports_work_too(box: trunkline.Connection, tmp_path: Path) -> None:
    with box.sftp() as sftp:
        sftp.write_text(tmp_path / "file", "x")
        assert sftp.listdir(tmp_path) == ["file"]
    assert box.get(tmp_path / "file", tmp_path / "copy").files == 1
    with box.forward_local(0, 22) as forward:
        assert forward.port > 0


def test_other_processes_share_its_connections_and_auto_finds_it(box: trunkline.Connection, testbed: Testbed) -> None:
    program = (
        "import sys, trunkline\n"
        "box = trunkline.connect('box1', config=sys.argv[1])\n"
        "print(box.run('echo $SSH_CONNECTION').stdout, end='')\n"
    )
    ours = box.run("echo $SSH_CONNECTION").stdout
    done = run_python(program, testbed.config)
    assert (done.stdout, done.stderr) == (ours, "")
    assert box.stats()[0].server.startswith("SSH-2.0-OpenSSH")


def test_its_connections_are_let_go_when_asked(box: trunkline.Connection) -> None:
    first = box.run("echo $SSH_CONNECTION").stdout
    assert box.disconnect() >= 1
    assert box.run("echo $SSH_CONNECTION").stdout != first
    assert box.disconnect() == 1


def test_a_group_uses_it_too(daemon: None, testbed: Testbed) -> None:
    group = trunkline.Group("box[1-3]", config=testbed.config, daemon=True)
    assert all(result.ok for result in group.run("true"))


def test_a_daemon_that_ends_is_told_and_replaced(box: trunkline.Connection) -> None:
    process = box.start("echo up; exec sleep 1000")
    assert process.stdout.readline() == "up\n"
    subprocess.run([os.environ["TRUNKLINE_PROGRAM"], "stop", "--now"], check=True, capture_output=True)
    with pytest.raises(trunkline.Error) as caught:
        process.wait()
    assert caught.value.may_have_run
    assert box.run("echo again").stdout == "again\n"


def test_an_sftp_session_tells_that_its_daemon_was_killed(box: trunkline.Connection) -> None:
    told = subprocess.check_output([os.environ["TRUNKLINE_PROGRAM"], "status", "--json"])
    sftp = box.sftp()
    zeros = sftp.open("/dev/zero", "rb")
    assert zeros.read(10) == bytes(10)
    os.kill(json.loads(told)["pid"], signal.SIGKILL)

    def read_on() -> None:
        while zeros.read(2**20):
            pass

    with pytest.raises(trunkline.NetworkError, match="the daemon ended") as caught:
        read_on()
    assert caught.value.may_have_run
    with pytest.raises(trunkline.Error):
        zeros.close()
    assert box.run("echo again").stdout == "again\n"


def test_the_program_comes_with_the_package(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRUNKLINE_PROGRAM", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    # A socket's path has room for 107 bytes, which pytest's directories use up.
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("TRUNKLINE_DIR", directory)
        with trunkline.connect(testbed.aliases[0], config=testbed.config, daemon=True) as box:
            assert box.run("echo in").stdout == "in\n"
        program = Path(sys.executable).with_name("trunkline")
        subprocess.run([program, "stop", "--now"], check=True, capture_output=True)


def test_without_the_program_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRUNKLINE_PROGRAM", raising=False)
    monkeypatch.setattr(_options, "_packaged_program", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FileNotFoundError, match="TRUNKLINE_PROGRAM"):
        trunkline.connect("box1", daemon=True)
