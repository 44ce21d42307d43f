"""trunkline for asyncio.

    import asyncio
    from trunkline import aio

    async def main():
        async with aio.connect("db1") as db1:
            print((await db1.run("uptime")).stdout)
            async with db1.start("tail -F /var/log/syslog") as log:
                async for line in log.stdout:
                    print(line, end="")

    asyncio.run(main())

No call has a thread of its own: outcomes gather in a queue, and wake the event loop once for all that are there. A cancelled
call is given up, and the session that it was about is closed.
"""

from ._connection import Connection, Forward, connect
from ._group import Group, GroupRun
from ._process import Process, Reader, Writer
from ._sftp import SFTP, RemoteFile

__all__ = ["SFTP", "Connection", "Forward", "Group", "GroupRun", "Process", "Reader", "RemoteFile", "Writer", "connect"]
