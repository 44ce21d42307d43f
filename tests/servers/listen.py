"""Listens on loopback and runs a command for each connection, which has the socket as standard input and output, as inetd,
tcpserver and systemd with Accept=yes do.

    listen.py PORT COMMAND...

prints the port, which is a free one for 0, and serves until it is killed.
"""

import os
import socket
import subprocess
import sys


def main():
    port, *command = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=100)
    print(listener.getsockname()[1], flush=True)
    # Not SIG_IGN for SIGCHLD, which the server would inherit and then not learn that a command has ended.
    running = []
    while True:
        client, (host, peer) = listener.accept()
        environment = os.environ | {"TCPREMOTEIP": host, "TCPREMOTEPORT": str(peer)}
        running = [child for child in running if child.poll() is None]
        running.append(subprocess.Popen(command, stdin=client, stdout=client, env=environment))
        client.close()


main()
