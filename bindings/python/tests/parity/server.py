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


def answer(call: Any) -> Any:
    """Return the value of a call, or SFTP's code for the system's error."""
    try:
        return call()
    except OSError as error:
        return paramiko.SFTPServer.convert_errno(error.errno)


class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]
    """The files of this machine."""

    def __init__(self, server: Judge, *_: Any) -> None:
        self._judge = server

    @staticmethod
    def _attributes(path: str, name: str | None = None) -> Any:
        return paramiko.SFTPAttributes.from_stat(os.lstat(path), name)

    def list_folder(self, path: str) -> Any:
        return answer(lambda: [self._attributes(os.path.join(path, name), name) for name in os.listdir(path)])

    def stat(self, path: str) -> Any:
        return answer(lambda: paramiko.SFTPAttributes.from_stat(os.stat(path)))

    def lstat(self, path: str) -> Any:
        return answer(lambda: self._attributes(path))

    def open(self, path: str, flags: int, attr: Any) -> Any:
        def open_file() -> Any:
            handle = paramiko.SFTPHandle(flags)
            mode = "ab" if flags & os.O_APPEND else "r+b" if flags & (os.O_WRONLY | os.O_RDWR) else "rb"
            handle.readfile = handle.writefile = os.fdopen(os.open(path, flags, 0o600), mode)
            handle.stat = lambda: self._attributes(path)
            return handle

        return answer(open_file)

    def _do(self, call: Any, *arguments: Any) -> Any:
        return answer(lambda: call(*arguments) or paramiko.SFTP_OK)

    def remove(self, path: str) -> Any:
        return self._do(os.remove, path)

    def rename(self, oldpath: str, newpath: str) -> Any:
        return paramiko.SFTP_FAILURE if os.path.lexists(newpath) else self._do(os.rename, oldpath, newpath)

    def posix_rename(self, oldpath: str, newpath: str) -> Any:
        if self._judge.user != "posix":
            return super().posix_rename(oldpath, newpath)
        return self._do(os.rename, oldpath, newpath)

    def mkdir(self, path: str, attr: Any) -> Any:
        return self._do(os.mkdir, path)

    def rmdir(self, path: str) -> Any:
        return self._do(os.rmdir, path)

    def chattr(self, path: str, attr: Any) -> Any:
        return self._do(paramiko.SFTPServer.set_file_attr, path, attr)

    def symlink(self, target_path: str, path: str) -> Any:
        return self._do(os.symlink, target_path, path)

    def readlink(self, path: str) -> Any:
        return answer(lambda: os.readlink(path))


class Judge(paramiko.ServerInterface):  # type: ignore[misc]
    """Lets people in by their names: ``me`` by a password, ``asked`` by a question, ``two`` by a key and a password.
    It opens no session for ``none``, and hangs up on ``gone``, and on ``enough`` with a reason."""

    def __init__(self, over: threading.Event, transport: paramiko.Transport) -> None:
        self._over = over
        self._transport = transport
        self.user = ""

    def get_allowed_auths(self, username: str) -> str:
        return {"asked": "keyboard-interactive", "two": "publickey,password", "keyonly": "publickey"}.get(
            username, "password"
        )

    def check_auth_password(self, username: str, password: str) -> int:
        if username == "slow":
            self._over.wait(30)
        self._hang_up(username)
        self.user = username
        return int(paramiko.AUTH_SUCCESSFUL if password == "sesame" else paramiko.AUTH_FAILED)

    def _hang_up(self, username: str) -> None:
        """Ends the connection, with a message or without."""
        if username == "enough":
            message = paramiko.Message()
            message.add_byte(bytes([paramiko.common.MSG_DISCONNECT]))
            message.add_int(2)
            message.add_string("Too many authentication failures")
            message.add_string("")
            self._transport._send_message(message)
        if username in ("enough", "gone"):
            self._transport.close()

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._hang_up(username)
        return int(paramiko.AUTH_PARTIALLY_SUCCESSFUL if username == "two" else paramiko.AUTH_FAILED)

    def check_auth_interactive(self, username: str, submethods: str) -> Any:
        if username != "asked":
            return paramiko.AUTH_FAILED
        return paramiko.InteractiveQuery("Title", "Instructions", ("Word: ", False))

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        return int(paramiko.AUTH_SUCCESSFUL if responses == ["open"] else paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if self.user == "none":
            return int(paramiko.OPEN_FAILED_RESOURCE_SHORTAGE)
        return int(paramiko.OPEN_SUCCEEDED if kind == "session" else paramiko.OPEN_FAILED_UNKNOWN_CHANNEL_TYPE)

    def check_channel_direct_tcpip_request(self, chanid: int, origin: Any, destination: Any) -> int:
        return int(paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if command == b"refuse":
            return False
        speak = self._alternate if command == b"alternate" else self._speak
        threading.Thread(target=speak, args=(channel,), daemon=True).start()
        return True

    @staticmethod
    def _speak(channel: paramiko.Channel) -> None:
        # Until the client has ended its input, and so has had the answer to its request.
        channel.recv(1)
        channel.sendall(b"hello\n")
        channel.sendall_stderr(b"there\n")
        channel.send_exit_status(5)
        channel.close()

    @staticmethod
    def _alternate(channel: paramiko.Channel) -> None:
        channel.recv(1)
        for number in range(50):
            channel.sendall_stderr(b"trouble %d\n" % number)
            channel.sendall(b"line %d\n" % number)
        channel.send_exit_status(0)
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
                transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files)
                # With an event it waits for nobody.
                transport.start_server(threading.Event(), Judge(over, transport))

        threading.Thread(target=serve, daemon=True).start()
        print(server.getsockname()[1], flush=True)
        sys.stdin.read()
    # Threads of Paramiko's own are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
