"""``ParallelSSHClient``: many hosts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Union

from .._jobs import Job, Pool, Steps
from ..config import HostConfig
from ..exceptions import HostArgumentError, HostConfigError, InvalidAPIUseError, Timeout
from ..output import HostOutput
from ..utils import logger
from .single import DEFAULT_RETRIES, RETRY_DELAY, InteractiveShell, SSHClient

#: What a command's or a path's ``%`` is filled with for one host.
Arguments = Union[Mapping[str, Any], "tuple[Any, ...]", str]


class ParallelSSHClient:
    """Hosts to run commands on, ``pool_size`` at a time, all from one thread.

    - ``user``, ``password``, ``port``, ``pkey`` (a path, or a key as ``bytes``): how to log in;
    - ``allow_agent``, ``identity_auth``: whether the agent's keys and those in ``~/.ssh`` may be used, without ``pkey``;
    - ``num_retries``, ``retry_delay``: attempts to connect, and the seconds between them;
    - ``timeout``: seconds for each step of each host;
    - ``host_config``: a ``HostConfig`` for each host;
    - ``proxy_host`` and what begins with ``proxy_``: a host that the others are reached through;
    - ``keepalive_seconds``: how often a connection is looked after.

    ssh_config takes no part. Connections stay until ``disconnect``, or until the client is gone.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        user: str | None = None,
        password: str | None = None,
        port: int | None = 22,
        pkey: str | bytes | None = None,
        num_retries: int = DEFAULT_RETRIES,
        timeout: float | None = None,
        pool_size: int = 100,
        allow_agent: bool = True,
        host_config: list[HostConfig] | None = None,
        retry_delay: float = RETRY_DELAY,
        proxy_host: str | None = None,
        proxy_port: int | None = None,
        proxy_user: str | None = None,
        proxy_password: str | None = None,
        proxy_pkey: str | bytes | None = None,
        forward_ssh_agent: bool = False,
        keepalive_seconds: float = 60,
        identity_auth: bool = True,
        ipv6_only: bool = False,
        compress: bool = False,
        keyboard_interactive: bool = False,
    ) -> None:
        if keyboard_interactive and not password:
            raise InvalidAPIUseError("keyboard_interactive needs a password")
        self._arguments: dict[str, Any] = {
            "user": user,
            "password": password,
            "port": port,
            "pkey": pkey,
            "num_retries": num_retries,
            "timeout": timeout,
            "allow_agent": allow_agent,
            "retry_delay": retry_delay,
            "proxy_host": proxy_host,
            "proxy_port": proxy_port,
            "proxy_user": proxy_user,
            "proxy_password": proxy_password,
            "proxy_pkey": proxy_pkey,
            "forward_ssh_agent": forward_ssh_agent,
            "keepalive_seconds": keepalive_seconds,
            "identity_auth": identity_auth,
            "ipv6_only": ipv6_only,
            "compress": compress,
        }
        self.timeout = timeout
        self.pool = Pool(pool_size)
        self._clients: dict[tuple[int, str], SSHClient] = {}
        self._hosts = _list(hosts)
        self.host_config = host_config
        if host_config is not None:
            if not isinstance(host_config, list):
                raise HostConfigError(f"host_config is a list of HostConfig, not {type(host_config).__name__}")
            if len(host_config) != len(self._hosts):
                raise ValueError(f"there are {len(host_config)} host configurations for {len(self._hosts)} hosts")
        self.cmds: list[Job[HostOutput]] | None = None

    @property
    def hosts(self) -> list[str]:
        """The hosts; connections to those that another list has at the same place stay."""
        return self._hosts

    @hosts.setter
    def hosts(self, hosts: Iterable[str]) -> None:
        self._hosts = _list(hosts)
        kept = set(enumerate(self._hosts))
        self._clients = {place: client for place, client in self._clients.items() if place in kept}

    # Commands.

    def run_command(
        self,
        command: str,
        sudo: bool = False,
        user: str | None = None,
        stop_on_errors: bool = True,
        use_pty: bool = False,
        host_args: Sequence[Arguments] | None = None,
        shell: str | None = None,
        encoding: str = "utf-8",
        read_timeout: float | None = None,
    ) -> list[HostOutput]:
        """Starts a command on every host, and returns their outputs, in the hosts' order, once all have begun.

        ``host_args`` fill in the command's ``%`` for each host. The first host's failure is raised; with
        ``stop_on_errors=False`` it is its output's ``exception``.
        """
        commands = [command] * len(self._hosts)
        if host_args is not None:
            commands = [command % arguments for arguments in self._each(host_args)]
        self.cmds = [
            self.pool.spawn(client.ran(line, shell, sudo, user, use_pty, encoding, read_timeout))
            for client, line in zip(self._all(), commands)
        ]
        self.pool.wait(lambda: all(job._done for job in self.cmds or ()), self.timeout)
        return self._outputs(self.cmds, stop_on_errors)

    def get_last_output(self, cmds: list[Job[HostOutput]] | None = None) -> list[HostOutput] | None:
        """The outputs of the last ``run_command``."""
        cmds = self.cmds if cmds is None else cmds
        return None if cmds is None else self._outputs(cmds, False)

    def _outputs(self, jobs: list[Job[HostOutput]], raising: bool) -> list[HostOutput]:
        outputs = []
        for place, job in enumerate(jobs):
            failure = job.exception if job.ready() else Timeout(f"not begun within {self.timeout} s", self._hosts[place])
            if failure is None:
                outputs.append(job.get())
                continue
            if raising:
                raise failure
            logger.error("failed on host %s: %s", self._hosts[place], failure)
            alias = self.host_config[place].alias if self.host_config else None
            outputs.append(HostOutput(self._hosts[place], alias=alias, exception=failure))
        return outputs

    def join(
        self, output: list[HostOutput] | None = None, consume_output: bool = False, timeout: float | None = None
    ) -> None:
        """Waits until the commands have ended; their output is kept, or with ``consume_output`` given up.

        ``Timeout`` after ``timeout`` seconds: its arguments are a text, the timeout, the outputs of the commands that have
        ended and of those that run.
        """
        if output is None:
            output = self.get_last_output()
        elif not isinstance(output, list):
            raise ValueError("output is what run_command returns")
        end = None if timeout is None else time.monotonic() + timeout
        for one in output or ():
            channel = one.channel
            left = None if end is None else max(0.0, end - time.monotonic())
            if channel is not None and not self.pool.wait(lambda channel=channel: channel.ended, left):  # type: ignore[misc]
                finished = [each for each in output or () if self._has_ended(each)]
                running = [each for each in output or () if not self._has_ended(each)]
                raise Timeout(f"Timeout of {timeout} sec(s) reached with commands still running", timeout, finished, running)
            if consume_output:
                for lines in (one.stdout, one.stderr):
                    for _ in lines or ():
                        pass

    def finished(self, output: list[HostOutput] | None = None) -> bool:
        """Whether all commands have ended."""
        self.pool.turn()
        return all(self._has_ended(each) for each in (self.get_last_output() if output is None else output) or ())

    @staticmethod
    def _has_ended(output: HostOutput) -> bool:
        return output.channel is None or output.channel.ended

    # Shells.

    def open_shell(self, encoding: str = "utf-8", read_timeout: float | None = None) -> list[InteractiveShell]:
        """Opens a shell on every host."""
        jobs = [
            self.pool.spawn(client.ran(None, None, False, None, False, encoding, read_timeout)) for client in self._all()
        ]
        return [InteractiveShell(job.get()) for job in jobs]

    def run_shell_commands(self, shells: Sequence[InteractiveShell], commands: str | Sequence[str]) -> None:
        """Gives every shell the commands."""
        for shell in shells:
            for command in [commands] if isinstance(commands, str) else commands:
                shell.run(command)

    def join_shells(self, shells: Sequence[InteractiveShell], timeout: float | None = None) -> None:
        """Waits for the shells' commands and ends them. ``Timeout`` as for ``join``."""
        for shell in shells:
            channel = shell.output.channel
            if channel is not None and not channel.ended:
                channel.send_eof()
        self.join([shell.output for shell in shells], timeout=self.timeout if timeout is None else timeout)

    # Files.

    def copy_file(
        self, local_file: str, remote_file: str, recurse: bool = False, copy_args: Sequence[Arguments] | None = None
    ) -> list[Job[None]]:
        """Copies a file, or with ``recurse`` a tree, to every host. ``copy_args`` fill in the ``%`` of both paths.

        Returns a job for each host: its ``get`` waits, and raises what went wrong; ``gevent.joinall`` takes them.
        """
        return self._copies(local_file, remote_file, recurse, copy_args, True, "")

    def copy_remote_file(
        self,
        remote_file: str,
        local_file: str,
        recurse: bool = False,
        suffix_separator: str = "_",
        copy_args: Sequence[Arguments] | None = None,
        encoding: str = "utf-8",
    ) -> list[Job[None]]:
        """Copies a file from every host, to ``local_file`` with the separator and the host's name behind it; without
        them where ``copy_args`` tell the files apart. Returns jobs, as ``copy_file`` does."""
        return self._copies(remote_file, local_file, recurse, copy_args, False, suffix_separator)

    def scp_send(
        self, local_file: str, remote_file: str, recurse: bool = False, copy_args: Sequence[Arguments] | None = None
    ) -> list[Job[None]]:
        """As ``copy_file``, over SFTP too."""
        return self.copy_file(local_file, remote_file, recurse, copy_args)

    def scp_recv(
        self,
        remote_file: str,
        local_file: str,
        recurse: bool = False,
        copy_args: Sequence[Arguments] | None = None,
        suffix_separator: str = "_",
    ) -> list[Job[None]]:
        """As ``copy_remote_file``, over SFTP too."""
        return self.copy_remote_file(remote_file, local_file, recurse, suffix_separator, copy_args)

    def _copies(
        self,
        source: str,
        target: str,
        recurse: bool,
        copy_args: Sequence[Arguments] | None,
        upload: bool,
        separator: str,
    ) -> list[Job[None]]:
        paths = [(source, target)] * len(self._hosts)
        if copy_args is not None:
            paths = [(source % arguments, target % arguments) for arguments in self._each(copy_args)]
        elif not upload:
            paths = [(source, f"{target}{separator}{client.alias or client.host}") for client in self._all()]
        return [
            self.pool.spawn(client.copied(there, here, recurse, upload)) for client, (there, here) in zip(self._all(), paths)
        ]

    # Connections.

    def connect_auth(self) -> list[Job[Any]]:
        """Connects to all hosts. Returns jobs, as ``copy_file`` does."""
        return [self.pool.spawn(self._ready(client)) for client in self._all()]

    def disconnect(self) -> None:
        """Ends the connections."""
        for client in self._clients.values():
            client.disconnect()
        self._clients.clear()

    @staticmethod
    def _ready(client: SSHClient) -> Steps[SSHClient]:
        yield from client.connected()
        return client

    def _all(self) -> Iterator[SSHClient]:
        """The hosts' clients, in order."""
        for place, host in enumerate(self._hosts):
            client = self._clients.get((place, host))
            if client is None:
                client = self._clients[place, host] = SSHClient(host, **self._of_host(place), _pool=self.pool)
            yield client

    def _of_host(self, place: int) -> dict[str, Any]:
        """The arguments for one host's client."""
        if self.host_config is None:
            return self._arguments
        own = vars(self.host_config[place]).copy()
        own["pkey"] = own.pop("private_key")
        return {**self._arguments, **{name: value for name, value in own.items() if value is not None}}

    def _each(self, arguments: Sequence[Arguments]) -> Sequence[Arguments]:
        if len(arguments) != len(self._hosts):
            raise HostArgumentError(f"there are arguments for {len(arguments)} hosts, and {len(self._hosts)} hosts")
        return arguments


def _list(hosts: Iterable[str]) -> list[str]:
    if isinstance(hosts, (str, bytes)):
        raise TypeError("hosts are a list, such as ['localhost'], not one name")
    return list(hosts)
