"""Listens on loopback and runs a command for each connection, which has the socket as standard input and output, as inetd,
tcpserver and systemd with Accept=yes do.

    listen.py PORT COMMAND...

prints the port, which is a free one for 0, and serves until it is killed.
"""

import os
import signal
import socket
import subprocess
import sys


def main():
    port, *command = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=100)
    print(listener.getsockname()[1], flush=True)
    # Children that have ended vanish by themselves.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, (host, peer) = listener.accept()
        environment = os.environ | {"TCPREMOTEIP": host, "TCPREMOTEPORT": str(peer)}
        subprocess.Popen(command, stdin=client, stdout=client, env=environment)
        client.close()


main()
