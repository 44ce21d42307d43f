"""A server of Paramiko's that refuses, asks and speaks as programs want to see it.

Prints its port, and runs until its standard input ends.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import Any

import paramiko


class Judge(paramiko.ServerInterface):  # type: ignore[misc]
    """Lets people in by their names: ``me`` by a password, ``asked`` by a question, ``two`` by a key and a password."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over

    def get_allowed_auths(self, username: str) -> str:
        return {"asked": "keyboard-interactive", "two": "publickey,password", "keyonly": "publickey"}.get(
            username, "password"
        )

    def check_auth_password(self, username: str, password: str) -> int:
        if username == "slow":
            self._over.wait(30)
        return int(paramiko.AUTH_SUCCESSFUL if password == "sesame" else paramiko.AUTH_FAILED)

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return int(paramiko.AUTH_PARTIALLY_SUCCESSFUL if username == "two" else paramiko.AUTH_FAILED)

    def check_auth_interactive(self, username: str, submethods: str) -> Any:
        if username != "asked":
            return paramiko.AUTH_FAILED
        return paramiko.InteractiveQuery("Title", "Instructions", ("Word: ", False))

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        return int(paramiko.AUTH_SUCCESSFUL if responses == ["open"] else paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED if kind == "session" else paramiko.OPEN_FAILED_UNKNOWN_CHANNEL_TYPE)

    def check_channel_direct_tcpip_request(self, chanid: int, origin: Any, destination: Any) -> int:
        return int(paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if command == b"refuse":
            return False
        threading.Thread(target=self._speak, args=(channel,), daemon=True).start()
        return True

    @staticmethod
    def _speak(channel: paramiko.Channel) -> None:
        # Until the client has ended its input, and so has had the answer to its request.
        channel.recv(1)
        channel.sendall(b"hello\n")
        channel.sendall_stderr(b"there\n")
        channel.send_exit_status(5)
        channel.close()

    def get_banner(self) -> tuple[str, str]:
        return "Be good\r\n", "en-US"


def main() -> None:
    key = paramiko.ECDSAKey.generate()
    over = threading.Event()
    transports: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                connection, _ = server.accept()
                transport = paramiko.Transport(connection)
                transports.append(transport)
                transport.add_server_key(key)
                # With an event it waits for nobody.
                transport.start_server(threading.Event(), Judge(over))

        threading.Thread(target=serve, daemon=True).start()
        print(server.getsockname()[1], flush=True)
        sys.stdin.read()
    # Threads of Paramiko's own are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
