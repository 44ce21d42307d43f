"""An SSH server on asyncssh, like the examples of its documentation: a process handler and its own SFTP server.

    server.py HOSTKEY [PORT]

prints the port on which it listens and serves until it is killed. Any public key is accepted.
"""

import asyncio
import sys

import asyncssh


class Server(asyncssh.SSHServer):
    """Lets everybody in who has a key."""

    def begin_auth(self, username):
        return True

    def public_key_auth_supported(self):
        return True

    def validate_public_key(self, username, key):
        return True


async def run(process):
    """Joins a command with its channel, as the documentation's "Redirecting I/O" does."""
    command = ["/bin/sh"] if process.command is None else ["/bin/sh", "-c", process.command]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    await process.redirect_stdin(child.stdin)
    # With an EOF behind the first of them that ends, what the other still writes ends the connection.
    await process.redirect_stdout(child.stdout, send_eof=False)
    await process.redirect_stderr(child.stderr, send_eof=False)
    await process.stdout.drain()
    await process.stderr.drain()
    process.exit(await child.wait())


async def main():
    key, port = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    server = await asyncssh.listen(
        "127.0.0.1",
        port,
        server_factory=Server,
        server_host_keys=[key],
        process_factory=run,
        sftp_factory=True,
        allow_scp=True,
        encoding=None,
        line_editor=False,
    )
    print(server.get_port(), flush=True)
    await server.wait_closed()


asyncio.run(main())
