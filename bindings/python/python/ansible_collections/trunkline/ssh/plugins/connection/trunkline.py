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
    this one. Those that say so are not used, but can be looked up.
  - A host is unreachable only if nothing was started there. A task that was cut off when it may have run has failed, and is
    not run again; so has a command that ended with status 255 or by a signal.
author: The trunkline authors
version_added: 0.1.0
requirements:
  - the Python package C(trunkline)
  - the program C(trunkline), on E(PATH) or named by E(TRUNKLINE_PROGRAM)
options:
  fleet:
    description:
      - Address of the NATS of a fleet, such as V(nats://nats1:4222), or V(yes) for the fleet that this machine belongs to.
        The fleet's nodes then run the tasks, each on its share of the hosts, which it reaches by its own C(ssh_config),
        known hosts and keys. Of the other options, O(host), O(port), O(remote_user) and O(reconnection_retries) hold.
      - Commands run without a terminal. Files, modules and what they return pass through NATS, which keeps them for as long
        as the fleet keeps its jobs; each has at most 64 MiB. Becoming another user must need no password, because that would
        be kept as well.
    type: string
    ini:
      - section: trunkline
        key: fleet
    env:
      - name: ANSIBLE_TRUNKLINE_FLEET
    vars:
      - name: ansible_trunkline_fleet
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
  password_mechanism:
    description: V(disable) leaves O(password) unused. Otherwise trunkline itself gives the password, without the programs
      that the C(ssh) plugin needs for it.
    type: string
    default: ssh_askpass
    choices: [ssh_askpass, sshpass, disable]
    env:
      - name: ANSIBLE_SSH_PASSWORD_MECHANISM
    ini:
      - section: ssh_connection
        key: password_mechanism
    vars:
      - name: ansible_ssh_password_mechanism
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
  ssh_executable:
    description: Not run. A warning says so where it names something else than V(ssh) or trunkline.
    type: string
    default: ssh
    env:
      - name: ANSIBLE_SSH_EXECUTABLE
    ini:
      - section: ssh_connection
        key: ssh_executable
    vars:
      - name: ansible_ssh_executable
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
  control_path:
    description: Not used. Connections are shared without a socket of ssh's.
    type: string
    ini:
      - section: ssh_connection
        key: control_path
    env:
      - name: ANSIBLE_SSH_CONTROL_PATH
    vars:
      - name: ansible_control_path
  control_path_dir:
    description: Not used. Connections are shared without a socket of ssh's.
    default: ~/.ansible/cp
    type: string
    ini:
      - section: ssh_connection
        key: control_path_dir
    env:
      - name: ANSIBLE_SSH_CONTROL_PATH_DIR
    vars:
      - name: ansible_control_path_dir
  scp_executable:
    description: Not used. Files go over the same connection as commands, without that program.
    default: scp
    type: string
    ini:
      - section: ssh_connection
        key: scp_executable
    env:
      - name: ANSIBLE_SCP_EXECUTABLE
    vars:
      - name: ansible_scp_executable
  scp_extra_args:
    description: Not used. Files go over the same connection as commands, without that program.
    default: ""
    type: string
    ini:
      - section: ssh_connection
        key: scp_extra_args
    env:
      - name: ANSIBLE_SCP_EXTRA_ARGS
    vars:
      - name: ansible_scp_extra_args
    cli:
      - name: scp_extra_args
  scp_if_ssh:
    description: Not used. It is O(ssh_transfer_method) that decides.
    default: smart
    type: string
    ini:
      - section: ssh_connection
        key: scp_if_ssh
    env:
      - name: ANSIBLE_SCP_IF_SSH
    vars:
      - name: ansible_scp_if_ssh
  sftp_batch_mode:
    description: Not used. Files go over the same connection as commands, without that program.
    default: true
    type: bool
    ini:
      - section: ssh_connection
        key: sftp_batch_mode
    env:
      - name: ANSIBLE_SFTP_BATCH_MODE
    vars:
      - name: ansible_sftp_batch_mode
  sftp_executable:
    description: Not used. Files go over the same connection as commands, without that program.
    default: sftp
    type: string
    ini:
      - section: ssh_connection
        key: sftp_executable
    env:
      - name: ANSIBLE_SFTP_EXECUTABLE
    vars:
      - name: ansible_sftp_executable
  sftp_extra_args:
    description: Not used. Files go over the same connection as commands, without that program.
    default: ""
    type: string
    ini:
      - section: ssh_connection
        key: sftp_extra_args
    env:
      - name: ANSIBLE_SFTP_EXTRA_ARGS
    vars:
      - name: ansible_sftp_extra_args
    cli:
      - name: sftp_extra_args
  sshpass_prompt:
    description: Not used. It is known what asks for a password.
    default: ""
    type: string
    ini:
      - section: ssh_connection
        key: sshpass_prompt
    env:
      - name: ANSIBLE_SSHPASS_PROMPT
    vars:
      - name: ansible_sshpass_prompt
  verbosity:
    description: Not used. C(trunkline explain) and the daemon's log tell what ssh would.
    default: 0
    type: int
    ini:
      - section: ssh_connection
        key: verbosity
    env:
      - name: ANSIBLE_SSH_VERBOSITY
    vars:
      - name: ansible_ssh_verbosity
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

import argparse
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
from typing import Any, BinaryIO, TypeVar, cast

import ansible.constants as constants
import trunkline
from ansible.errors import (
    AnsibleActionFail,
    AnsibleAuthenticationFailure,
    AnsibleConnectionFailure,
    AnsibleError,
    AnsibleFileNotFound,
)
from ansible.module_utils.common.text.converters import to_bytes, to_text
from ansible.plugins.connection import ConnectionBase
from ansible.release import __version__
from ansible.utils.display import Display
from trunkline._options import program, quoted

display = Display()

_T = TypeVar("_T")

#: What is read at once of an output or a file.
BUFFER = 1024 * 1024

#: Seconds for what cannot become another user to end, when it is told to.
GRACE = 10

#: Kills all processes whose arguments its own names a pattern of, and says whether none is left.
KILL = """command -v pgrep >/dev/null || exit 1
for turn in 1 2 3 4 5 6 7 8 9 10; do
    pkill -KILL -f "$1"
    pgrep -f "$1" >/dev/null || exit 0
    sleep 0.1
done
exit 1"""

#: How a task's way through a fleet is called, and a file's, which can be sent again.
FLEET = "the fleet"
FLEET_FILE = "the fleet, for a file"

#: The longest file that a fleet takes, in bytes: as its commands' input.
LONGEST = 64 * 1024 * 1024

#: Writes its input to a file, all of it.
PUT = 'cat >"$1" && if [ "$(wc -c <"$1")" -ne "$2" ]; then echo "it did not arrive whole" >&2; exit 1; fi'

#: Tells a file's mode, by GNU's stat, or by BSD's; nothing where it is not known.
MODE = 'stat -L -c %a "$1" 2>/dev/null || stat -L -f %Lp "$1" 2>/dev/null'

#: Reads a file, and tells its mode on standard error.
FETCH = (
    'size=$(wc -c <"$1") || exit 1; '
    'if [ "$size" -gt "$2" ]; then echo "$1 is longer than 64 MiB, the most that a fleet takes" >&2; exit 1; fi; '
    f"{{ {MODE}; }} >&2; "
    'exec cat <"$1"'
)

#: What says how this machine logs in, and nothing to a fleet's nodes.
NOT_FOR_FLEETS = ("private_key_file", "private_key", "pkcs11_provider", "ssh_args", "ssh_common_args", "ssh_extra_args")

#: Status, output, error output.
Result = tuple[int, bytes, bytes]

#: Opens a file on the host, to write it where a mode is given, which it gets if it is made. As a context that gives the file
#: and its mode.
OpenThere = Callable[[str, "int | None"], contextlib.AbstractContextManager[tuple[Any, int]]]

#: What ssh says, by which playbooks and people know what happened, for what the engine says.
SSH_WORDS = (
    (r"^looking up (\S+): (failed to lookup address information: )?", r"ssh: Could not resolve hostname \1: "),
    (
        r"^connecting to (\S+) port (\d+): no answer within",
        r"ssh: connect to host \1 port \2: Connection timed out: no answer within",
    ),
    (r"^connecting to (\S+) port (\d+): ", r"ssh: connect to host \1 port \2: "),
    (
        r"^(?:the exchange of identifications|key exchange|authentication) with (\S+): no answer within",
        r"Connection to \1 timed out: no answer within",
    ),
    (r"^the connection to (\S+) was closed by the other end", r"Connection closed by \1"),
    (r": permission denied \(", r": Permission denied ("),
    (r"(: Permission denied \([^)]*\))$", r"\1."),
    (r"^(THE HOST KEY OF \S+ HAS CHANGED)", r"WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! \1"),
)


class CutOff(AnsibleActionFail, AnsibleConnectionFailure):
    """A task that may have run. It has failed: its host is not unreachable, which would say that nothing was done there.
    Tasks that expect to lose their connection, such as ``reboot``, know it as a failure of the connection."""

    omit_failed_key = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        # Before ansible-core 2.19, a traceback that nobody needs.
        self.result.pop("exception", None)


#: What it means that nobody asks for a password: since ansible-core 2.19, that the host is unreachable.
NoPrompt = AnsibleConnectionFailure if tuple(map(int, __version__.split(".")[:2])) >= (2, 19) else AnsibleError


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
        if self._fleet:
            return self._told(self._exec_on_fleet(cmd, in_data, self.become if sudoable else None))
        # Python reads its program from standard input only where that is not a terminal.
        on_terminal = not in_data and ((sudoable and self.get_option("use_tty")) or self._is_tty_requested())
        # A size of 0 is none, so that nothing is cut to a width.
        terminal = on_terminal and trunkline.Terminal(os.environ.get("TERM", "dumb"), 0, 0)
        become = self.become if sudoable else None
        display.vvv(f"ESTABLISH SSH CONNECTION FOR USER: {self.get_option('remote_user')}", host=self._name)
        display.vvv(f"TRUNKLINE EXEC {cmd}", host=self._name)
        if become and (become.prompt or become.success):

            def escalate(host: trunkline.Connection) -> Result:
                return self._escalate(host, host.start(cmd, encoding=None, terminal=terminal), in_data, on_terminal)

            return self._told(self._attempt(escalate, in_data))

        def run(host: trunkline.Connection) -> Result:
            result = host.run(cmd, input=in_data, encoding=None, terminal=terminal)
            return result.returncode, result.stdout, result.stderr

        return self._told(self._attempt(run, in_data))

    def _told(self, result: Result) -> Result:
        """A command's result, which is shown to whoever wants to see all, as the ssh plugin shows it."""
        censored = f"rc={result[0]}, stdout and stderr censored due to no log"
        display.vvv(censored if self._play_context.no_log else str(result), host=self._name)
        return result

    def _exec_on_fleet(self, cmd: str, in_data: bytes | None, become: Any) -> Result:
        """Has a node of the fleet run a command line."""
        if become and become.get_option("become_pass", playcontext=self._play_context):
            raise AnsibleError(
                f"a fleet takes no {become.name} password, which its NATS would keep: let {become.name} need none on this "
                "host, or reach the host without the fleet"
            )
        display.vvv(f"TRUNKLINE EXEC BY THE FLEET {cmd}", host=self._name)
        status, stdout, stderr = self._attempt_at(functools.partial(self._run_on_fleet, cmd, in_data), in_data, FLEET)
        if not (become and become.success):
            return status, stdout, stderr
        lines = stdout.splitlines(keepends=True)
        for number, line in enumerate(lines):
            if become.check_success(line):
                return status, b"".join(lines[:number] + lines[number + 1 :]), stderr
        seen = {self._event(line) for line in [*lines, *stderr.splitlines()]}
        if "incorrect" in seen:
            raise AnsibleError(f"Incorrect {become.name} password")
        if seen & {"missing", "prompt"}:
            raise AnsibleError(f"Missing {become.name} password")
        return status, stdout, stderr

    def _run_on_fleet(self, cmd: str, in_data: bytes | None = None) -> Result:
        """Runs a command as a job of one host. Raises the error of one that did not run to its end."""
        with trunkline.Group(self._fleet_host(), fleet=self._fleet) as group:
            done = group.run(cmd, input=in_data, encoding=None).wait()[0].unwrap()
        return done.returncode, done.stdout, done.stderr

    def _fleet_host(self) -> str:
        """The host as the fleet's nodes are to know it."""
        for option in NOT_FOR_FLEETS:
            if self.get_option(option):
                raise AnsibleError(f"a fleet's nodes reach hosts by their own ssh_config and keys: leave out {option}")
        if self._password:
            raise AnsibleError("a fleet's nodes log in with their own keys: leave out the password")
        user, port = self.get_option("remote_user"), self.get_option("port")
        name = f"{user}@{self._name}" if user else self._name
        return f"ssh://{name}:{port}" if port else name

    @property
    def _fleet(self) -> str | bool:
        """The fleet's address, or whether it is this machine's."""
        fleet = str(self.get_option("fleet") or "")
        if fleet.lower() in ("yes", "true"):
            return True
        return fleet if fleet.lower() not in ("no", "false") else False

    @property
    def has_tty(self) -> bool:
        """Whether commands run on a terminal."""
        if self._fleet:
            return False
        return self._is_tty_requested() or (self.get_option("use_tty") and not self.get_option("pipelining"))

    def is_pipelining_enabled(self, wrap_async: bool = False) -> bool:
        """Return whether modules go to Python's standard input, which must be no terminal then."""
        return not self._is_tty_requested() and bool(super().is_pipelining_enabled(wrap_async))

    def _is_tty_requested(self) -> bool:
        """Return whether the arguments for ssh ask for a terminal; what its files say is not seen here."""
        parser = argparse.ArgumentParser(add_help=False)
        parser.add_argument("-t", action="count")
        parser.add_argument("-o", action="append", default=[])
        words = [word for name in ("ssh_args", "ssh_common_args", "ssh_extra_args") for word in self._words(name)]
        asked, _ = parser.parse_known_args(words)
        return bool(asked.t) or any(re.match(r"\s*requesttty\s*[=\s]\s*(yes|force)\s*$", line, re.I) for line in asked.o)

    def _words(self, name: str) -> list[str]:
        """An option's arguments for ssh."""
        words: list[str] = self._split_ssh_args(self.get_option(name) or "")
        return words

    def put_file(self, in_path: str, out_path: str) -> None:
        """Copies a file to the host."""
        super().put_file(in_path, out_path)
        display.vvv(f"TRUNKLINE PUT {in_path} TO {out_path}", host=self._name)
        if not os.path.exists(in_path):
            raise AnsibleFileNotFound(f"file or module does not exist: {in_path}")
        if self._fleet:
            if os.path.getsize(in_path) > LONGEST:
                raise AnsibleError(f"{in_path} is longer than {LONGEST >> 20} MiB, the most that a fleet takes")
            content = Path(in_path).read_bytes()
            script = umask_for(os.stat(in_path).st_mode) + PUT
            self._transfer_on_fleet(in_path, out_path, [script, "sh", out_path, str(len(content))], content)
            return

        def put(open_there: OpenThere) -> None:
            with open(in_path, "rb") as source, open_there(out_path, os.fstat(source.fileno()).st_mode) as (target, _):
                shutil.copyfileobj(source, target, BUFFER)

        self._transfer(in_path, out_path, put)

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Copies a file from the host."""
        super().fetch_file(in_path, out_path)
        display.vvv(f"TRUNKLINE FETCH {in_path} TO {out_path}", host=self._name)
        if self._fleet:
            content, said = self._transfer_on_fleet(in_path, out_path, [FETCH, "sh", in_path, str(LONGEST)])
            with create(out_path, mode_told(said)) as target:
                target.write(content)
            return

        def fetch(open_there: OpenThere) -> None:
            with open_there(in_path, None) as (source, mode), create(out_path, mode) as target:
                shutil.copyfileobj(source, target, BUFFER)

        self._transfer(in_path, out_path, fetch)

    def _transfer(self, in_path: str, out_path: str, work: Callable[[OpenThere], None]) -> None:
        """Moves a file over SFTP, or without. It can be done again: what is written is a file of the task's own, which
        nothing has read yet."""
        method = self.get_option("ssh_transfer_method")

        def move(host: trunkline.Connection) -> None:
            if method != "piped" and not self._has_no_sftp:
                try:
                    with host.sftp() as sftp:
                        return work(functools.partial(self._open_by_sftp, sftp))
                except trunkline.LimitError as error:
                    if method == "sftp":
                        raise
                    display.vvv(f"TRUNKLINE files go through dd: {error}", host=self._name)
                    self._has_no_sftp = True
            return work(functools.partial(self._open_by_dd, host))

        try:
            self._attempt(move, through="piped" if method == "piped" else "sftp")
        except (trunkline.FileError, DdError) as error:
            raise AnsibleError(f"failed to transfer file to {in_path} {out_path}:\n{error}") from None

    def _transfer_on_fleet(
        self, in_path: str, out_path: str, script: list[str], content: bytes | None = None
    ) -> tuple[bytes, bytes]:
        """Moves a file by a command, as its input or its output, and returns both outputs. As over SFTP, it can be done
        again."""
        command = shlex.join(["sh", "-c", *script])
        moving = functools.partial(self._run_on_fleet, command, content)
        status, stdout, stderr = self._attempt_at(moving, through=FLEET_FILE)
        if status != 0:
            raise AnsibleError(f"failed to transfer file to {in_path} {out_path}:\n{to_text(stderr).strip()}")
        return stdout, stderr

    @contextlib.contextmanager
    def _open_by_sftp(self, sftp: trunkline.SFTP, path: str, mode: int | None) -> Iterator[tuple[Any, int]]:
        """A file on the host over SFTP."""
        if mode is None:
            with sftp._open(path, "rb") as source:
                # A server that does not tell it: as sftp.
                yield source, source.raw.stat().st_mode or 0o666
        else:
            with sftp._open(path, "wb", mode & 0o777) as target:
                yield target, mode

    @contextlib.contextmanager
    def _open_by_dd(self, host: trunkline.Connection, path: str, mode: int | None) -> Iterator[tuple[Any, int]]:
        """A file on the host as dd's input or output."""
        writes = mode is not None
        line = f"dd {'of' if writes else 'if'}={self._shell.quote(path)} bs=65536"
        if mode is None:
            mode = mode_told(host.run(["sh", "-c", MODE, "sh", path], encoding=None).stdout)
        else:
            line = umask_for(mode) + line
        with host.start(line, encoding=None) as process:
            # A dd that cannot open the file does not read; its status, and what it said, tell why.
            with contextlib.suppress(BrokenPipeError):
                yield (process.stdin if writes else process.stdout), mode
                process.stdin.close()
            said = process.stderr.read()
            if process.wait() != 0:
                raise DdError(to_text(said).strip() or "dd failed")

    def reset(self) -> None:
        """Has the next command connect anew."""
        if self._fleet:
            display.warning("Failed to reset connection: the fleet's nodes keep theirs")
            return
        try:
            closed = self._reach().disconnect()
        except (trunkline.Error, AnsibleError) as error:
            # As the ssh plugin. There is no task that could fail.
            display.warning(f"Failed to reset connection: {error}")
        else:
            display.vvv(f"TRUNKLINE RESET: connections that end: {closed}", host=self._name)
        self.close()

    def close(self) -> None:
        """Lets go of the host; the daemon keeps its connection."""
        if self._host is not None:
            self._host.close()
            self._host = None

    @property
    def _name(self) -> str:
        """The host, which becomes a word among ssh's arguments: an inventory must not set options."""
        name = str(self.get_option("host") or self._play_context.remote_addr)
        if name.startswith("-"):
            raise AnsibleError(f"{name} is not the name of a host: it begins with -")
        return name

    def _reach(self) -> trunkline.Connection:
        if self._host is None:
            try:
                self._warn_of_what_is_not_run()
                password = self._password
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
                raise AnsibleError(str(error)) from None
        return self._host

    @property
    def _password(self) -> str | None:
        if self.get_option("password_mechanism") == "disable":
            return None
        return self.get_option("password") or self._play_context.password or None

    def _warn_of_what_is_not_run(self) -> None:
        executable = self.get_option("ssh_executable")
        found = shutil.which(executable) or executable
        if os.path.basename(executable) != "ssh" and os.path.basename(os.path.realpath(found)) != "trunkline":
            display.warning(f"ssh_executable ({executable}) is not run by the connection plugin {self.transport}")

    def _ssh_args(self) -> list[str]:
        """The options as ssh's arguments, of which the first wins, in the ssh plugin's order."""
        args = self._words("ssh_args")
        if not self.get_option("host_key_checking"):
            args += ["-o", "StrictHostKeyChecking=no"]
        if self.get_option("port"):
            args += ["-o", f"Port={self.get_option('port')}"]
        if self.get_option("private_key"):
            args += ["-o", "IdentitiesOnly=yes", "-o", f"IdentityFile={quoted(str(self._key_in_agent()))}"]
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
            args += self._words(more)
        return args

    def _log_in_by_token(self, pin: str) -> None:
        """Has the system's ssh log in, unless it is, and stay: the daemon, which cannot ask it, finds it there. The PIN is
        given when ssh asks for it, once, and by a pipe. ssh says why it is not let in."""
        with tempfile.TemporaryDirectory() as directory:
            pipe, ask = Path(directory, "pin"), Path(directory, "ask")
            os.mkfifo(pipe, 0o600)
            word = shlex.quote(str(pipe))
            ask.write_text(f'#!/bin/sh\ncase $1 in "Enter PIN for "*) cat {word} && rm {word} ;; *) exit 1 ;; esac\n')
            ask.chmod(0o700)
            answering = threading.Thread(target=pipe.write_text, args=(f"{pin}\n",), daemon=True)
            answering.start()
            done = subprocess.run(
                # The host first: no word among the arguments can take its place.
                [program(), "ssh", self._name, *self._ssh_args(), "true"],
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
        directory = Path(constants.ANSIBLE_HOME, "trunkline")
        file = directory / f"{hashlib.sha256(line.encode()).hexdigest()}.pub"
        if not file.exists():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Other workers may read it at any moment.
            new = directory / f"{file.name}.{os.getpid()}"
            new.write_text(f"{line}\n")
            new.rename(file)
        return file

    def _attempt(self, work: Callable[[trunkline.Connection], _T], in_data: bytes | None = None, through: str = "ssh") -> _T:
        """Does ``work``, again if the host cannot be reached and it did not start. What goes ``through`` something else than
        "ssh" is a transfer, which can be done again in any case."""
        return self._attempt_at(lambda: work(self._reach()), in_data, through)

    def _attempt_at(self, work: Callable[[], _T], in_data: bytes | None = None, through: str = "ssh") -> _T:
        """The same, for what reaches the host by itself. What goes through ``FLEET`` is a task, too."""
        for attempt in itertools.count():
            try:
                return work()
            except trunkline.FileError:
                raise
            except trunkline.Error as error:
                failure = self._failure(error, in_data, through)
                last = attempt >= int(self.get_option("reconnection_retries") or 0)
                # Not where the server refuses the user: accounts are locked for that.
                if last or not error.may_pass or isinstance(failure, CutOff):
                    raise failure from None
                pause = min(2**attempt - 1, 30)
                display.vv(f"ssh_retry: attempt: {attempt + 1}, {failure}, pausing for {pause} seconds", host=self._name)
                time.sleep(pause)
            except (OSError, ValueError) as error:
                raise AnsibleError(f"on this machine: {error}") from None
        raise AssertionError("a loop without an end")

    def _failure(self, error: trunkline.Error, in_data: bytes | None, through: str) -> AnsibleError:
        """Return the error that a failure means for the task: the host is unreachable only if nothing of it has started."""
        said = "<error censored due to no log>" if self._play_context.no_log else self._as_ssh(error)
        if error.may_have_run and through in ("ssh", FLEET):
            return CutOff(f"The task was cut off, and may have run; it is not run again: {said}")
        if isinstance(error, trunkline.LocalError):
            return AnsibleError(f"on this machine: {said}")
        if isinstance(error, trunkline.HostKeyError) and self._password and self.get_option("host_key_checking"):
            return AnsibleError(
                "Using a SSH password instead of a key is not possible because Host Key checking is enabled. "
                f"Please add this host's fingerprint to your known_hosts file to manage this host.\n{said}"
            )
        if isinstance(error, trunkline.FleetError) and not error.may_have_run:
            return AnsibleConnectionFailure(f"The fleet did not start it: {said}")
        if in_data and through == "ssh":
            reached = f'Data could not be sent to remote host "{self._name}". Make sure this host can be reached over ssh'
        else:
            reached = f"Failed to connect to the host via {through}"
        # As the ssh plugin, which tells a wrong password from other refusals.
        if isinstance(error, trunkline.AuthenticationError) and self._password:
            return AnsibleAuthenticationFailure(f"{reached}: Invalid/incorrect password: {said}")
        return AnsibleConnectionFailure(f"{reached}: {said}")

    def _as_ssh(self, error: trunkline.Error) -> str:
        """Return the failure's message, in ssh's words if it has some."""
        said = str(error).removesuffix(f"; the command {error.execution}")
        for words, of_ssh in SSH_WORDS:
            said = re.sub(words, of_ssh, said)
        return f"{said}\nHost key verification failed." if isinstance(error, trunkline.HostKeyError) else said

    def _escalate(
        self, host: trunkline.Connection, process: trunkline.Process[bytes], in_data: bytes | None, on_terminal: bool
    ) -> Result:
        """Sees a command through that begins by becoming another user: the password is given when it is asked for, and
        ``in_data`` when the command itself reads."""
        with process:
            outputs = Outputs(process)
            # As the ssh plugin: connecting fails first.
            limit = 2 + int(self.get_option("timeout") or 0)
            # One round trip less: the module leaves with the command.
            early = bool(in_data) and self._asks_nothing()
            if early:
                self._send(process, in_data)
            try:
                self._negotiate(process, outputs, limit)
            except queue.Empty:
                said = f"Timeout ({limit}s) waiting for privilege escalation prompt: {outputs.streams[0]}"
                # A module that was not sent cannot begin.
                if (in_data and not early) or self._ends(host, process, outputs, on_terminal):
                    raise NoPrompt(said) from None
                raise CutOff(f"{said}\nThe command may have begun since. It is not run again.") from None
            if not early:
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
        """Return whether nothing but the command reads its input. ``sudo -n`` fails rather than ask; what else there is
        might take the input for a password."""
        if self.become.name != "sudo" or self.become.expect_prompt():
            return False
        flags = shlex.split(self.become.get_option("become_flags", playcontext=self._play_context) or "")
        # Letters may stand together, but for those of options with an argument, of which it would be part.
        return any(flag == "--non-interactive" or re.fullmatch("-[AbEHkNPSs]*n[AbEHkNPSs]*", flag) for flag in flags)

    def _negotiate(self, process: trunkline.Process[bytes], outputs: Outputs, limit: int) -> None:
        """Returns when the become plugin sees that the command begins, or the command has ended before that. As in the ssh
        plugin, what says that a password is wrong or missing counts once no prompt is waited for. Raises ``queue.Empty``
        when nothing comes for ``limit`` seconds."""
        become = self.become
        waits_for_prompt = bool(become.prompt)
        seen: set[str] = set()
        while stream := outputs.next(limit):
            seen |= stream.examine(self._event)
            if waits_for_prompt and "prompt" in seen:
                seen.remove("prompt")
                waits_for_prompt = False
                password = become.get_option("become_pass", playcontext=self._play_context)
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(to_bytes(password, errors="surrogate_or_strict") + b"\n")
            if "success" in seen:
                display.vvv("Escalation succeeded", host=self._name)
                return
            if not waits_for_prompt and seen & {"incorrect", "prompt"}:
                said = "Escalation failed" if "incorrect" in seen else "Escalation prompt repeated"
                display.vvv(said, host=self._name)
                raise AnsibleError(f"Incorrect {become.name} password")
            if not waits_for_prompt and "missing" in seen:
                display.vvv("Escalation requires password", host=self._name)
                raise AnsibleError(f"Missing {become.name} password")

    def _event(self, line: bytes) -> str | None:
        """Return the event that the become plugin reads in a line."""
        become = self.become
        if become.expect_prompt() and become.check_password_prompt(line):
            return "prompt"
        if become.success and become.check_success(line):
            return "success"
        if become.check_incorrect_password(line):
            return "incorrect"
        return "missing" if become.check_missing_password(line) else None

    def _ends(
        self, host: trunkline.Connection, process: trunkline.Process[bytes], outputs: Outputs, on_terminal: bool
    ) -> bool:
        """Ends what was to become another user, and says whether it has ended before the command began, which would have
        told of itself. With the connection stuck, nobody knows."""
        with contextlib.suppress(trunkline.Error, BrokenPipeError):
            # Programs that are another user's take no signal, but end when their terminal or their input does.
            if on_terminal:
                process.stdin.write(b"\x03")
            process.stdin.close()
            process.terminate()
            try:
                process.wait(GRACE)
            except trunkline.TimeoutError:
                # Up to 9.7 sshd delivers no signal to root's commands. Those that these programs run have a mark in their
                # arguments that nothing else has; the brackets keep the script from finding itself.
                mark = self.become.success
                if self.become.name not in ("sudo", "su", "doas"):
                    return False
                if host.run(["sh", "-c", KILL, "sh", f"[{mark[0]}]{mark[1:]}"], timeout=GRACE).returncode != 0:
                    return False
                process.wait(GRACE)
            return not self.become.check_success(b"\n".join(outputs.rest()))
        return False


def create(path: str, mode: int) -> BinaryIO:
    """Opens a file here to write it; as by sftp, one that is made is readable for nobody who could not read the host's."""
    opener = functools.partial(os.open, mode=mode & 0o777 | 0o200)
    return cast("BinaryIO", open(path, "wb", opener=opener))


def mode_told(said: bytes) -> int:
    """A file's mode as ``MODE`` tells it; nobody else's where it does not."""
    last = said.split()[-1:]
    return int(last[0], 8) if last and re.fullmatch(rb"[0-7]{1,5}", last[0]) else 0o600


def umask_for(mode: int) -> str:
    """Return the prefix of a command that writes the copy of a file, so that a private one stays private."""
    return "" if mode & 0o077 else "umask 077; "


class DdError(Exception):
    """``dd`` could not read or write a file on the host."""


class Output:
    """One of a process's outputs."""

    def __init__(self) -> None:
        #: What has come, without what was for the become plugin.
        self.kept = bytearray()
        #: How much of that are whole lines that were looked at.
        self._examined = 0

    def __str__(self) -> str:
        return self.kept.decode(errors="replace")

    def examine(self, event: Callable[[bytes], str | None]) -> set[str]:
        """Looks through the lines that came since, and says which events were among them. A line that has not ended may be
        a prompt: it is looked at too, and again when there is more of it. Prompts and successes are not kept."""
        events = set()
        lines = bytes(self.kept[self._examined :]).splitlines(keepends=True)
        del self.kept[self._examined :]
        for line in lines:
            found = event(line)
            if found:
                events.add(found)
            if found in ("prompt", "success"):
                continue
            self.kept += line
            if line.endswith(b"\n"):
                self._examined = len(self.kept)
        return events


class Outputs:
    """Both outputs of a process, read by threads, so that neither holds up the other."""

    def __init__(self, process: trunkline.Process[bytes]) -> None:
        self.streams = (Output(), Output())
        #: Which output, and what came on it; nothing at its end.
        self._pieces: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._open = 2
        for number, stream in enumerate((process.stdout, process.stderr)):
            threading.Thread(target=self._read, args=(number, stream), daemon=True).start()

    def _read(self, number: int, stream: Any) -> None:
        # A lost connection ends the streams too; the process's end tells of it.
        with contextlib.suppress(trunkline.Error):
            while piece := stream.read1(BUFFER):
                self._pieces.put((number, piece))
        self._pieces.put((number, b""))

    def next(self, limit: float | None = None) -> Output | None:
        """The output on which more has come; nothing at the end of both. Raises ``queue.Empty`` after ``limit`` seconds."""
        while self._open:
            number, piece = self._pieces.get(timeout=limit)
            if piece:
                self.streams[number].kept += piece
                return self.streams[number]
            self._open -= 1
        return None

    def rest(self) -> tuple[bytes, bytes]:
        """All that came, once both have ended."""
        while self.next():
            pass
        stdout, stderr = self.streams
        return bytes(stdout.kept), bytes(stderr.kept)
