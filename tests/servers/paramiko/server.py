"""An SSH server on Paramiko, like its demos: a ServerInterface, and files behind its SFTPServer in the way of the
StubSFTPServer that its own tests and most programs have.

    server.py HOSTKEY [PORT]

prints the port on which it listens and serves until it is killed. Any public key is accepted.
"""

import os
import socket
import subprocess
import sys
import threading
import traceback

import paramiko
from paramiko import SFTPAttributes, SFTPHandle, SFTPServer, SFTPServerInterface


class Server(paramiko.ServerInterface):
    """One client; runs its commands."""

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED if kind == "session" else paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def get_allowed_auths(self, username):
        return "publickey"

    def check_auth_publickey(self, username, key):
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_pty_request(self, *_):
        return True

    def check_channel_shell_request(self, channel):
        threading.Thread(target=run, args=(channel, ["/bin/sh"]), daemon=True).start()
        return True

    def check_channel_exec_request(self, channel, command):
        threading.Thread(target=run, args=(channel, ["/bin/sh", "-c", command]), daemon=True).start()
        return True


def run(channel, command):
    """Joins a command's standard streams with its channel, and tells how it ended."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    threading.Thread(target=feed, args=(channel, child.stdin), daemon=True).start()
    errors = threading.Thread(target=pass_on, args=(child.stderr, channel.sendall_stderr), daemon=True)
    errors.start()
    pass_on(child.stdout, channel.sendall)
    errors.join()
    channel.send_exit_status(child.wait() & 0xFF)
    channel.close()


def feed(channel, stdin):
    try:
        while data := channel.recv(32768):
            stdin.write(data)
            stdin.flush()
        stdin.close()
    except OSError:
        pass


def pass_on(stream, send):
    try:
        while data := os.read(stream.fileno(), 32768):
            send(data)
    except OSError:
        pass


class StubSFTPHandle(SFTPHandle):
    """An open file."""

    def stat(self):
        try:
            return SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))
        except OSError as error:
            return SFTPServer.convert_errno(error.errno)

    def chattr(self, attr):
        try:
            SFTPServer.set_file_attr(self.filename, attr)
            return paramiko.SFTP_OK
        except OSError as error:
            return SFTPServer.convert_errno(error.errno)


def status(work):
    """Makes a method that raises OSError one that returns a status, as Paramiko expects."""

    def method(self, *arguments):
        try:
            answer = work(self, *arguments)
        except OSError as error:
            return SFTPServer.convert_errno(error.errno)
        return paramiko.SFTP_OK if answer is None else answer

    return method


class StubSFTPServer(SFTPServerInterface):
    """The machine's own files."""

    def canonicalize(self, path):
        return os.path.realpath(path)

    @status
    def list_folder(self, path):
        entries = []
        for name in os.listdir(path):
            attributes = SFTPAttributes.from_stat(os.lstat(os.path.join(path, name)))
            attributes.filename = name
            entries.append(attributes)
        return entries

    @status
    def stat(self, path):
        return SFTPAttributes.from_stat(os.stat(path))

    @status
    def lstat(self, path):
        return SFTPAttributes.from_stat(os.lstat(path))

    @status
    def open(self, path, flags, attr):
        mode = getattr(attr, "st_mode", None)
        fd = os.open(path, flags, 0o666 if mode is None else mode & 0o7777)
        if (flags & os.O_CREAT) and (attr is not None):
            attr._flags &= ~attr.FLAG_PERMISSIONS
            SFTPServer.set_file_attr(path, attr)
        if flags & os.O_WRONLY:
            kind = "ab" if flags & os.O_APPEND else "wb"
        elif flags & os.O_RDWR:
            kind = "a+b" if flags & os.O_APPEND else "r+b"
        else:
            kind = "rb"
        handle = StubSFTPHandle(flags)
        handle.filename = path
        handle.readfile = handle.writefile = os.fdopen(fd, kind)
        return handle

    @status
    def remove(self, path):
        os.remove(path)

    @status
    def rename(self, oldpath, newpath):
        # SFTP 3 does not overwrite (draft-ietf-secsh-filexfer-02, 6.5).
        if os.path.lexists(newpath):
            return paramiko.SFTP_FAILURE
        os.rename(oldpath, newpath)

    @status
    def posix_rename(self, oldpath, newpath):
        os.rename(oldpath, newpath)

    @status
    def mkdir(self, path, attr):
        os.mkdir(path)
        if attr is not None:
            SFTPServer.set_file_attr(path, attr)

    @status
    def rmdir(self, path):
        os.rmdir(path)

    @status
    def chattr(self, path, attr):
        SFTPServer.set_file_attr(path, attr)

    @status
    def symlink(self, target_path, path):
        os.symlink(target_path, path)

    @status
    def readlink(self, path):
        return os.readlink(path)


def serve(client, key):
    transport = paramiko.Transport(client)
    transport.add_server_key(key)
    transport.set_subsystem_handler("sftp", SFTPServer, StubSFTPServer)
    try:
        transport.start_server(server=Server())
        # The transport works in a thread of its own; channels that it hands out here are kept until they are closed.
        channels = []
        while transport.is_active():
            channels.append(transport.accept(1))
            channels = [one for one in channels if one is not None and not one.closed]
    except (paramiko.SSHException, EOFError):
        traceback.print_exc()
    finally:
        transport.close()


def main():
    key = paramiko.Ed25519Key(filename=sys.argv[1])
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    listener = socket.create_server(("127.0.0.1", port), backlog=100)
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client, key), daemon=True).start()


main()
