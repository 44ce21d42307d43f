"""Runs a server that does not say on which port it listens.

    port.py PORT COMMAND...

prints the port, which is a free one for 0, when something listens there; `{port}` stands for it in the command, and the
environment has it as PORT.
"""

import os
import socket
import subprocess
import sys
import time


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def listens(port):
    """Without a connection, which the server would have to serve."""
    wanted = f"0100007F:{port:04X}"
    with open("/proc/net/tcp") as table:
        return any(line.split()[1] == wanted and line.split()[3] == "0A" for line in list(table)[1:])


def main():
    port = int(sys.argv[1]) or free_port()
    command = [word.replace("{port}", str(port)) for word in sys.argv[2:]]
    server = subprocess.Popen(command, stdout=sys.stderr, env=os.environ | {"PORT": str(port)})
    while not listens(port):
        if server.poll() is not None:
            sys.exit(f"{server.args[0]} ended with {server.returncode}")
        time.sleep(0.02)
    print(port, flush=True)
    os.close(1)
    sys.exit(server.wait())


main()
