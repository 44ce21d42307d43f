"""asyncssh's SFTP as a program: asyncssh_copy.py ADDRESS USER KEY KNOWN_HOSTS put|get SOURCE TARGET."""

from __future__ import annotations

import asyncio
import sys

import asyncssh


async def main() -> None:
    address, user, key, known_hosts, direction, source, target = sys.argv[1:]
    host, _, port = address.rpartition(":")
    reached = asyncssh.connect(
        host,
        int(port),
        username=user,
        client_keys=[key],
        known_hosts=known_hosts,
        agent_path=None,
        config=None,
        encryption_algs=["aes128-gcm@openssh.com"],
    )
    async with reached as connection, connection.start_sftp_client() as sftp:
        copy = {"put": sftp.put, "get": sftp.get}[direction]
        await copy(source, target, preserve=True, recurse=True)


asyncio.run(main())
