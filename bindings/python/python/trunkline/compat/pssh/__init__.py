"""parallel-ssh's interface, on trunkline's engine.

    from trunkline.compat.pssh.clients import ParallelSSHClient

    client = ParallelSSHClient(["db1.example", "db2.example"])
    for output in client.run_command("uptime"):
        for line in output.stdout:
            print(output.host, line)

For programs that import ``pssh`` themselves, ``install`` puts this in its place. Greenlets are jobs here, which
``gevent.joinall`` takes; gevent itself is not needed.
"""

from __future__ import annotations

import sys as _sys

from . import clients, config, constants, exceptions, output, utils
from .clients import ssh as _ssh  # noqa: F401 (for install)
from .clients.native import tunnel as _tunnel  # noqa: F401 (for install)
from .utils import host_logger, logger

#: The release of parallel-ssh whose interface this is.
__version__ = "2.16.0"

__all__ = ["clients", "config", "constants", "exceptions", "host_logger", "install", "logger", "output", "utils"]


def install() -> None:
    """Makes ``import pssh`` mean this, in this process and from now on.

    To be called before anything imports parallel-ssh: ``RuntimeError`` if something has.
    """
    found = _sys.modules.get("pssh")
    if found is not None and found is not _sys.modules[__name__]:
        raise RuntimeError("pssh is imported already: call install before whatever uses it is imported")
    for name, module in list(_sys.modules.items()):
        if name == __name__ or name.startswith(f"{__name__}."):
            _sys.modules["pssh" + name[len(__name__) :]] = module
