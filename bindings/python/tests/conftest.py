"""Real servers for the tests: stock sshd on loopback, from the workspace's testkit."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trunkline

WORKSPACE = Path(__file__).resolve().parents[3]

ANSIBLE_PLUGIN = "trunkline.ssh.trunkline"
ANSIBLE_PLAYBOOKS = Path(__file__).parent / "ansible"

#: What Ansible's results have that no two runs have in common.
VOLATILE = {
    "start",
    "end",
    "delta",
    "ansible_job_id",
    "results_file",
    "elapsed",
    "warnings",
    "exception",
    "ansible_facts",
    "invocation",
}

#: Virtual environments with the wheel and an ansible-core each, which scripts/python makes.
ANSIBLE_ENVIRONMENTS: list[Path | None] = [Path(path) for path in os.environ.get("TRUNKLINE_ANSIBLE", "").split(":") if path]


class Testbed:
    """Servers that run until ``close``."""

    __test__ = False

    def __init__(self, *arguments: str) -> None:
        program = os.environ.get("TRUNKLINE_TESTBED", str(WORKSPACE / "target/debug/trunkline-testbed"))
        if not Path(program).exists():
            pytest.fail(f"{program} is missing: cargo build -p trunkline-testkit --bins")
        self._process = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.about: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.config: str = self.about["ssh_config"]
        self.aliases: list[str] = self.about["aliases"]
        self.ports: list[int] = self.about["ports"]
        self.directory = Path(self.about["dir"])

    def close(self) -> None:
        self._process.communicate()


class Ansible:
    """Ansible in a directory of its own, where all hosts are reached by the plugin."""

    def __init__(self, environment: Path, directory: Path, bed: Testbed) -> None:
        self._bin = environment / "bin"
        self.directory = directory
        (directory / "hosts").write_text("\n".join([*bed.aliases, f"[all:vars]\nansible_ssh_common_args=-F {bed.config}\n"]))
        (directory / "ansible.cfg").write_text(
            f"[defaults]\ntransport={ANSIBLE_PLUGIN}\ninventory=hosts\nforks=20\ninterpreter_python=/usr/bin/python3\n"
            f"remote_tmp={directory}/tmp\nlocal_tmp={directory}/local\n"
        )

    def run(self, program: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs one of Ansible's programs."""
        env = {**os.environ, "LC_ALL": "C.UTF-8", "ANSIBLE_HOME": f"{self.directory}/home", **env}
        command = [str(self._bin / program), *arguments]
        return subprocess.run(command, cwd=self.directory, env=env, capture_output=True, text=True, timeout=300)

    def play(self, name: str, **env: str) -> None:
        """Runs one of the playbooks, which must succeed."""
        done = self.run("ansible-playbook", str(ANSIBLE_PLAYBOOKS / name), "-e", f"directory={self.directory}", **env)
        assert done.returncode == 0, done.stdout + done.stderr

    def plays_by_both_plugins(
        self, inventory: dict[str, Any], plays: list[dict[str, Any]], **env: str
    ) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
        """Runs plays on hosts of which some have core's plugin: what it said, and its record of each task."""
        (self.directory / "hosts.json").write_text(json.dumps(inventory))
        (self.directory / "plays.json").write_text(json.dumps(plays))
        record = self.directory / "record"
        env = {
            "ANSIBLE_CALLBACK_PLUGINS": f"{ANSIBLE_PLAYBOOKS}/callback_plugins",
            "ANSIBLE_CALLBACKS_ENABLED": "record",
            "RECORD": str(record),
            **env,
        }
        # Core's sockets: a path has room for 107 bytes, which the directory uses up.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as sockets:
            env["ANSIBLE_SSH_CONTROL_PATH_DIR"] = sockets
            done = self.run("ansible-playbook", "plays.json", "-i", "hosts.json", **env)
        return done, [json.loads(line) for line in record.read_text().splitlines()]

    def task(self, module: str, argument: str, *arguments: str, **env: str) -> dict[str, Any]:
        """Runs a task on the first host, and returns its result as Ansible has it."""
        tree = self.directory / "tree"
        done = self.run("ansible", "box1", "-m", module, "-a", argument, "--tree", str(tree), *arguments, **env)
        assert (tree / "box1").exists(), done.stdout + done.stderr
        result: dict[str, Any] = json.loads((tree / "box1").read_text())
        return result


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps the tests away from the user's daemon, host memory and agent."""
    # A socket's path has room for 107 bytes, which pytest's directories use up.
    os.environ["TRUNKLINE_DIR"] = str(tmp_path_factory.mktemp("state"))
    os.environ.pop("SSH_AUTH_SOCK", None)


@pytest.fixture(scope="session")
def testbed() -> Iterator[Testbed]:
    bed = Testbed("--servers", "3", "--config", "MaxStartups 500", "--config", "AcceptEnv TEST_*")
    yield bed
    bed.close()


@pytest.fixture
def box(testbed: Testbed) -> Iterator[trunkline.Connection]:
    """A connection to one server, in this process."""
    with trunkline.connect(testbed.aliases[0], config=testbed.config, daemon=False) as connection:
        yield connection


@pytest.fixture
def ssh_agent(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of an agent without keys, which SSH_AUTH_SOCK names."""
    socket = tmp_path_factory.mktemp("agent") / "s"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    # It is there before anybody listens on it.
    wait_until(
        lambda: (
            subprocess.run(
                ["ssh-add", "-l"], env={**os.environ, "SSH_AUTH_SOCK": str(socket)}, capture_output=True
            ).returncode
            < 2
        )
    )
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    yield socket
    process.terminate()
    process.wait()


def remove_directory(directory: Path) -> None:
    """Removes a directory of which a daemon that is ending may be removing files, too."""

    def on_failure(_function: object, _path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(error[1], FileNotFoundError):
            raise error[1]

    shutil.rmtree(directory, onerror=on_failure)


@pytest.fixture(scope="module")
def daemon(own_state: None) -> Iterator[None]:
    """The program trunkline, which starts the daemon, in a directory of this module's own."""
    program = os.environ.get("TRUNKLINE_PROGRAM", str(WORKSPACE / "target/debug/trunkline"))
    if not Path(program).exists():
        pytest.fail(f"{program} is missing: cargo build --workspace --bins")
    # A socket's path has room for 107 bytes.
    directory = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRUNKLINE_PROGRAM", program)
        patch.setenv("TRUNKLINE_DIR", str(directory))
        yield
        subprocess.run([program, "stop", "--now"], check=True, capture_output=True)
    remove_directory(directory)


@pytest.fixture(scope="module", params=ANSIBLE_ENVIRONMENTS or [None], ids=lambda path: path.name if path else "none")
def environment(request: pytest.FixtureRequest) -> Path:
    path: Path | None = request.param
    if path is None:
        pytest.fail("TRUNKLINE_ANSIBLE is not set: run scripts/python")
    return path


@pytest.fixture
def ansible(environment: Path, daemon: None, testbed: Testbed, tmp_path: Path) -> Ansible:
    return Ansible(environment, tmp_path, testbed)


@pytest.fixture
def ansible_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the program that reads inventories on the path."""
    if not ANSIBLE_ENVIRONMENTS:
        pytest.fail("TRUNKLINE_ANSIBLE is not set: run scripts/python")
    monkeypatch.setenv("PATH", f"{ANSIBLE_ENVIRONMENTS[0]}/bin:{os.environ['PATH']}")


def run_python(program: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs a program in an interpreter of its own, which must end by itself."""
    return subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def time_is_up(run: Callable[[float], object], written: bytes) -> trunkline.TimeoutError:
    """The error of a command that is ended when it has written this: a busy machine needs more than the first limit."""
    for limit in (0.5, 5, 60):
        with pytest.raises(trunkline.TimeoutError) as caught:
            run(limit)
        if caught.value.stdout == written:
            break
    assert caught.value.stdout == written
    return caught.value


def wait_until(true: Callable[[], bool]) -> None:
    """Waits for something that another process or thread brings about."""
    pause = threading.Event()
    for _ in range(3000):
        if true():
            return
        pause.wait(0.01)
    pytest.fail("it did not come true")


#: Ends all processes that name a directory in their environment, when who holds its standard input has gone.
LEASH = """
read -r released && exit
for round in 1 2 3; do
    grep -lzF -- "$1/" /proc/[0-9]*/environ 2>/dev/null | while IFS=/ read -r _ _ pid _; do kill -KILL "$pid"; done
done
rm -rf -- "$1"
"""


class Fleet:
    """A NATS server and two nodes, which reach a testbed's servers; this process is who submits."""

    def __init__(self, bed: Testbed, program: str) -> None:
        self._program = program
        # A socket's path has room for 107 bytes.
        self.directory = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
        # Held without listening: whoever sets SO_REUSEADDR gets it, as nats-server does, and nobody who asks for any port.
        self._port = socket.socket()
        self._port.bind(("127.0.0.1", 0))
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = self._port.getsockname()[1]
        self.url = f"nats://127.0.0.1:{port}"
        settings = self.directory / "nats.conf"
        settings.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{self.directory}/store" }}\n')
        self._processes: list[subprocess.Popen[bytes]] = []
        # pytest may be killed.
        leash = ["/bin/sh", "-c", LEASH, "leash", str(self.directory)]
        self._leash = subprocess.Popen(leash, stdin=subprocess.PIPE, start_new_session=True)
        self._begin(["nats-server", "-c", str(settings)], "nats")
        wait_until(lambda: self._ask("init", self.url).returncode == 0)
        key = self._ask("key").stdout.strip()
        for name in ("node1", "node2"):
            join = [program, "fleet", "join", self.url, "--name", name, "--allow", key, "--ssh-config", bed.config]
            self._begin(join, name)
        wait_until(lambda: sum(node["shards"] for node in self.status()["nodes"] if node["shards"] > 50) == 256)

    @property
    def operator(self) -> Path:
        """The directory of who submits."""
        return self.directory / "operator"

    def _begin(self, command: list[str], name: str) -> None:
        quiet = subprocess.DEVNULL
        self._processes.append(subprocess.Popen(command, env=self._env(name), stdout=quiet, stderr=quiet))

    def _env(self, name: str) -> dict[str, str]:
        return {**os.environ, "TRUNKLINE_DIR": str(self.directory / name)}

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self._program, "fleet", *arguments]
        return subprocess.run(command, env=self._env("operator"), capture_output=True, text=True)

    def status(self) -> dict[str, Any]:
        done = self._ask("status", "--json")
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def is_idle(self) -> bool:
        """Whether no node executes anything."""
        return all(job["running"] == 0 for job in self.status()["jobs"])

    def stop_daemons(self) -> None:
        """Ends the daemons under the nodes, and what runs in them."""
        self._stop("node1", "node2")

    def _stop(self, *names: str) -> None:
        for name in names:
            subprocess.run([self._program, "stop", "--now"], env=self._env(name), capture_output=True)

    def close(self) -> None:
        nats, *nodes = self._processes
        for node in nodes:
            node.kill()
            node.wait()
        self._stop("node1", "node2", "operator")
        nats.kill()
        nats.wait()
        self._port.close()
        self._leash.communicate(b"released\n")
        remove_directory(self.directory)


@pytest.fixture(scope="module")
def fleet(own_state: None, testbed: Testbed) -> Iterator[Fleet]:
    """A fleet of two nodes, to which this process submits."""
    program = os.environ.get("TRUNKLINE_PROGRAM", str(WORKSPACE / "target/debug/trunkline"))
    fleet = Fleet(testbed, program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRUNKLINE_PROGRAM", program)
        patch.setenv("TRUNKLINE_DIR", str(fleet.operator))
        yield fleet
    fleet.close()
