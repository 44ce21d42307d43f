"""Programs for parallel-ssh, each run on it and on trunkline against the same servers. A program says what it saw with
`see`."""

from __future__ import annotations

import functools
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

See = Callable[..., None]
Program = Callable[[Any, See, Any], None]


def raised(call: Callable[[], object]) -> list[Any]:
    """Return the exception of a call: class and arguments, of which exceptions are shown by their classes."""
    try:
        call()
    except BaseException as error:
        return [type(error).__name__, [_argument(each) for each in error.args]]
    return ["nothing"]


def _argument(value: Any) -> Any:
    return (
        value if isinstance(value, (str, int, float, type(None))) else type(value).__module__.split(".")[0] in ("builtins",)
    )


def kind(call: Callable[[], object]) -> str:
    """The class of what a call raises, where the arguments are each one's own."""
    return str(raised(call)[0])


def _parallel(pssh: Any, about: Any, **more: Any) -> Any:
    from pssh.clients import ParallelSSHClient
    from pssh.config import HostConfig

    hosts = about["hosts"]
    configs = [
        HostConfig(port=each["port"], private_key=each["key"], alias=f"the {place}") for place, each in enumerate(hosts)
    ]
    return ParallelSSHClient(
        [each["address"] for each in hosts], user=about["user"], **{"host_config": configs, "num_retries": 1, **more}
    )


def _one(pssh: Any, about: Any, **more: Any) -> Any:
    from pssh.clients import SSHClient

    where = {"user": about["user"], "port": about["port"], "pkey": about["key"], "num_retries": 1}
    return SSHClient(about["address"], **{**where, **more})


def _said(client: Any, output: Any) -> tuple[list[str], int]:
    """The output and the status of one host's command: the original has no status yet where the output has just ended."""
    lines = list(output.stdout)
    client.wait_finished(output)
    return lines, output.exit_code


def output_and_status(pssh: Any, see: See, about: Any) -> None:
    client = _parallel(pssh, about)
    output = client.run_command("echo $0 me; echo 'two  '; printf 'no end'; echo err >&2; exit 3")
    client.join(output)
    for each in output:
        see(each.host, each.alias, list(each.stdout), list(each.stderr), each.exit_code, each.exception, each.encoding)
        see(
            each.fully_qualified_command,
            each.read_timeout,
            each.client is not None,
            type(each).__name__,
            type(each.stdin).__name__,
        )
        see(list(each.stdout), str(each).splitlines()[0], len(repr(each).splitlines()))
    see(client.get_last_output() == output, client.finished(), client.finished(output))
    output = client.run_command("printf 'a\\r\\nb\\n\\nlast'")
    see([list(each.stdout) for each in output])


def disconnecting(pssh: Any, see: See, about: Any) -> None:
    """Output after it can be read, and more commands can be run."""
    client = _one(pssh, about)
    outputs = [client.run_command(f"sleep 0.{number}; echo {number}; exit {number}") for number in (1, 3)]
    client.disconnect()
    client.disconnect()
    see([_said(client, output) for output in outputs])
    see(_said(client, client.run_command("echo again")))
    with _one(pssh, about) as other:
        see(_said(other, other.run_command("echo read; exit 2")))


def status_after_reading(pssh: Any, see: See, about: Any) -> None:
    client = _parallel(pssh, about)
    output = client.run_command("echo one; exit 4")
    for each in output:
        lines = list(each.stdout)
        each.client.wait_finished(each)
        see(lines, each.exit_code)
    output = client.run_command("cat")
    see([each.exit_code for each in output], client.finished(output))
    for each in output:
        each.stdin.write("typed\n")
        each.stdin.flush()
        each.channel.send_eof()
    client.join(output)
    see([list(each.stdout) for each in output], client.finished(output), [each.exit_code for each in output])


def arguments_of_hosts(pssh: Any, see: See, about: Any) -> None:
    client = _parallel(pssh, about)
    output = client.run_command("echo %s", host_args=("first", "second", "third"))
    see([list(each.stdout) for each in output])
    output = client.run_command("echo %(word)s", host_args=[{"word": str(n)} for n in range(3)])
    see([list(each.stdout) for each in output])
    see(raised(lambda: client.run_command("echo %s", host_args=["only"])))
    see(kind(lambda: client.run_command("echo %(word)s", host_args=[{"other": "x"}] * 3)))
    see(kind(lambda: client.run_command("echo %s %s", host_args=["x"] * 3)))
    see(raised(lambda: client.copy_file("%s", "%s", copy_args=["x"])))
    see(raised(lambda: client.copy_remote_file("%s", "%s", copy_args=["x"])))
    where = [{"local_file": "/no", "remote_file": "/no"}]
    see(
        raised(lambda: client.scp_send("a", "b", copy_args=where)),
        raised(lambda: client.scp_recv("a", "b", copy_args=where)),
    )


def shells_and_terminals(pssh: Any, see: See, about: Any) -> None:
    client = _parallel(pssh, about)
    output = client.run_command("echo $0", shell="bash -c")
    see([list(each.stdout) for each in output], output[0].fully_qualified_command)
    output = client.run_command("test -t 1 && echo terminal; echo err >&2", use_pty=True)
    see([(list(each.stdout), list(each.stderr)) for each in output])
    see([each.fully_qualified_command for each in client.run_command("id -un", sudo=True, user="nobody", shell="sh -c")])
    see([each.fully_qualified_command for each in client.run_command("id -un", sudo=True)])
    shells = client.open_shell()
    client.run_shell_commands(shells, ["cd /", "pwd"])
    client.run_shell_commands(shells, "echo more")
    client.join_shells(shells)
    see(
        [(list(each.stdout), list(each.stderr), each.exit_code) for each in shells], shells[0].output.fully_qualified_command
    )
    one = _one(pssh, about)
    with one.open_shell() as shell:
        shell.run("echo a")
        shell.run("echo b; exit 4")
    see(list(shell.stdout), shell.exit_code, type(shell).__name__, type(shell.stdin).__name__)


def much_output(pssh: Any, see: See, about: Any) -> None:
    client = _parallel(pssh, about)
    output = client.run_command("head -c 3000000 /dev/zero | tr '\\0' x; echo; head -c 3000000 /dev/zero >&2")
    client.join(output)
    see([len(next(iter(each.stdout))) for each in output])
    client.join(output, consume_output=True)
    see([list(each.stdout) for each in output])


def timeouts(pssh: Any, see: See, about: Any) -> None:
    client = _parallel(pssh, about)
    # Long enough for the first line, also on a busy machine.
    output = client.run_command("echo first; cat", read_timeout=3)

    def read(each: Any) -> None:
        for line in each.stdout:
            see(line)

    for each in output:
        see(kind(functools.partial(read, each)), each.read_timeout)
    see(kind(lambda: client.join(output, timeout=0.1)))
    one = _one(pssh, about)
    running = one.run_command("cat")
    see(
        kind(lambda: one.wait_finished(running, timeout=0.1)),
        raised(lambda: one.wait_finished("no output")),
        one.finished(None),
    )
    for each in (*output, running):
        each.channel.send_eof()
    client.join(output)
    see(client.finished(output))
    one.wait_finished(running)
    see(one.finished(running.channel), one.get_exit_status(running.channel))


def encodings(pssh: Any, see: See, about: Any) -> None:
    client = _parallel(pssh, about)
    output = client.run_command("printf '\\344\\n'", encoding="latin-1")
    see([list(each.stdout) for each in output], output[0].encoding)
    output = client.run_command("printf '\\377\\n'")
    see(kind(lambda: list(output[0].stdout)))
    see(kind(lambda: client.run_command("echo", encoding="no-such-encoding")))


def hosts_that_fail(pssh: Any, see: See, about: Any) -> None:
    from pssh.clients import ParallelSSHClient, SSHClient

    def parallel(host: str = "127.0.0.1", **more: Any) -> Any:
        where = {"user": about["user"], "port": about["port"], "pkey": about["key"], "num_retries": 1, "allow_agent": False}
        return ParallelSSHClient([host], **{**where, **more})

    see(raised(lambda: parallel("no-such-host.invalid").run_command("true")))
    see(raised(lambda: parallel(port=about["unused"]).run_command("true")))
    (output,) = parallel(port=about["unused"]).run_command("true", stop_on_errors=False)
    see(type(output.exception).__name__, output.exception.args, output.stdout, output.stderr, output.exit_code, output.host)
    see(output.client, output.channel, output.stdin, output.buffers, isinstance(output.exception, ConnectionError))
    see(raised(lambda: parallel(pkey=about["other_key"]).run_command("true")))
    see(raised(lambda: parallel(pkey=about["encrypted"], password="wrong").run_command("true")))
    see(raised(lambda: parallel(pkey=None, password="wrong", identity_auth=False).run_command("true")))
    see(raised(lambda: parallel(pkey="/no/such/key")), raised(lambda: _one(pssh, about, pkey="/no/such/key")))
    see(raised(lambda: parallel(pkey=b"nonsense").run_command("true"))[0])
    see(raised(lambda: parallel(ipv6_only=True).run_command("true"))[0])
    see(raised(lambda: SSHClient("no-such-host.invalid", num_retries=2, retry_delay=0)))
    see(raised(lambda: _one(pssh, about, proxy_host="127.0.0.1", proxy_port=about["unused"]))[0])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        try:
            SSHClient("127.0.0.1", port=port, num_retries=1, timeout=0.5, user=about["user"], pkey=about["key"])
        except Exception as error:
            from pssh.exceptions import Timeout

            see(isinstance(error, Timeout), error.args[:2])


def arguments_that_make_no_sense(pssh: Any, see: See, about: Any) -> None:
    from pssh.clients import ParallelSSHClient, SSHClient
    from pssh.config import HostConfig

    see(
        raised(lambda: ParallelSSHClient("localhost")),
        raised(lambda: ParallelSSHClient(b"localhost")),
        kind(lambda: ParallelSSHClient(None)),
    )
    see(
        raised(lambda: ParallelSSHClient(["a"], host_config="b")),
        raised(lambda: ParallelSSHClient(["a", "b"], host_config=[HostConfig()])),
    )
    see(
        raised(lambda: ParallelSSHClient(["a"], keyboard_interactive=True)),
        raised(lambda: SSHClient("a", keyboard_interactive=True)),
    )
    see(raised(lambda: HostConfig(keyboard_interactive=True)), raised(lambda: ParallelSSHClient(["a"]).join("output")))
    for name in (
        "user",
        "port",
        "password",
        "alias",
        "private_key",
        "allow_agent",
        "num_retries",
        "timeout",
        "retry_delay",
        "identity_auth",
        "proxy_host",
        "proxy_port",
        "proxy_user",
        "proxy_password",
        "proxy_pkey",
        "keepalive_seconds",
        "ipv6_only",
        "cert_file",
        "forward_ssh_agent",
        "gssapi_auth",
        "gssapi_server_identity",
        "gssapi_client_identity",
        "gssapi_delegate_credentials",
        "compress",
    ):
        see(name, kind(functools.partial(HostConfig, **{name: []})), getattr(HostConfig(), name))
    client = ParallelSSHClient(iter(["a", "b"]))
    see(client.hosts, client.get_last_output(), client.finished(), client.join(), client.cmds)
    client.hosts = ["c"]
    see(
        client.hosts,
        kind(lambda: setattr(client, "hosts", "c")),
        client.port,
        client.pool_size,
        client.num_retries,
        client.retry_delay,
    )


def files(pssh: Any, see: See, about: Any) -> None:
    from gevent import joinall

    client = _parallel(pssh, about)
    directory = about["directory"]
    Path(directory, "source").write_text("content")
    names = [{"name": each} for each in "abc"]
    joinall(client.copy_file(f"{directory}/source", f"{directory}/new-%(name)s/there", copy_args=names), raise_error=True)
    see([Path(directory, f"new-{each}", "there").read_text() for each in "abc"])
    # Named apart: these hosts have one address.
    joinall(client.copy_remote_file(f"{directory}/source", f"{directory}/%(name)s", copy_args=names), raise_error=True)
    see(sorted(os.listdir(directory)))
    os.makedirs(f"{directory}/tree/inner")
    Path(directory, "tree/inner/file").touch()
    joinall(
        client.copy_file(
            f"{directory}/tree", f"{directory}/%(to)s", recurse=True, copy_args=[{"to": each} for each in "xyz"]
        ),
        raise_error=True,
    )
    see(sorted(os.listdir(f"{directory}/y")), os.listdir(f"{directory}/y/inner"))
    jobs = client.copy_remote_file(f"{directory}/none", f"{directory}/never")
    joinall(jobs)
    see([(type(job.exception).__name__, job.successful(), job.ready()) for job in jobs])


def files_of_one(pssh: Any, see: See, about: Any) -> None:
    one, directory = _one(pssh, about), about["directory"]
    Path(directory, "source").write_text("content")
    os.makedirs(f"{directory}/tree/inner")
    Path(directory, "tree/inner/file").write_text("inside")
    one.copy_file(f"{directory}/source", f"{directory}/there")
    one.copy_remote_file(f"{directory}/source", f"{directory}/deep/er/back")
    one.copy_remote_file(f"{directory}/tree", f"{directory}/treeback", recurse=True)
    one.scp_send(f"{directory}/source", f"{directory}/scp")
    one.scp_send(f"{directory}/source", f"{directory}/deep/")
    one.scp_recv(f"{directory}/source", f"{directory}/scpback")
    one.scp_recv(f"{directory}/tree", f"{directory}/scptree", recurse=True)
    see(
        [
            Path(directory, each).read_text()
            for each in ("there", "deep/er/back", "treeback/inner/file", "scp", "deep/source", "scpback")
        ]
    )
    see(Path(directory, "scptree/inner/file").read_text())
    for mode in (0o600, 0o755, 0o640):
        os.chmod(f"{directory}/source", mode)
        for before in (None, 0o600, 0o644, 0o700):
            for copy in (one.scp_send, one.copy_file, one.copy_remote_file, one.scp_recv):
                target = Path(directory, "target")
                target.unlink(missing_ok=True)
                if before is not None:
                    target.touch()
                    target.chmod(before)
                elif copy != one.scp_send:
                    continue
                copy(f"{directory}/source", str(target))
                see(mode, before, copy.__name__, target.stat().st_mode, target.read_text())
    see(raised(lambda: one.copy_remote_file(f"{directory}/none", f"{directory}/x")))
    see(
        raised(lambda: one.copy_file(f"{directory}/tree", f"{directory}/x")),
        raised(lambda: one.scp_send(f"{directory}/tree", f"{directory}/x")),
    )
    see(raised(lambda: one.copy_remote_file(f"{directory}/tree", f"{directory}/x")))
    see(
        kind(lambda: one.copy_file(f"{directory}/no-source", f"{directory}/x")),
        kind(lambda: one.copy_file(f"{directory}/source", "/proc/x/y")),
    )
    see(
        raised(lambda: one.scp_recv(f"{directory}/none", f"{directory}/x")),
        kind(lambda: one.scp_send(f"{directory}/none", f"{directory}/x")),
    )
    see(raised(lambda: one.scp_send(f"{directory}/source", "/no/such/directory/x")))
    see(raised(lambda: one.scp_recv(f"{directory}/none", f"{directory}/x", recurse=True)))


def low_level(pssh: Any, see: See, about: Any) -> None:
    one = _one(pssh, about)
    output = one.run_command("printf 'a\\nb\\n'; printf 'c\\n' >&2")
    see(list(one.read_output(output.buffers.stdout.rw_buffer)), list(one.read_stderr(output.buffers.stderr.rw_buffer)))
    see(list(one.read_output_buffer([b"x", b"y"], prefix="p", callback=lambda *told: see(told), callback_args=(1, 2))))
    see(output.buffers.stdout.rw_buffer.eof.is_set(), output.buffers.stdout.rw_buffer.read())
    channel = one.open_session()
    one.eagain(channel.execute, "cat")
    one.eagain_write(channel.write, b"words")
    one.eagain(channel.send_eof)
    one.eagain(channel.wait_eof)
    one.close_channel(channel)
    reader = __import__("pssh.clients.reader").clients.reader.ConcurrentRWBuffer()
    see(reader.read(), reader.write(b"a"), reader.write(b"b"), reader.read(), reader.read(), reader.eof.is_set())
    reader.write(b"c")
    reader.eof.set()
    see(list(reader), list(reader))


def logs(pssh: Any, see: See, about: Any) -> None:
    from pssh import utils

    lines: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    utils.host_logger.addHandler(Keeping())
    utils.host_logger.setLevel(logging.INFO)
    one = _one(pssh, about)
    output = one.run_command("echo line; echo trouble >&2")
    one.wait_finished(output)
    see(list(output.stdout), list(output.stderr), sorted(lines))
    see(utils.logger.name, utils.host_logger.name, pssh.logger is utils.logger, pssh.host_logger is utils.host_logger)


def proxies(pssh: Any, see: See, about: Any) -> None:
    hosts = about["hosts"]
    inner = _one(
        pssh,
        about,
        port=hosts[1]["port"],
        pkey=Path(hosts[1]["key"]).read_bytes(),
        proxy_host=hosts[0]["address"],
        proxy_port=hosts[0]["port"],
        proxy_user=hosts[0]["user"],
        proxy_pkey=hosts[0]["key"],
    )
    output = inner.run_command("echo ${SSH_CONNECTION##* }")
    see(list(output.stdout) == [str(hosts[1]["port"])])


def tunnels(pssh: Any, see: See, about: Any) -> None:
    from pssh.clients.native.tunnel import LocalForwarder

    hosts = about["hosts"]
    gate = _one(pssh, about)
    forwarder = LocalForwarder()
    forwarder.start()
    forwarder.started.wait()
    forwarder.enqueue(gate, hosts[1]["address"], hosts[1]["port"])
    port = forwarder.out_q.get()
    with socket.create_connection(("127.0.0.1", port), 10) as through:
        see(through.recv(8))
    forwarder.shutdown()
    see(forwarder.is_alive(), forwarder.shutdown_triggered.is_set())


def of_libssh(pssh: Any, see: See, about: Any) -> None:
    from pssh.clients.ssh import ParallelSSHClient, SSHClient

    where = {"user": about["user"], "port": about["port"], "pkey": about["key"], "num_retries": 1}
    with SSHClient(about["address"], **where) as one:
        output = one.run_command("echo there; exit 2")
        one.wait_finished(output)
        said = list(output.stdout)
        # The original's wait ends with the output, and the status may come after it: -1 until then.
        late = time.monotonic() + 10
        while output.exit_code == -1 and time.monotonic() < late:
            time.sleep(0.05)
        see(said, output.exit_code)
    see(kind(lambda: SSHClient(about["address"], cert_file="/no/such/certificate", **where)))
    client = ParallelSSHClient([about["address"]], **where)
    output = client.run_command("echo there")
    client.join(output)
    see([list(each.stdout) for each in output], client.cert_file, client.gssapi_auth)


def names(pssh: Any, see: See, about: Any) -> None:
    from pssh import constants, exceptions

    see(constants.DEFAULT_RETRIES, constants.RETRY_DELAY)
    for name in (
        "AuthenticationError",
        "AuthenticationException",
        "ConnectionError",
        "ConnectionErrorException",
        "HostArgumentError",
        "HostArgumentException",
        "HostConfigError",
        "InvalidAPIUseError",
        "NoIPv6AddressFoundError",
        "PKeyFileError",
        "ProxyError",
        "SCPError",
        "SFTPError",
        "SFTPIOError",
        "SSHError",
        "SSHException",
        "SessionError",
        "ShellError",
        "Timeout",
        "UnknownHostError",
        "UnknownHostException",
    ):
        see(name, [each.__name__ for each in getattr(exceptions, name).__mro__])


def no_limit(pssh: Any, see: See, about: Any) -> None:
    """A time limit of 0 is none; a channel knows its command's status once that is over."""
    from pssh.clients import ParallelSSHClient

    client = ParallelSSHClient(
        [about["address"]], port=about["port"], user=about["user"], pkey=about["key"], timeout=0, allow_agent=False
    )
    (output,) = client.run_command("sleep 0.2; echo slow; exit 3", stop_on_errors=False)
    said = (list(output.stdout), list(output.stderr))
    # The original reads to the end of the output, and the status may come after it: 0 until then.
    output.client.wait_finished(output)
    see(output.exception, *said, output.channel.get_exit_status(), output.exit_code)


def ends_that_were_read(pssh: Any, see: See, about: Any) -> None:
    one = _one(pssh, about)
    for command in ("echo out", "echo err >&2", "exit 3"):
        output = one.run_command(command)
        see(list(output.stdout), list(output.stderr), one.finished(output.channel), output.channel.eof())


def greenlets(pssh: Any, see: See, about: Any) -> None:
    """gevent's time-outs interrupt a wait, and other greenlets continue meanwhile."""
    import gevent

    client = _parallel(pssh, about)
    endless = client.run_command("while echo line; do sleep 0.01; done")
    see(kind(lambda: gevent.with_timeout(0.5, client.join, endless)))
    read: list[str] = []
    see(kind(lambda: gevent.with_timeout(5, lambda: read.extend(iter(endless[0].stdout)))), "line" in endless[0].stdout)
    told: list[int] = []

    def tell() -> None:
        while True:
            told.append(1)
            gevent.sleep(0.01)

    beside = gevent.spawn(tell)
    see(raised(lambda: client.join(endless, timeout=1))[0], len(told) > 2)
    beside.kill()
    ended = gevent.spawn(client.join, endless)
    see(len(gevent.joinall([ended], timeout=0.2)), ended.ready())
    for output in endless:
        output.client.close_channel(output.channel)
    ended.get(timeout=60)
    see(ended.successful(), client.finished(endless))
    calls = [gevent.spawn(client.run_command, f"sleep 0.2; echo {place}") for place in range(3)]
    see([[list(output.stdout) for output in call.get(timeout=60)] for call in calls])
    jobs = client.copy_remote_file("/etc/hostname", about["directory"] + "/name")
    see(client.pool.join(), [job.ready() for job in jobs], len(gevent.joinall(jobs)), len(gevent.joinall(jobs, count=1)))
    # Too few arguments for a command, and for the hosts.
    two = _parallel(pssh, {**about, "hosts": about["hosts"][:1] * 2})
    see(kind(lambda: two.run_command("echo %s %s", host_args=[("one",)])))
    see(kind(lambda: two.run_command("echo %s %s", host_args=[("one", "two")])))


on_openssh: dict[str, Program] = {
    "greenlets": greenlets,
    "ends that were read": ends_that_were_read,
    "no limit": no_limit,
    "output and status": output_and_status,
    "the status after reading": status_after_reading,
    "disconnecting": disconnecting,
    "arguments of hosts": arguments_of_hosts,
    "shells and terminals": shells_and_terminals,
    "much output without reading": much_output,
    "timeouts": timeouts,
    "encodings": encodings,
    "hosts that fail": hosts_that_fail,
    "arguments that make no sense": arguments_that_make_no_sense,
    "files": files,
    "files of one host": files_of_one,
    "buffers and channels": low_level,
    "logs": logs,
    "proxies": proxies,
    "tunnels": tunnels,
    "libssh's names": of_libssh,
    "names": names,
}
