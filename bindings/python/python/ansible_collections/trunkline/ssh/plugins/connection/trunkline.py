"""Ansible's tasks over trunkline's daemon, whose connections outlive workers and runs."""

from __future__ import annotations

DOCUMENTATION = """
name: trunkline
short_description: run tasks over connections that stay warm
description:
  - Runs tasks over the trunkline daemon, which keeps one authenticated SSH connection to each host. Workers, later runs of
    Ansible and everything else that uses the daemon share it.
  - Hosts are what C(ssh_config) says they are, as for C(ssh).
  - Options have the names, variables, environment and settings of the C(ssh) plugin, so that what is set for it is good for
    this one.
  - A command whose connection is lost is not run again once it may have started. A command that ends with status 255 has
    failed, and does not make its host unreachable.
author: The trunkline authors
version_added: 0.1.0
requirements:
  - the Python package C(trunkline)
  - the program C(trunkline), on E(PATH) or named by E(TRUNKLINE_PROGRAM)
options:
  host:
    description: Name or address to connect to, or an alias of ssh_config.
    default: inventory_hostname
    type: string
    vars:
      - name: inventory_hostname
      - name: ansible_host
      - name: ansible_ssh_host
      - name: delegated_vars['ansible_host']
      - name: delegated_vars['ansible_ssh_host']
  port:
    description: Port to connect to; what ssh_config says, unless set.
    type: int
    ini:
      - section: defaults
        key: remote_port
    env:
      - name: ANSIBLE_REMOTE_PORT
    vars:
      - name: ansible_port
      - name: ansible_ssh_port
    keyword:
      - name: port
  remote_user:
    description: User to log in as; what ssh_config says, unless set.
    type: string
    ini:
      - section: defaults
        key: remote_user
    env:
      - name: ANSIBLE_REMOTE_USER
    vars:
      - name: ansible_user
      - name: ansible_ssh_user
    cli:
      - name: user
    keyword:
      - name: remote_user
  password:
    description: Password for O(remote_user), or the PIN of the token of O(pkcs11_provider). It is tried once.
    type: string
    vars:
      - name: ansible_password
      - name: ansible_ssh_pass
      - name: ansible_ssh_password
  private_key_file:
    description: File of the private key to log in with.
    type: string
    ini:
      - section: defaults
        key: private_key_file
    env:
      - name: ANSIBLE_PRIVATE_KEY_FILE
    vars:
      - name: ansible_private_key_file
      - name: ansible_ssh_private_key_file
    cli:
      - name: private_key_file
        option: "--private-key"
  private_key:
    description: A private key to log in with, itself and not the name of its file. It goes to the SSH agent of
      E(SSH_AUTH_SOCK), which C(ssh_agent = auto) under C([connection]) has ansible-core 2.19 and later start, for as long as
      C(ssh_agent_key_lifetime) says; it is written to no file.
    type: string
    env:
      - name: ANSIBLE_PRIVATE_KEY
    vars:
      - name: ansible_private_key
      - name: ansible_ssh_private_key
  private_key_passphrase:
    description: Passphrase of the key in O(private_key), or of that in O(private_key_file) where no agent has the key.
    type: string
    env:
      - name: ANSIBLE_PRIVATE_KEY_PASSPHRASE
    vars:
      - name: ansible_private_key_passphrase
      - name: ansible_ssh_private_key_passphrase
  pkcs11_provider:
    description: Library of the PKCS#11 token that has the key to log in with, such as that of a smart card. Its hosts are
      reached through the system's ssh, whose connections the daemon keeps.
    default: ""
    type: string
    ini:
      - section: ssh_connection
        key: pkcs11_provider
    env:
      - name: ANSIBLE_PKCS11_PROVIDER
    vars:
      - name: ansible_ssh_pkcs11_provider
  host_key_checking:
    description: Whether unknown host keys are refused, as ssh_config's StrictHostKeyChecking has it; otherwise they are
      believed, and added to known_hosts.
    default: true
    type: boolean
    ini:
      - section: defaults
        key: host_key_checking
      - section: ssh_connection
        key: host_key_checking
    env:
      - name: ANSIBLE_HOST_KEY_CHECKING
      - name: ANSIBLE_SSH_HOST_KEY_CHECKING
    vars:
      - name: ansible_host_key_checking
      - name: ansible_ssh_host_key_checking
  ssh_args:
    description: Arguments as for ssh. ControlMaster, ControlPath and ControlPersist mean nothing here.
    default: ""
    type: string
    ini:
      - section: ssh_connection
        key: ssh_args
    env:
      - name: ANSIBLE_SSH_ARGS
    vars:
      - name: ansible_ssh_args
  ssh_common_args:
    description: More arguments as for ssh, for some hosts.
    default: ""
    type: string
    ini:
      - section: ssh_connection
        key: ssh_common_args
    env:
      - name: ANSIBLE_SSH_COMMON_ARGS
    vars:
      - name: ansible_ssh_common_args
    cli:
      - name: ssh_common_args
  ssh_extra_args:
    description: More arguments as for ssh. Files go over the same connection as commands, with the same arguments.
    default: ""
    type: string
    ini:
      - section: ssh_connection
        key: ssh_extra_args
    env:
      - name: ANSIBLE_SSH_EXTRA_ARGS
    vars:
      - name: ansible_ssh_extra_args
    cli:
      - name: ssh_extra_args
  timeout:
    description: Seconds for connecting, and for becoming another user until a password is asked for or the command begins.
    default: 10
    type: integer
    ini:
      - section: defaults
        key: timeout
      - section: ssh_connection
        key: timeout
    env:
      - name: ANSIBLE_TIMEOUT
      - name: ANSIBLE_SSH_TIMEOUT
    vars:
      - name: ansible_ssh_timeout
    cli:
      - name: timeout
  reconnection_retries:
    description: How often a command is tried again that did not start, because its host could not be reached. One that may
      have started is never run again.
    default: 0
    type: integer
    ini:
      - section: connection
        key: retries
      - section: ssh_connection
        key: retries
    env:
      - name: ANSIBLE_SSH_RETRIES
    vars:
      - name: ansible_ssh_retries
  pipelining:
    description: Whether modules are sent to Python's standard input instead of to a file, which saves round trips. It has to
      be off where sudo insists on a terminal (C(requiretty)).
    default: true
    type: boolean
    ini:
      - section: defaults
        key: pipelining
      - section: connection
        key: pipelining
      - section: ssh_connection
        key: pipelining
    env:
      - name: ANSIBLE_PIPELINING
      - name: ANSIBLE_SSH_PIPELINING
    vars:
      - name: ansible_pipelining
      - name: ansible_ssh_pipelining
  ssh_transfer_method:
    description:
      - How files are copied. V(sftp) is the fastest; V(piped) passes them through C(dd) on the host, which needs no SFTP.
      - V(smart) is V(sftp), and V(piped) where the host has no SFTP. So is V(scp), whose program is not used here.
    default: smart
    type: string
    choices: [sftp, scp, piped, smart]
    ini:
      - section: ssh_connection
        key: transfer_method
    env:
      - name: ANSIBLE_SSH_TRANSFER_METHOD
    vars:
      - name: ansible_ssh_transfer_method
  use_tty:
    description: Whether commands that get no input run on a terminal, as with C(ssh -tt), which joins their outputs.
    default: true
    type: bool
    ini:
      - section: ssh_connection
        key: usetty
    env:
      - name: ANSIBLE_SSH_USETTY
    vars:
      - name: ansible_ssh_use_tty
"""

EXAMPLES = """
# ansible.cfg, for all hosts:
#
#   [defaults]
#   transport = trunkline.ssh.trunkline
#
# Some hosts of an inventory:
web:
  hosts:
    web1:
    web2:
  vars:
    ansible_connection: trunkline.ssh.trunkline
"""

import contextlib
import functools
import hashlib
import itertools
import os
import queue
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import ansible.constants as constants
import trunkline
from ansible.errors import (
    AnsibleAuthenticationFailure,
    AnsibleConnectionFailure,
    AnsibleError,
    AnsibleFileNotFound,
)
from ansible.module_utils.common.text.converters import to_bytes, to_text
from ansible.plugins.connection import ConnectionBase
from ansible.utils.display import Display
from trunkline._options import program

display = Display()

_T = TypeVar("_T")

#: What is read at once of an output or a file.
BUFFER = 1024 * 1024

#: Status, output, error output.
Result = tuple[int, bytes, bytes]

#: Opens a file on the host, by path and mode ("rb" or "wb"), as a context that gives a file.
OpenThere = Callable[[str, Any], Any]


class Connection(ConnectionBase):
    """A host, by way of the daemon. Nothing is kept between tasks but what the daemon keeps."""

    transport = "trunkline.ssh.trunkline"
    has_pipelining = True

    #: Made when it is first needed: options are set after ``__init__``.
    _host: trunkline.Connection | None = None
    #: Found out with the first file.
    _has_no_sftp = False

    def _connect(self) -> Connection:
        """Nothing: the first command connects, in the same flight."""
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> Result:
        """Runs a command line."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        # Python reads its program from standard input only where that is no terminal.
        on_terminal = sudoable and not in_data and self.get_option("use_tty")
        # A size of 0 is none, so that nothing is cut to a width.
        terminal = on_terminal and trunkline.Terminal(os.environ.get("TERM", "dumb"), 0, 0)
        become = self.become if sudoable else None
        display.vvv(f"TRUNKLINE EXEC {cmd}", host=self._name)
        if become and (become.prompt or become.success):
            return self._attempt(lambda host: self._escalate(host.start(cmd, encoding=None, terminal=terminal), in_data))

        def run(host: trunkline.Connection) -> Result:
            result = host.run(cmd, input=in_data, encoding=None, terminal=terminal)
            return result.returncode, result.stdout, result.stderr

        return self._attempt(run)

    def put_file(self, in_path: str, out_path: str) -> None:
        """Copies a file to the host."""
        super().put_file(in_path, out_path)
        display.vvv(f"TRUNKLINE PUT {in_path} TO {out_path}", host=self._name)
        if not os.path.exists(in_path):
            raise AnsibleFileNotFound(f"there is no file {in_path}")

        def put(open_there: OpenThere) -> None:
            with open(in_path, "rb") as source, open_there(out_path, "wb") as target:
                shutil.copyfileobj(source, target, BUFFER)

        self._transfer(put)

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Copies a file from the host."""
        super().fetch_file(in_path, out_path)
        display.vvv(f"TRUNKLINE FETCH {in_path} TO {out_path}", host=self._name)

        def fetch(open_there: OpenThere) -> None:
            with open_there(in_path, "rb") as source, open(out_path, "wb") as target:
                shutil.copyfileobj(source, target, BUFFER)

        self._transfer(fetch)

    def _transfer(self, work: Callable[[OpenThere], None]) -> None:
        """Moves a file over SFTP, or without."""
        method = self.get_option("ssh_transfer_method")

        def move(host: trunkline.Connection) -> None:
            if method != "piped" and not self._has_no_sftp:
                try:
                    with host.sftp() as sftp:
                        return work(sftp.open)
                except trunkline.LimitError as error:
                    if method == "sftp":
                        raise
                    display.vvv(f"TRUNKLINE files go through dd: {error}", host=self._name)
                    self._has_no_sftp = True
            return work(functools.partial(self._open_by_dd, host))

        self._attempt(move, repeatable=True)

    @contextlib.contextmanager
    def _open_by_dd(self, host: trunkline.Connection, path: str, mode: str) -> Iterator[Any]:
        """A file on the host as dd's input or output."""
        writes = mode == "wb"
        operand = f"{'of' if writes else 'if'}={self._shell.quote(path)}"
        with host.start(f"dd {operand} bs=65536", encoding=None) as process:
            # A dd that cannot open the file does not read; its status, and what it said, tell why.
            with contextlib.suppress(BrokenPipeError):
                yield process.stdin if writes else process.stdout
                process.stdin.close()
            said = process.stderr.read()
            if process.wait() != 0:
                raise AnsibleError(f"{self._name}: {to_text(said).strip() or 'dd failed'}")

    def reset(self) -> None:
        """Has the next command connect anew."""
        closed = self._attempt(lambda host: host.disconnect(), repeatable=True)
        display.vvv(f"TRUNKLINE RESET: connections that end: {closed}", host=self._name)

    def close(self) -> None:
        """Lets go of the host; the daemon keeps its connection."""
        if self._host is not None:
            self._host.close()
            self._host = None

    @property
    def _name(self) -> str:
        return str(self.get_option("host") or self._play_context.remote_addr)

    def _reach(self) -> trunkline.Connection:
        if self._host is None:
            try:
                password = self.get_option("password") or self._play_context.password or None
                if password and self.get_option("pkcs11_provider"):
                    self._log_in_by_token(password)
                    password = None
                self._host = trunkline.connect(
                    self._name,
                    ssh_args=self._ssh_args(),
                    password=password,
                    passphrase=self.get_option("private_key_passphrase"),
                    timeout=self.get_option("timeout") or None,
                    daemon=True,
                    wait=False,
                )
            except (ValueError, FileNotFoundError) as error:
                raise AnsibleError(str(error)) from error
        return self._host

    def _ssh_args(self) -> list[str]:
        """The options as ssh's arguments, of which the first wins, in the ssh plugin's order."""
        args: list[str] = self._split_ssh_args(self.get_option("ssh_args") or "")
        if not self.get_option("host_key_checking"):
            args += ["-o", "StrictHostKeyChecking=no"]
        if self.get_option("port"):
            args += ["-o", f"Port={self.get_option('port')}"]
        if self.get_option("private_key"):
            args += ["-o", "IdentitiesOnly=yes", "-o", f'IdentityFile="{self._key_in_agent()}"']
        elif self.get_option("private_key_file"):
            args += ["-i", os.path.expanduser(self.get_option("private_key_file"))]
        if self.get_option("pkcs11_provider"):
            # As the ssh plugin: the token, and nothing else.
            for option in (
                "KbdInteractiveAuthentication=no",
                "PreferredAuthentications=publickey",
                "PasswordAuthentication=no",
            ):
                args += ["-o", option]
            args += ["-o", f"PKCS11Provider={self.get_option('pkcs11_provider')}"]
        if self.get_option("remote_user"):
            args += ["-l", self.get_option("remote_user")]
        for more in ("ssh_common_args", "ssh_extra_args"):
            args += self._split_ssh_args(self.get_option(more) or "")
        return args

    def _log_in_by_token(self, pin: str) -> None:
        """Has the system's ssh log in, unless it is, and stay: the daemon, which cannot ask it, finds it there. The PIN is
        given when ssh asks for it, once, and by a pipe. ssh says why it is not let in."""
        with tempfile.TemporaryDirectory() as folder:
            pipe, ask = Path(folder, "pin"), Path(folder, "ask")
            os.mkfifo(pipe, 0o600)
            ask.write_text(f'#!/bin/sh\ncase $1 in "Enter PIN for "*) cat {pipe} && rm {pipe} ;; *) exit 1 ;; esac\n')
            ask.chmod(0o700)
            answering = threading.Thread(target=pipe.write_text, args=(f"{pin}\n",), daemon=True)
            answering.start()
            done = subprocess.run(
                [program(), "ssh", *self._ssh_args(), self._name, "true"],
                env={**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                start_new_session=True,
            )
            if pipe.exists():
                # Nobody asked.
                unread = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
                answering.join()
                os.close(unread)
        if done.returncode == 255:
            raise AnsibleAuthenticationFailure(to_text(done.stderr).strip())

    def _key_in_agent(self) -> Path:
        """Gives the key in ``private_key`` to the agent, and names the file of its public half, by which ssh chooses it. The
        file stays: with another name for it, later runs would not share the connection."""
        if not os.environ.get("SSH_AUTH_SOCK"):
            raise AnsibleError(
                "private_key needs an SSH agent: set ssh_agent = auto under [connection] (ansible-core 2.19 or later), "
                "or start one and set SSH_AUTH_SOCK"
            )
        line = trunkline.add_to_agent(
            self.get_option("private_key"),
            passphrase=self.get_option("private_key_passphrase"),
            lifetime=getattr(constants, "SSH_AGENT_KEY_LIFETIME", None),
        )
        folder = Path(constants.ANSIBLE_HOME, "trunkline")
        file = folder / f"{hashlib.sha256(line.encode()).hexdigest()}.pub"
        if not file.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Other workers may read it at any moment.
            new = folder / f"{file.name}.{os.getpid()}"
            new.write_text(f"{line}\n")
            new.rename(file)
        return file

    def _attempt(self, work: Callable[[trunkline.Connection], _T], repeatable: bool = False) -> _T:
        """Does ``work``, again if the host cannot be reached and it did not start, or can be repeated."""
        for attempt in itertools.count():
            try:
                return work(self._reach())
            except trunkline.AuthenticationError as error:
                # Not again: accounts are locked for that.
                raise AnsibleAuthenticationFailure(str(error)) from error
            except (trunkline.FileError, trunkline.LocalError) as error:
                raise AnsibleError(str(error)) from error
            except trunkline.Error as error:
                last = attempt >= int(self.get_option("reconnection_retries") or 0)
                if last or not error.may_pass or (error.may_have_run and not repeatable):
                    raise AnsibleConnectionFailure(f"{error} (what was asked for {error.execution})") from error
                pause = min(2**attempt - 1, 30)
                display.vv(f"TRUNKLINE RETRY in {pause} s: {error}", host=self._name)
                time.sleep(pause)
            except OSError as error:
                raise AnsibleError(f"on this machine: {error}") from error
        raise AssertionError("a loop without an end")

    def _escalate(self, process: trunkline.Process[bytes], in_data: bytes | None) -> Result:
        """Sees a command through that begins by becoming another user: the password is given when it is asked for, and
        ``in_data`` when the command itself reads."""
        with process:
            outputs = Outputs(process)
            if self._asks_nothing():
                # One round trip less: the module leaves with the command.
                self._send(process, in_data)
                self._answer(process, outputs)
            else:
                self._answer(process, outputs)
                self._send(process, in_data)
            stdout, stderr = outputs.rest()
            return process.wait(), stdout, stderr

    def _send(self, process: trunkline.Process[bytes], in_data: bytes | None) -> None:
        """Everything that the command reads."""
        # One that has ended already does not read; its status and what it wrote say why.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(in_data or b"")
            process.stdin.close()

    def _asks_nothing(self) -> bool:
        """Whether nothing but the command reads its input. ``sudo -n`` fails rather than ask; what else there is might take
        the input for a password."""
        if self.become.name != "sudo" or self.become.expect_prompt():
            return False
        flags = shlex.split(self.become.get_option("become_flags", playcontext=self._play_context) or "")
        # Letters may stand together, but for those of options with an argument, of which it would be part.
        return any(flag == "--non-interactive" or re.fullmatch("-[AbEHkNPSs]*n[AbEHkNPSs]*", flag) for flag in flags)

    def _answer(self, process: trunkline.Process[bytes], outputs: Outputs) -> None:
        """Returns when the become plugin sees that the command begins, or the command has ended before that."""
        become, asked = self.become, False
        # As the ssh plugin: connecting fails first.
        limit = 2 + int(self.get_option("timeout") or 0)
        for line in outputs.lines(limit):
            if become.expect_prompt() and become.check_password_prompt(line):
                if asked:
                    raise AnsibleError(f"Incorrect {become.name} password")
                asked = True
                outputs.drop()
                process.stdin.write(to_bytes(become.get_option("become_pass", playcontext=self._play_context)) + b"\n")
            elif become.success and become.check_success(line):
                outputs.drop()
                display.vvv("Escalation succeeded", host=self._name)
                return
            elif become.check_incorrect_password(line):
                raise AnsibleError(f"Incorrect {become.name} password")
            elif become.check_missing_password(line):
                raise AnsibleError(f"Missing {become.name} password")


class Outputs:
    """Both outputs of a process, read by threads, so that neither holds up the other."""

    def __init__(self, process: trunkline.Process[bytes]) -> None:
        #: Which output, and what came on it; nothing at its end.
        self._pieces: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._came = (bytearray(), bytearray())
        self._open = 2
        #: Where the line is that ``lines`` gave last.
        self._line = (self._came[0], 0, 0)
        for number, stream in enumerate((process.stdout, process.stderr)):
            threading.Thread(target=self._read, args=(number, stream), daemon=True).start()

    def _read(self, number: int, stream: Any) -> None:
        # A lost connection ends the streams too; the process's end tells of it.
        with contextlib.suppress(trunkline.Error):
            while piece := stream.read1(BUFFER):
                self._pieces.put((number, piece))
        self._pieces.put((number, b""))

    def _next(self, limit: float | None) -> tuple[bytearray, bytes]:
        number, piece = self._pieces.get(timeout=limit)
        self._open -= not piece
        return self._came[number], piece

    def lines(self, limit: float) -> Iterator[bytes]:
        """Lines as they come. One that has not ended may be a prompt: it is given too, and again when there is more of it.
        Fails when nothing comes for ``limit`` seconds."""
        while self._open:
            try:
                came, piece = self._next(limit)
            except queue.Empty:
                said = b"".join(self._came).decode(errors="replace")
                raise AnsibleConnectionFailure(f"Timeout ({limit}s) waiting for privilege escalation: {said}") from None
            start = came.rfind(b"\n") + 1
            came += piece
            for line in bytes(came[start:]).splitlines(keepends=True):
                self._line = (came, start, start + len(line))
                yield line
                start = self._line[2]

    def drop(self) -> None:
        """Forgets the line that ``lines`` gave last."""
        came, start, end = self._line
        del came[start:end]
        self._line = (came, start, start)

    def rest(self) -> tuple[bytes, bytes]:
        """All that came, once both have ended."""
        while self._open:
            came, piece = self._next(None)
            came += piece
        return bytes(self._came[0]), bytes(self._came[1])
