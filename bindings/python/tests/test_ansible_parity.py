"""Ansible's connection plugin beside core's ``ssh``: one table of tasks, run by both in the same playbook."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import ANSIBLE_PLAYBOOKS, ANSIBLE_PLUGIN, VOLATILE, WORKSPACE, Ansible, Testbed, remove_directory

Variables = dict[str, Any]

PASSWORD = "open sesame"

#: What Ansible makes of the output, with the lines that ssh itself says.
DERIVED = {"stdout_lines", "stderr_lines"}

#: What ssh itself says, where trunkline is silent.
SSH_SAYS = re.compile(
    r"((Shared c|C)onnection to \S+ closed\.|ControlSocket [^\r]*|Warning: Permanently added [^\r]*|@@@[^\0]*)(\r\n)?"
)


@dataclass(frozen=True)
class Case:
    """Tasks, and what both plugins make of them."""

    tasks: tuple[Variables, ...]
    vars: Variables = field(default_factory=dict)
    #: What both messages have, once.
    says: tuple[str, ...] = ()
    #: The outcome ("ok", "failed", "unreachable") of the last task, unless that depends on Ansible's version.
    outcome: str | None = "ok"
    #: Core's outcome, where it is another, and the words of the guide that say so.
    core: str | None = None
    guide: str = ""
    #: What only our message surely has: core's depends on its version, or on chance.
    besides: tuple[str, ...] = ()
    #: Whether core may tell ``NOT_SENT`` instead: its ssh had closed its input before it had taken the module, and had not
    #: ended by a millisecond later.
    unread: bool = False


def raw(
    line: str,
    *says: str,
    outcome: str | None = "ok",
    core: str | None = None,
    guide: str = "",
    besides: tuple[str, ...] = (),
    **vars: Any,
) -> Case:
    """A command line, without Python on the host."""
    return Case(({"raw": "{{ line }}"},), {"line": line, **vars}, says, outcome, core, guide, besides)


def command(
    line: str,
    *says: str,
    outcome: str | None = "ok",
    besides: tuple[str, ...] = (),
    unread: bool = False,
    **vars: Any,
) -> Case:
    """A module."""
    return Case(({"command": "{{ line }}"},), {"line": line, **vars}, says, outcome, besides=besides, unread=unread)


def tasks(*tasks: Variables, says: tuple[str, ...] = (), outcome: str | None = "ok", **vars: Any) -> Case:
    """Several tasks, in a play of their own."""
    return Case(tasks, vars, says, outcome)


PLAIN: Variables = {"ansible_ssh_use_tty": False}
NOT_SENT = 'Data could not be sent to remote host "127.0.1.'
NOT_REACHED = "Failed to connect to the host via ssh: "
SUDO: Variables = {"ansible_become": True, "ansible_become_exe": f"{ANSIBLE_PLAYBOOKS}/sudo"}
FREE: Variables = {"ansible_become": True, "ansible_become_exe": f"{ANSIBLE_PLAYBOOKS}/sudo.free"}
SILENT: Variables = {
    "ansible_become": True,
    "ansible_become_exe": f"{ANSIBLE_PLAYBOOKS}/sudo.silent",
    "ansible_ssh_timeout": 1,
}
SU: Variables = {"ansible_become": True, "ansible_become_method": "su", "ansible_become_exe": f"{ANSIBLE_PLAYBOOKS}/su"}
SECRET: Variables = {"ansible_become_password": "secret"}
DOAS: Variables = {
    "ansible_become": True,
    "ansible_become_method": "doas",
    "ansible_become_exe": f"{ANSIBLE_PLAYBOOKS}/doas",
}
BY_PASSWORD: Variables = {"ansible_ssh_args": "-o PubkeyAuthentication=no"}
COPY: Variables = {"copy": {"src": "{{ directory }}/large", "dest": "{{ there }}/copied"}}
FETCH: Variables = {"fetch": {"src": "{{ directory }}/large", "dest": "{{ there }}/fetched", "flat": True}}
#: Kills the sshd that it runs in.
END_SSHD = "p=$$; until grep -q sshd /proc/$p/comm; do p=$(sed -n 's/^PPid:.//p' /proc/$p/status); done; kill -9 $p"
CUT = "A task that was cut off"

#: Those that have connections of their own, for what they do to them.
APART = {
    # Who is not reached.
    "refused": raw("true", NOT_REACHED, "Connection refused", outcome="unreachable", ansible_port=1),
    "refused-module": command("true", NOT_SENT, outcome="unreachable", besides=("Connection refused",), ansible_port=1),
    "refused-becoming": raw(
        "true", NOT_REACHED, "Connection refused", outcome="unreachable", ansible_port=1, **SUDO, **SECRET
    ),
    "refused-twice": raw(
        "true", NOT_REACHED, "Connection refused", outcome="unreachable", ansible_port=1, ansible_ssh_retries=1
    ),
    "silent": raw(
        "true",
        NOT_REACHED,
        "timed out",
        outcome="unreachable",
        ansible_host="127.0.0.1",
        ansible_port="{{ silent }}",
        ansible_ssh_timeout=1,
    ),
    "closing": raw("true", NOT_REACHED, outcome="unreachable", ansible_host="127.0.0.1", ansible_port="{{ closing }}"),
    "no-such-name": raw(
        "true",
        NOT_REACHED,
        "Could not resolve hostname nowhere.invalid",
        outcome="unreachable",
        ansible_host="nowhere.invalid",
    ),
    "no-such-jump": raw("true", NOT_REACHED, outcome="unreachable", ansible_ssh_extra_args="-o ProxyJump=127.0.0.1:1"),
    "no-such-proxy": raw("true", NOT_REACHED, outcome="unreachable", ansible_ssh_extra_args="-o ProxyCommand=/bin/false"),
    "no-such-option": raw("true", NOT_REACHED, outcome="unreachable", ansible_ssh_extra_args="-o NoSuchOption=yes"),
    # Whose key it is.
    "unknown-key": raw("true", NOT_REACHED, "Host key verification failed.", outcome="unreachable", known_hosts="/dev/null"),
    "unknown-key-believed": raw("true", known_hosts="/dev/null", ansible_host_key_checking=False),
    "changed-key": raw(
        "true",
        NOT_REACHED,
        "Host key verification failed.",
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        outcome="unreachable",
        known_hosts="{{ changed }}",
    ),
    "changed-key-believed": raw("true", known_hosts="{{ changed }}", ansible_host_key_checking=False),
    "changed-key-believed-module": command("true", known_hosts="{{ changed }}", ansible_host_key_checking=False),
    "unknown-key-by-password": raw(
        "true",
        "Using a SSH password instead of a key is not possible because Host Key checking is enabled",
        "Please add this host's fingerprint to your known_hosts file to manage this host.",
        outcome="failed",
        known_hosts="/dev/null",
        ansible_password=PASSWORD,
        **BY_PASSWORD,
    ),
    # Who is not let in.
    "password": raw("true", ansible_password=PASSWORD, **BY_PASSWORD),
    "password-module": command("true", ansible_password=PASSWORD, **BY_PASSWORD),
    "password-wrong": raw(
        "true",
        outcome="unreachable",
        besides=("Invalid/incorrect password: ", "Permission denied ("),
        ansible_password="wrong",
        **BY_PASSWORD,
    ),
    "password-missing": raw("true", NOT_REACHED, "Permission denied (", ").", outcome="unreachable", **BY_PASSWORD),
    "other-user": raw("true", NOT_REACHED, "Permission denied (", outcome="unreachable", ansible_user="nobody-of-that-name"),
    # Who goes away.
    "cut": raw("echo run >> {{ there }}/runs; kill -9 $PPID", outcome="failed", core="unreachable", guide=CUT, **PLAIN),
    "cut-module": Case(({"shell": END_SSHD},), {}, (), "failed", "unreachable", CUT),
}

CASES = {
    # What commands leave.
    **{
        f"status-{status}": raw(f"exit {status}", outcome="failed" if status else "ok")
        for status in (0, 1, 2, 127, 128, 254)
    },
    "status-255": raw("echo out; exit 255", outcome="failed", core="unreachable", guide="status 255"),
    "signal": raw("kill -TERM $$", outcome="failed", core="unreachable", guide="killed by a signal", **PLAIN),
    "both-outputs": raw("echo out; echo err >&2; exit 3", outcome="failed", **PLAIN),
    "terminal": raw("stty -a; tty | tr -d 0-9; echo $TERM; echo err >&2"),
    "no-terminal": raw("tty; echo $TERM", **PLAIN),
    "not-utf-8": raw(r"printf 'a\377\200b\n'; printf '\377' >&2", **PLAIN),
    "large-output": raw("head -c 3000000 /dev/zero | tr '\\0' x", **PLAIN),
    "large-error-output": raw("head -c 300000 /dev/zero | tr '\\0' x >&2", **PLAIN),
    "no-newline": raw("printf 'a\\nb'", **PLAIN),
    "module": command("echo hello"),
    "module-fails": command("false", outcome="failed"),
    "module-not-pipelined": command("echo hello", ansible_pipelining=False),
    "module-on-terminal": command("echo hello", ansible_ssh_extra_args="-o RequestTTY=force", ansible_pipelining=False),
    "large-input": tasks({"command": {"cmd": "sha256sum", "stdin": "{{ 'x' * 1000000 }}"}}),
    "no-interpreter": command("true", outcome="failed", unread=True, ansible_python_interpreter="/dev/null/python"),
    "interpreter-dies": command("true", outcome="failed", unread=True, ansible_python_interpreter="/bin/false"),
    "interpreter-255": Case(
        ({"command": "{{ line }}"},),
        {"line": "true", "ansible_python_interpreter": f"{ANSIBLE_PLAYBOOKS}/traceback"},
        outcome="failed",
        core="unreachable",
        guide="status 255",
    ),
    "no-remote-tmp": command(
        "true",
        "Failed to create temporary directory",
        outcome="unreachable",
        ansible_remote_tmp="/proc/x",
        ansible_pipelining=False,
    ),
    # Who is somebody else.
    "sudo": raw("printenv BECAME; exit 3", outcome="failed", **SUDO, **SECRET),
    "sudo-module": command("printenv BECAME", **SUDO, **SECRET),
    "sudo-module-not-pipelined": command("printenv BECAME", **SUDO, **SECRET, ansible_pipelining=False),
    "sudo-user": command("printenv BECAME", **SUDO, **SECRET, ansible_become_user="nobody"),
    "sudo-plain": raw("echo out; echo err >&2", **SUDO, **SECRET, **PLAIN),
    "sudo-wrong": raw("true", "Incorrect sudo password", outcome="failed", **SUDO, ansible_become_password="wrong"),
    "sudo-wrong-module": command(
        "true", "Incorrect sudo password", outcome="failed", **SUDO, ansible_become_password="wrong"
    ),
    "sudo-missing": raw("true", "Missing sudo password", outcome="failed", **SUDO),
    "sudo-missing-module": command("true", "Missing sudo password", outcome="failed", **SUDO),
    "sudo-free": command("printenv BECAME", **FREE),
    "sudo-asks-nothing": command("printenv BECAME", **FREE, **SECRET, ansible_become_flags="-H -S -n"),
    "sudo-not-there": raw("true", outcome="failed", ansible_become=True, ansible_become_exe="/dev/null/sudo"),
    "sudo-not-there-with-password": raw(
        "true", outcome="failed", ansible_become=True, ansible_become_exe="/dev/null/sudo", **SECRET
    ),
    "sudo-silent": raw("true", "Timeout (3s) waiting for privilege escalation prompt:", outcome=None, **SILENT, **SECRET),
    "sudo-silent-free": raw("true", "Timeout (3s) waiting for privilege escalation prompt:", outcome=None, **SILENT),
    "sudo-silent-module": command(
        "true", "Timeout (3s) waiting for privilege escalation prompt:", outcome=None, **SILENT, **SECRET
    ),
    "sudo-stuck-without-terminal": raw(
        "true",
        "Timeout (3s) waiting for privilege escalation prompt:",
        outcome=None,
        **{**SILENT, **SECRET, **PLAIN, "ansible_become_exe": f"{ANSIBLE_PLAYBOOKS}/sudo.stuck"},
    ),
    "doas": raw("printenv BECAME; exit 3", outcome="failed", **DOAS, **SECRET),
    "doas-module": command("printenv BECAME", **DOAS, **SECRET),
    "doas-wrong": raw("true", "Incorrect doas password", outcome="failed", **DOAS, ansible_become_password="wrong"),
    "su": raw("printenv BECAME; exit 3", outcome="failed", **SU, **SECRET),
    "su-module": command("printenv BECAME", **SU, **SECRET),
    "su-wrong": raw("true", "Incorrect su password", outcome="failed", **SU, ansible_become_password="wrong"),
    "su-missing": raw(
        "true", "Timeout (3s) waiting for privilege escalation prompt:", outcome=None, **SU, ansible_ssh_timeout=1
    ),
    **APART,
    # Arguments.
    "terminal-by-argument": raw("tty | tr -d 0-9", ansible_ssh_extra_args="-o RequestTTY=force", **PLAIN),
    "terminal-by-flags": raw("tty | tr -d 0-9", ansible_ssh_extra_args="-tt", **PLAIN),
    "arguments": raw(
        "true", ansible_ssh_args="-C -o ControlMaster=auto -o ControlPersist=5m", ansible_ssh_extra_args="-o LogLevel=ERROR"
    ),
    "arguments-quoted": raw("true", ansible_ssh_extra_args="-o 'SendEnv=LANG LC_*' -o \"ConnectionAttempts=2\""),
    "jump": raw("true", ansible_ssh_common_args="-F {{ config }} -J box2", ansible_host="box1", ansible_port=None),
    # Files.
    **{f"copy-{method}": tasks(COPY, FETCH, ansible_ssh_transfer_method=method) for method in ("smart", "sftp", "piped")},
    "copy-sudo": tasks(COPY, FETCH, **SUDO, **SECRET),
    "copy-to-nowhere": tasks({"copy": {"content": "x", "dest": "/dev/null/x"}}, outcome="failed"),
    "fetch-nothing": tasks({"fetch": {"src": "/dev/null/x", "dest": "{{ there }}/x", "flat": True}}, outcome="failed"),
    "fetch-directory": tasks({"fetch": {"src": "/tmp", "dest": "{{ there }}/x", "flat": True}}, outcome="failed"),
    "slurp": tasks({"slurp": {"src": "/etc/hostname"}}),
    "script": tasks({"script": "{{ playbooks }}/script a 'b c'"}, outcome="failed"),
    "script-sudo": tasks({"script": "{{ playbooks }}/script a 'b c'"}, outcome="failed", **SUDO, **SECRET),
    "template": tasks({"copy": {"content": "汉语 {{ playbooks }}", "dest": "{{ there }}/汉 'x"}}),
    # The rest of a playbook.
    "setup": tasks({"setup": {"gather_subset": "!all"}}),
    "reset": tasks({"meta": "reset_connection"}, {"raw": "echo after"}),
    "wait": tasks({"wait_for_connection": {"timeout": 20}}, {"raw": "echo after"}),
    "wait-in-vain": tasks(
        {"wait_for_connection": {"timeout": 1, "sleep": 0, "connect_timeout": 1}},
        says=("timed out waiting for ping module",),
        outcome="failed",
        ansible_port=1,
    ),
    "async": tasks({"command": "echo behind", "async": 30, "poll": 1}),
    "async-fails": tasks({"command": "false", "async": 30, "poll": 1}, outcome="failed"),
    "async-sudo": tasks({"command": "printenv BECAME", "async": 30, "poll": 1}, **SUDO, **SECRET),
    "delegated": tasks({"raw": "echo $SSH_CONNECTION | cut -d ' ' -f 3,4", "delegate_to": "{{ other }}"}),
    "delegated-to-nowhere": tasks(
        {"raw": "true", "delegate_to": "{{ nowhere }}"}, says=(NOT_REACHED, "Connection refused"), outcome="unreachable"
    ),
    "reboot": tasks(
        {
            "reboot": {
                "reboot_command": "kill -9 $PPID #",
                "boot_time_command": "echo x >> {{ there }}/boots; wc -l < {{ there }}/boots #",
                "test_command": "true",
                "reboot_timeout": 30,
                "connect_timeout": 2,
            }
        },
        **PLAIN,
    ),
}


@dataclass(frozen=True)
class Result:
    """The result of a task."""

    outcome: str
    result: Variables

    @property
    def message(self) -> str:
        return str(self.result.get("msg", ""))


class Parity:
    """The results of all cases by both plugins."""

    def __init__(self, ansible: Ansible, bed: Testbed) -> None:
        self.directory = ansible.directory
        self._about = bed.about["hosts"][0]
        (self.directory / "large").write_bytes(bytes(range(256)) * 4000)
        self._changed()
        with Odd() as odd:
            self.inventory = {"all": {"vars": self._everywhere(bed, odd), "hosts": dict(self._hosts())}}
            self.done, results = ansible.plays_by_both_plugins(
                self.inventory,
                list(self._plays()),
                ANSIBLE_BECOME_PLUGINS=f"{ANSIBLE_PLAYBOOKS}/become_plugins",
                ANSIBLE_FORKS="12",
                ANSIBLE_TASK_TIMEOUT="60",
                ANSIBLE_BECOME_ALLOW_SAME_USER="true",
            )
        self.results: dict[str, list[Result]] = {}
        for told in results:
            self.results.setdefault(told["host"], []).append(Result(told["outcome"], told["result"]))

    def _changed(self) -> None:
        key = self.directory / "other"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        algorithm, blob, *_ = key.with_suffix(".pub").read_text().split()
        (self.directory / "changed").write_text(f"box1 {algorithm} {blob}\n")

    def _everywhere(self, bed: Testbed, odd: Odd) -> Variables:
        about = self._about
        (self.directory / "known").write_text("".join(f"box1 {' '.join(line.split()[:2])}\n" for line in about["host_keys"]))
        return {
            "directory": str(self.directory),
            "playbooks": str(ANSIBLE_PLAYBOOKS),
            "config": bed.config,
            "silent": odd.silent,
            "closing": odd.closing,
            "changed": f"{self.directory}/changed",
            "known_hosts": f"{self.directory}/known",
            "ansible_host": about["address"],
            "ansible_port": about["port"],
            "ansible_ssh_private_key_file": about["key"],
            "ansible_ssh_common_args": "-F none -o HostKeyAlias=box1 -o UserKnownHostsFile={{ known_hosts }} "
            "-o GlobalKnownHostsFile=none",
            "ansible_pipelining": True,
        }

    def _hosts(self) -> Iterator[tuple[str, Variables]]:
        number = 1
        for plugin, connection in (("core", "ssh"), ("ours", ANSIBLE_PLUGIN)):
            for host, port in (("other", {}), ("nowhere", {"ansible_port": 1})):
                yield f"{plugin}-{host}", {"ansible_connection": connection, **port}
            for name, case in CASES.items():
                there = self.directory / "there" / f"{plugin}-{name}"
                there.mkdir(parents=True)
                variables: Variables = {
                    "ansible_connection": connection,
                    "there": str(there),
                    "other": f"{plugin}-other",
                    "nowhere": f"{plugin}-nowhere",
                    **case.vars,
                }
                if name in APART:
                    number += 1
                    variables.setdefault("ansible_host", f"127.0.1.{number}")
                yield f"{plugin}-{name}", variables

    def _plays(self) -> Iterator[Variables]:
        by_tasks: dict[str, list[str]] = {}
        for name, case in CASES.items():
            by_tasks.setdefault(json.dumps(case.tasks), []).append(name)
        for tasks, names in by_tasks.items():
            yield {
                "hosts": [f"{plugin}-{name}" for name in names for plugin in ("core", "ours")],
                "gather_facts": False,
                "strategy": "free",
                "ignore_errors": True,
                "ignore_unreachable": True,
                "tasks": json.loads(tasks),
            }


class Odd:
    """Ports with servers that are none: one that says nothing, and one that leaves at once."""

    def __enter__(self) -> Odd:
        self._silent = socket.create_server(("127.0.0.1", 0))
        self._closing = socket.create_server(("127.0.0.1", 0))
        self.silent, self.closing = self._silent.getsockname()[1], self._closing.getsockname()[1]
        threading.Thread(target=self._close, daemon=True).start()
        return self

    def _close(self) -> None:
        while True:
            try:
                self._closing.accept()[0].close()
            except OSError:
                return

    def __exit__(self, *_: object) -> None:
        self._silent.close()
        self._closing.shutdown(socket.SHUT_RDWR)
        self._closing.close()


@pytest.fixture(scope="module")
def parity(environment: Path, daemon: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parity]:
    bed = Testbed(
        "--servers",
        "2",
        "--password",
        PASSWORD,
        "--any-address",
        "--config",
        "MaxStartups 500",
        "--config",
        "MaxSessions 100",
        # As sudo gives it: what a task leaves there under sudo, the next one finds without.
        "--config",
        f"SetEnv HOME={Path.home()}",
    )
    try:
        yield Parity(Ansible(environment, tmp_path_factory.mktemp("parity"), bed), bed)
    finally:
        bed.close()


def comparable(result: Result, plugin: str) -> Variables:
    """A task's result without what no two runs have in common, and without what ssh itself says."""

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            value = value.replace(f"{plugin}-", "").replace(ANSIBLE_PLUGIN, "ssh")
            value = SSH_SAYS.sub("", value)
            return re.sub(r"(ansible-tmp-|ansible-local-|/tmp)[-.0-9]+[-.\w]*", "TMP", value)
        if isinstance(value, list):
            return [line for line in (plain(item) for item in value) if line != ""]
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key not in VOLATILE | DERIVED}
        return value

    found: Variables = plain(result.result)
    return found


@pytest.mark.parametrize("name", CASES)
def test_both_plugins_come_to_the_same(parity: Parity, name: str) -> None:
    case = CASES[name]
    assert {f"core-{name}", f"ours-{name}"} <= set(parity.results), parity.done.stdout + parity.done.stderr
    core, ours = parity.results[f"core-{name}"], parity.results[f"ours-{name}"]
    about = f"core: {core}\nours: {ours}"
    assert ours[-1].outcome == (case.outcome or core[-1].outcome), about
    if case.unread and NOT_SENT.partition('"')[0] in core[-1].message:
        assert core[-1].outcome == "unreachable", about
        return
    assert core[-1].outcome == (case.core or case.outcome or core[-1].outcome), about
    if case.core:
        assert case.guide in (WORKSPACE / "docs/guide/ansible.md").read_text()
        return
    assert [result.outcome for result in core] == [result.outcome for result in ours], about
    for says in case.says:
        assert says in core[-1].message, about
    for says in (*case.says, *case.besides):
        assert ours[-1].message.count(says) == 1, about
    for theirs, mine in zip(core, ours):
        expected, found = comparable(theirs, "core"), comparable(mine, "ours")
        if mine.outcome == "unreachable" or case.says:
            # The words around those above are each plugin's own.
            expected.pop("msg"), found.pop("msg")
        assert found == expected, about


def peer(path: Path) -> int:
    """The process that listens at a socket."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(path))
        pid: int = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid


@pytest.mark.parametrize(
    ("line", "arguments", "code"), [("true", (), 0), ("exit 3", (), 2), ("true", ("-e", "ansible_port=1"), 4)]
)
def test_programs_end_with_the_same_status(ansible: Ansible, line: str, arguments: tuple[str, ...], code: int) -> None:
    for connection in ("ssh", ANSIBLE_PLUGIN):
        done = ansible.run("ansible", "box1", "-c", connection, "-m", "raw", "-a", line, *arguments, ANSIBLE_SSH_ARGS="")
        assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("server", "code", "said"),
    [
        # As where the disk is full.
        ("trap '' XFSZ; ulimit -f 200; exec /usr/lib/openssh/sftp-server", 2, "failed to transfer file to "),
        # It ends in the middle.
        ("dd bs=1 count=200000 status=none | /usr/lib/openssh/sftp-server", 4, "Failed to connect to the host via sftp: "),
    ],
)
def test_a_file_that_does_not_arrive_is_told_of_in_the_same_words(
    environment: Path, daemon: None, tmp_path: Path, server: str, code: int, said: str
) -> None:
    program = tmp_path / "sftp-server"
    program.write_text(f"#!/bin/sh\n{server}\n")
    program.chmod(0o755)
    bed = Testbed("--config", f"Subsystem sftp {program}")
    try:
        ansible = Ansible(environment, tmp_path, bed)
        (tmp_path / "large").write_bytes(bytes(1_000_000))
        for connection in ("ssh", ANSIBLE_PLUGIN):
            arguments = ("-c", connection, "-m", "copy", "-a", "src=large dest=x")
            done = ansible.run("ansible", "box1", *arguments, ANSIBLE_SSH_ARGS="", ANSIBLE_SSH_TRANSFER_METHOD="sftp")
            assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    finally:
        bed.close()


@pytest.mark.parametrize("method", ["sftp", "piped"])
def test_files_that_are_made_have_the_modes_of_their_sources(ansible: Ansible, method: str) -> None:
    directory = ansible.directory
    (directory / "show").write_text('#!/bin/sh\nstat -c %a "$0"\n')
    (directory / "show").chmod(0o600)
    modes = [0o600, 0o640, 0o755]
    for mode in modes:
        (directory / f"source {mode:o}").touch(mode)
        (directory / f"source {mode:o}").chmod(mode)
    dest = f"{directory}/{{{{ inventory_hostname }}}} {{{{ item }}}}"
    fetch = {"src": f"{directory}/source {{{{ item }}}}", "dest": dest, "flat": True}
    play = {
        "hosts": "all",
        "gather_facts": False,
        "tasks": [{"fetch": fetch, "loop": [f"{mode:o}" for mode in modes]}, {"script": f"{directory}/show"}],
    }
    common = (directory / "hosts").read_text().rpartition("args=")[2].strip()
    hosts = {
        name: {"ansible_connection": plugin, "ansible_host": "box1", "ansible_ssh_transfer_method": method}
        for name, plugin in (("core", "ssh"), ("ours", ANSIBLE_PLUGIN))
    }
    done, results = ansible.plays_by_both_plugins(
        {"all": {"vars": {"ansible_ssh_common_args": common}, "hosts": hosts}}, [play]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = {told["host"]: told["result"]["stdout"].strip() for told in results if "stdout" in told["result"]}
    made = {name: [(directory / f"{name} {mode:o}").stat().st_mode & 0o777 for mode in modes] for name in hosts}
    assert (shown["ours"], made["ours"]) == ("700", modes)
    if method == "sftp":
        assert (shown["core"], made["core"]) == ("700", modes)


def test_a_task_outlives_the_end_of_its_daemon_and_has_failed_where_it_is_killed(ansible: Ansible) -> None:
    directory = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    own = {"TRUNKLINE_DIR": str(directory), "ANSIBLE_SSH_RETRIES": "2", "ANSIBLE_SSH_USETTY": "false"}
    runs = ansible.directory / "runs"
    for signal, code, said in (("TERM", 0, "it goes on"), ("KILL", 2, "may have run; it is not run again")):
        started = ansible.run("ansible", "box1", "-m", "raw", "-a", "true", **own)
        assert started.returncode == 0, started.stdout + started.stderr
        end = f"kill -{signal} {peer(directory / 'control.sock')}"
        # Until somebody has seen the daemon go, where it goes at once.
        rest = "sleep 1000" if signal == "KILL" else "echo it goes on"
        done = ansible.run("ansible", "box1", "-m", "raw", "-a", f"echo {signal} >> {runs}; {end}; {rest}", **own)
        assert (done.returncode, "UNREACHABLE" in done.stdout) == (code, False), done.stdout + done.stderr
        assert said in done.stdout
    assert runs.read_text() == "TERM\nKILL\n"
    remove_directory(directory)
