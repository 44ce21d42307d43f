"""Many hosts: what the clients of both names are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Union

from ..._jobs import Job, Pool, Steps
from ...config import HostConfig
from ...constants import DEFAULT_RETRIES, RETRY_DELAY
from ...exceptions import HostArgumentError, HostConfigError, SessionError, ShellError, Timeout
from ...output import HostOutput
from ...utils import logger
from ..common import has_answer, key_or_path
from .single import BaseSSHClient, Channel, InteractiveShell

_T = TypeVar("_T")

#: What a command's or a path's ``%`` is filled with for one host.
Arguments = Union[Mapping[str, Any], "tuple[Any, ...]", str]


class BaseParallelSSHClient:
    """Hosts to run commands on, ``pool_size`` at a time, all from one thread."""

    def __init__(
        self,
        hosts: Iterable[str],
        user: str | None = None,
        password: str | None = None,
        port: int | None = None,
        pkey: str | bytes | None = None,
        allow_agent: bool = True,
        num_retries: int = DEFAULT_RETRIES,
        timeout: float | None = 120,
        pool_size: int = 100,
        host_config: list[HostConfig] | None = None,
        retry_delay: float = RETRY_DELAY,
        identity_auth: bool = True,
        ipv6_only: bool = False,
        proxy_host: str | None = None,
        proxy_port: int | None = None,
        proxy_user: str | None = None,
        proxy_password: str | None = None,
        proxy_pkey: str | bytes | None = None,
        keepalive_seconds: float | None = None,
        cert_file: str | bytes | None = None,
        gssapi_auth: bool = False,
        gssapi_server_identity: str | None = None,
        gssapi_client_identity: str | None = None,
        gssapi_delegate_credentials: bool = False,
        forward_ssh_agent: bool = False,
        compress: bool = False,
        keyboard_interactive: bool = False,
    ) -> None:
        has_answer(keyboard_interactive, password)
        self.pool_size = pool_size
        self.pool = Pool(pool_size)
        self._hosts = _list(hosts)
        self.user = user
        self.password = password
        self.port = port
        self.pkey = key_or_path(pkey)
        self.allow_agent = allow_agent
        self.num_retries = num_retries
        self.timeout = timeout
        self.host_config = host_config
        self.retry_delay = retry_delay
        self.identity_auth = identity_auth
        self.ipv6_only = ipv6_only
        self.proxy_host = proxy_host
        self.proxy_port = proxy_port
        self.proxy_user = proxy_user
        self.proxy_password = proxy_password
        self.proxy_pkey = proxy_pkey
        self.keepalive_seconds = 0 if keepalive_seconds is None else keepalive_seconds
        self.cert_file = cert_file
        self.gssapi_auth = gssapi_auth
        self.gssapi_server_identity = gssapi_server_identity
        self.gssapi_client_identity = gssapi_client_identity
        self.gssapi_delegate_credentials = gssapi_delegate_credentials
        self.forward_ssh_agent = forward_ssh_agent
        self.compress = compress
        self.keyboard_interactive = keyboard_interactive
        self.cmds: list[Job[HostOutput]] | None = None
        self._host_clients: dict[tuple[int, str], BaseSSHClient] = {}
        if host_config is None:
            return
        if not isinstance(host_config, list):
            text = "Host configuration of type %s is invalid - valid types are List[HostConfig]"
            raise HostConfigError(text, type(host_config))
        if len(host_config) != len(self._hosts):
            raise ValueError(
                "Host config entries must match number of hosts if provided. "
                f"Got {len(host_config)} host config entries from {len(self._hosts)} hosts"
            )

    @property
    def hosts(self) -> list[str]:
        """The hosts; connections to those that another list has at the same place stay."""
        return self._hosts

    @hosts.setter
    def hosts(self, hosts: Iterable[str]) -> None:
        self._hosts = _list(hosts)
        kept = set(enumerate(self._hosts))
        self._host_clients = {place: client for place, client in self._host_clients.items() if place in kept}

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
        if host_args:
            try:
                commands = [command % host_args[place] for place in range(len(self._hosts))]
            except IndexError:
                raise HostArgumentError("Number of host arguments provided does not match number of hosts ") from None
        # Another greenlet's call meanwhile has its own.
        self.cmds = jobs = self._spawn(
            lambda client, place: client.ran(commands[place], shell, sudo, user, use_pty, encoding, read_timeout)
        )
        self.pool.wait(lambda: all(job._done for job in jobs), self.timeout or None)
        return self._outputs(jobs, stop_on_errors)

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
            outputs.append(HostOutput(self._hosts[place], None, None, None, alias=alias, exception=failure))
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
            raise ValueError("Unexpected output object type")
        end = None if timeout is None else time.monotonic() + timeout
        for one in output or ():
            channel = one.channel
            left = None if end is None else max(0.0, end - time.monotonic())
            if channel is not None and not self.pool.wait(lambda channel=channel: channel.ended, left):  # type: ignore[misc]
                finished = [each for each in output or () if self._has_ended(each)]
                running = [each for each in output or () if not self._has_ended(each)]
                raise Timeout("Timeout of %s sec(s) reached with commands still running", timeout, finished, running)
            if consume_output:
                for lines in (one.stdout, one.stderr):
                    for _ in lines or ():
                        pass

    def finished(self, output: list[HostOutput] | None = None) -> bool:
        """Return whether all commands have ended."""
        self.pool.turn()
        return all(self._has_ended(each) for each in (self.get_last_output() if output is None else output) or ())

    @staticmethod
    def _has_ended(output: HostOutput) -> bool:
        return output.channel is None or output.channel.ended

    # Shells.

    def open_shell(self, encoding: str = "utf-8", read_timeout: float | None = None) -> list[InteractiveShell]:
        """Opens a shell on every host."""
        return [job.get() for job in self._spawn(lambda client, _: self._shell(client, encoding, read_timeout))]

    @staticmethod
    def _shell(client: BaseSSHClient, encoding: str, read_timeout: float | None) -> Steps[InteractiveShell]:
        channel = yield from client.started(Channel(client), None, False)
        return InteractiveShell(channel, client, encoding, read_timeout)

    def run_shell_commands(self, shells: Sequence[InteractiveShell], commands: str | Sequence[str]) -> None:
        """Gives every shell the commands. ``ShellError`` if one takes none."""
        for shell in shells:
            for command in [commands] if isinstance(commands, str) else commands:
                try:
                    shell.run(command)
                except SessionError as error:
                    raise ShellError(error) from error

    def join_shells(self, shells: Sequence[InteractiveShell], timeout: float | None = None) -> None:
        """Waits for the shells' commands and ends them.

        ``Timeout`` after ``timeout`` seconds: its arguments are a text, the timeout, the shells that have ended and
        those that run.
        """
        end = self.timeout if timeout is None else timeout
        for shell in shells:
            channel = shell.output.channel
            if channel is not None and not channel.ended:
                channel.send_eof()
        if not self.pool.wait(lambda: all(self._has_ended(shell.output) for shell in shells), end):
            ended = [shell for shell in shells if self._has_ended(shell.output)]
            running = [shell for shell in shells if not self._has_ended(shell.output)]
            raise Timeout("Timeout of %s sec(s) reached with commands still running", timeout, ended, running)

    # Files.

    def copy_file(
        self, local_file: str, remote_file: str, recurse: bool = False, copy_args: Sequence[Arguments] | None = None
    ) -> list[Job[None]]:
        """Copies a file, or with ``recurse`` a tree, to every host. ``copy_args`` fill in the ``%`` of both paths.

        Returns a job for each host: its ``get`` waits, and raises what went wrong; ``gevent.joinall`` takes them.
        """
        return self._copies(BaseSSHClient.copied, self._paths(local_file, remote_file, copy_args), recurse, True)

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
        paths = self._paths(remote_file, local_file, copy_args, suffix_separator)
        return self._copies(BaseSSHClient.copied, paths, recurse, False)

    def scp_send(
        self, local_file: str, remote_file: str, recurse: bool = False, copy_args: Sequence[Arguments] | None = None
    ) -> list[Job[None]]:
        """As ``copy_file``, over SFTP too; a file goes into a ``remote_file`` that ends with a slash."""
        paths = self._paths(local_file, remote_file, copy_args, names=("local_file", "remote_file"))
        return self._copies(BaseSSHClient.copied_by_scp, paths, recurse, True)

    def scp_recv(
        self,
        remote_file: str,
        local_file: str,
        recurse: bool = False,
        copy_args: Sequence[Arguments] | None = None,
        suffix_separator: str = "_",
    ) -> list[Job[None]]:
        """As ``copy_remote_file``, over SFTP too; a file goes into a ``local_file`` that ends with a slash."""
        paths = self._paths(remote_file, local_file, copy_args, suffix_separator, ("remote_file", "local_file"))
        return self._copies(BaseSSHClient.copied_by_scp, paths, recurse, False)

    def _paths(
        self,
        source: str,
        target: str,
        copy_args: Sequence[Arguments] | None,
        separator: str | None = None,
        names: tuple[str, str] = ("", ""),
    ) -> list[tuple[str, str]]:
        """Source and target for each host; without arguments the targets are told apart by the hosts' names. Arguments that
        have the ``names`` are the paths themselves."""
        if copy_args:
            try:
                return [
                    (_filled(source, copy_args[place], names[0]), _filled(target, copy_args[place], names[1]))
                    for place in range(len(self._hosts))
                ]
            except IndexError:
                raise HostArgumentError(
                    "Number of per-host copy arguments provided does not match number of hosts"
                ) from None
        return [(source, target if separator is None else f"{target}{separator}{host}") for host in self._hosts]

    def _copies(
        self,
        copied: Callable[[BaseSSHClient, str, str, bool, bool], Steps[None]],
        paths: Sequence[tuple[str, str]],
        recurse: bool,
        upload: bool,
    ) -> list[Job[None]]:
        return self._spawn(lambda client, place: copied(client, *paths[place], recurse, upload))

    # Connections.

    def connect_auth(self) -> list[Job[Any]]:
        """Connects to all hosts. Returns jobs, as ``copy_file`` does."""
        return self._spawn(lambda client, _: self._ready(client))

    def disconnect(self) -> None:
        """Ends the connections."""
        for client in self._host_clients.values():
            client.disconnect()
        self._host_clients.clear()

    @staticmethod
    def _ready(client: BaseSSHClient) -> Steps[BaseSSHClient]:
        yield from client.connected()
        return client

    def _spawn(self, steps: Callable[[BaseSSHClient, int], Steps[_T]]) -> list[Job[_T]]:
        """Begins a job for every host, in order; ``steps`` are given its client and its place."""
        return [self.pool.spawn(self._with(place, host, steps)) for place, host in enumerate(self._hosts)]

    def _with(self, place: int, host: str, steps: Callable[[BaseSSHClient, int], Steps[_T]]) -> Steps[_T]:
        client = self._host_clients.get((place, host))
        if client is None:
            config = HostConfig() if self.host_config is None else self.host_config[place]
            client = self._host_clients[place, host] = self._client(host, config)
        return (yield from steps(client, place))

    def _client(self, host: str, config: HostConfig) -> BaseSSHClient:
        """Makes a host's client."""
        raise NotImplementedError

    def _of_host(self, config: HostConfig) -> dict[str, Any]:
        """Return the arguments that every client takes: a host's own, or everybody's."""

        def either(own: Any, common: Any) -> Any:
            return common if own is None else own

        return {
            "user": config.user or self.user,
            "password": config.password or self.password,
            "port": config.port or self.port,
            "pkey": config.private_key or self.pkey,
            "alias": config.alias,
            "num_retries": either(config.num_retries, self.num_retries),
            "retry_delay": either(config.retry_delay, self.retry_delay),
            "timeout": either(config.timeout, self.timeout),
            "allow_agent": either(config.allow_agent, self.allow_agent),
            "identity_auth": either(config.identity_auth, self.identity_auth),
            "ipv6_only": either(config.ipv6_only, self.ipv6_only),
            "compress": config.compress or self.compress,
            "_pool": self.pool,
        }


def _filled(path: str, arguments: Arguments, name: str) -> str:
    """A path for one host: what it is by its name, or filled in."""
    if isinstance(arguments, Mapping) and name in arguments:
        return str(arguments[name])
    return path % arguments


def _list(hosts: Iterable[str]) -> list[str]:
    if hosts is None:
        raise ValueError("hosts are needed")
    if isinstance(hosts, (str, bytes)):
        raise TypeError("Hosts must be list or other iterable, not string. For example: ['localhost'] not 'localhost'.")
    return list(hosts)
