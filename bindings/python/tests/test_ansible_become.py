"""Becoming another user by the system's own sudo and su, which ask for real passwords: beside core's ``ssh`` plugin.

The users are those of a namespace: nothing of the machine's own is changed. sudo asks root for nothing, so that they log in
as somebody else, which takes root to arrange.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import ANSIBLE_PLUGIN, Ansible, Testbed, remove_directory, wait_until

Variables = dict[str, Any]

#: Of all users, and of root.
PASSWORD = "open sesame"
WRONG: Variables = {"ansible_become_password": "wrong"}
RIGHT: Variables = {"ansible_become_password": PASSWORD}
SU: Variables = {"ansible_become_method": "su"}

#: By name, numbers from the first on.
USERS = ("tl-asked", "tl-free", "tl-nobody", "tl-slow", "tl-terminal", "tl-other")
FIRST_NUMBER = 47110

SUDOERS = """
Defaults timestamp_timeout=0, !syslog, passwd_tries=2
Defaults:tl-terminal requiretty
tl-asked, tl-slow, tl-terminal ALL=(ALL:ALL) ALL
tl-free ALL=(ALL:ALL) NOPASSWD: ALL
"""

#: tl-slow waits for its prompt.
PAM = """
auth [success=ignore default=1] pam_succeed_if.so quiet user = tl-slow
auth optional pam_exec.so quiet /bin/sleep 8
auth sufficient pam_rootok.so
auth required pam_unix.so nodelay
account required pam_permit.so
session required pam_permit.so
"""


@dataclass(frozen=True)
class Case:
    """A user who logs in, and what both messages have."""

    user: str
    vars: Variables
    says: str = ""
    #: The end of both messages depends on the version of Ansible, and so does the outcome.
    outcome: str | None = "ok"


CASES = {
    "right": Case("tl-asked", RIGHT),
    "wrong": Case("tl-asked", WRONG, "Incorrect sudo password", "failed"),
    "missing": Case("tl-asked", {}, "Missing sudo password", "failed"),
    "other": Case("tl-asked", {**RIGHT, "ansible_become_user": "tl-other"}),
    "flags": Case("tl-asked", {**RIGHT, "ansible_become_flags": "-H -S -i"}),
    "no-terminal": Case("tl-asked", {**RIGHT, "ansible_ssh_use_tty": False}),
    "no-terminal-wrong": Case("tl-asked", {**WRONG, "ansible_ssh_use_tty": False}, "Incorrect sudo password", "failed"),
    "not-pipelined": Case("tl-asked", {**RIGHT, "ansible_pipelining": False}),
    "free": Case("tl-free", {}),
    "free-with-password": Case("tl-free", RIGHT),
    "may-not": Case("tl-nobody", RIGHT, "", "failed"),
    "no-such-user": Case("tl-free", {"ansible_become_user": "tl-not-there"}, "", "failed"),
    "slow": Case(
        "tl-slow", {**RIGHT, "ansible_ssh_timeout": 1}, "Timeout (3s) waiting for privilege escalation prompt:", None
    ),
    "slow-enough": Case("tl-slow", {**RIGHT, "ansible_ssh_timeout": 20}),
    "wants-terminal": Case("tl-terminal", {**RIGHT, "ansible_pipelining": False}),
    "su": Case("tl-asked", {**SU, **RIGHT}),
    "su-wrong": Case("tl-asked", {**SU, **WRONG}, "Incorrect su password", "failed"),
    # Modules go by files here, which the other user may read only where there are access control lists.
    "su-other": Case("tl-asked", {**SU, **RIGHT, "ansible_become_user": "tl-other"}, outcome=None),
    "su-missing": Case(
        "tl-asked", {**SU, "ansible_ssh_timeout": 1}, "Timeout (3s) waiting for privilege escalation prompt:", None
    ),
}

#: A line by the shell, and a module by Python.
TASKS: dict[str, Variables] = {
    "raw": {"raw": "id -un; echo out; exit 3", "failed_when": False},
    "module": {"command": "id -un"},
}


class Realm:
    """A server whose users are its own."""

    def __init__(self, directory: Path) -> None:
        self.key = directory / "key"
        for name in ("key", "host"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
        digest = subprocess.check_output(["openssl", "passwd", "-6", PASSWORD], text=True).strip()
        files = {name: Path("/etc", name).read_text() for name in ("passwd", "group", "shadow")}
        files["shadow"] = "".join(
            f"root:{digest}:1::::::\n" if line.startswith("root:") else f"{line}\n" for line in files["shadow"].splitlines()
        )
        for number, user in enumerate(USERS, FIRST_NUMBER):
            home = directory / user
            home.mkdir()
            os.chown(home, number, number)
            files["passwd"] += f"{user}:x:{number}:{number}::{home}:/bin/bash\n"
            files["group"] += f"{user}:x:{number}:\n"
            files["shadow"] += f"{user}:{digest}:1::::::\n"
        files |= {"sudoers": SUDOERS, "pam.d/sudo": PAM, "pam.d/sudo-i": PAM, "pam.d/su": PAM}
        mounts = []
        for name, content in files.items():
            file = directory / name.replace("/", "-")
            file.write_text(content)
            file.chmod(0o440 if name in ("shadow", "sudoers") else 0o644)
            mounts.append(f"mount --bind {file} /etc/{name}")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        config = directory / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {directory}/host\nAuthorizedKeysFile {directory}/key.pub\n"
            "StrictModes no\nUsePAM no\nPidFile none\nMaxStartups 500\nSubsystem sftp internal-sftp\n"
        )
        (directory / "known").write_text(f"realm {(directory / 'host.pub').read_text()}")
        self.known = directory / "known"
        Path("/run/sshd").mkdir(exist_ok=True)
        script = " && ".join([*mounts, f'exec "{shutil.which("sshd", path=SBIN)}" -D -e -f "{config}"'])
        with open(directory / "log", "w") as log:
            self._server = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-c", script], stderr=log, stdin=subprocess.DEVNULL
            )
        wait_until(lambda: self._server.poll() is not None or self._listens())
        assert self._server.poll() is None, (directory / "log").read_text()

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()


SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@pytest.fixture(scope="module")
def realm() -> Iterator[Realm]:
    if os.geteuid() != 0:
        pytest.fail("sudo needs users whom it asks for passwords, whom only root can make: run this test as root")
    missing = [name for name in ("sudo", "su", "unshare", "openssl") if shutil.which(name) is None]
    assert not missing, f"missing programs: {missing}; scripts/python installs them"
    # Everybody is to get at their home, which pytest's directories do not allow.
    directory = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    directory.chmod(0o755)
    realm = Realm(directory)
    yield realm
    realm.close()
    remove_directory(directory)


class Outcomes:
    """The results of each case, by plugin."""

    def __init__(self, ansible: Ansible, realm: Realm) -> None:
        hosts: dict[str, Variables] = {}
        for plugin, connection in (("core", "ssh"), ("ours", ANSIBLE_PLUGIN)):
            for name, case in CASES.items():
                hosts[f"{plugin}-{name}"] = {"ansible_connection": connection, "ansible_user": case.user, **case.vars}
        everywhere = {
            "ansible_host": "127.0.0.1",
            "ansible_port": realm.port,
            "ansible_become": True,
            "ansible_pipelining": True,
            "ansible_remote_tmp": "~/.ansible/tmp",
            "ansible_ssh_private_key_file": str(realm.key),
            "ansible_ssh_common_args": f"-F none -o HostKeyAlias=realm -o UserKnownHostsFile={realm.known}",
        }
        tasks = [{"name": name, **task} for name, task in TASKS.items()]
        play = {"hosts": "all", "gather_facts": False, "strategy": "free", "tasks": tasks}
        self.done, results = ansible.plays_by_both_plugins(
            {"all": {"vars": everywhere, "hosts": hosts}},
            [{**play, "ignore_errors": True, "ignore_unreachable": True}],
            ANSIBLE_FORKS="8",
        )
        self.found: dict[tuple[str, str], tuple[str, Variables]] = {
            (told["host"], told["task"]): (told["outcome"], told["result"]) for told in results
        }


@pytest.fixture(scope="module")
def outcomes(
    environment: Path, daemon: None, testbed: Testbed, realm: Realm, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    return Outcomes(Ansible(environment, tmp_path_factory.mktemp("become"), testbed), realm)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", CASES)
def test_real_users_are_become_as_with_core_s_plugin(outcomes: Outcomes, name: str, task: str) -> None:
    case = CASES[name]
    (core, theirs), (ours, mine) = (outcomes.found[f"{plugin}-{name}", task] for plugin in ("core", "ours"))
    about = f"core: {core} {theirs}\nours: {ours} {mine}\n{outcomes.done.stderr}"
    assert ours == core, about
    # The status of a raw line does not fail its task here: only what keeps it from running does.
    expected = "ok" if task == "raw" and not case.says and case.outcome == "failed" else case.outcome
    assert ours == (expected or core), about
    for key in ("rc", "stdout"):
        assert mine.get(key) == theirs.get(key), about
    if case.says:
        for result in (mine, theirs):
            assert str(result.get("msg")).count(case.says) == 1, about
