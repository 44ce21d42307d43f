#!/usr/bin/env bash
# sshfs for fsspec (PyPI): mv() removes the source after a copy that failed, where the server has no posix-rename.
#
# Seen with: sshfs 2026.8.0 on asyncssh 2.24.1 and fsspec 2026.9.0, Twisted 26.10.0 as the server.
#
# mv() asks for posix-rename@openssh.com. Where the server does not announce it, mv() runs "cp" in a shell and then
# removes the source, in a "finally": a cp that is refused or fails is followed by the REMOVE all the same. The error
# that the caller sees is that of cp. SFTP's own RENAME is not tried; all servers have it.
#
# Why it matters: the only copy of the file is gone. Servers without the extension are often those that give SFTP
# and no shell, where the copy never works: Twisted's Conch, Erlang/OTP's. With a shell it takes a full disk or a target
# directory that is missing. Call rename() of an asyncssh SFTP client instead, or look whether the server has the extension.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q sshfs==2026.8.0 asyncssh==2.24.1 fsspec==2026.9.0 'twisted[conch]==26.10.0'
mkdir files

# A server with SFTP only, as Twisted's user without a session has it.
cat >server.py <<'PY'
import os

from cryptography.hazmat.primitives.asymmetric import ed25519
from twisted.conch.avatar import ConchUser
from twisted.conch.ssh import factory, filetransfer, keys, session
from twisted.conch.unix import SFTPServerForUnixConchUser
from twisted.cred import checkers, portal
from twisted.internet import reactor
from twisted.python import components
from twisted.python.filepath import FilePath
from zope.interface import implementer


class User(ConchUser):
    def __init__(self):
        super().__init__()
        self.channelLookup[b"session"] = session.SSHSession
        self.subsystemLookup[b"sftp"] = filetransfer.FileTransferServer

    def getUserGroupId(self):
        return os.getuid(), os.getgid()

    def getHomeDir(self):
        return FilePath(os.getcwd())

    def _runAsUser(self, calls, *args, **kwargs):
        for function, *rest in calls if isinstance(calls, list) else [(calls, args)]:
            result = function(*(rest[0] if rest else ()))
        return result


@implementer(portal.IRealm)
class Realm:
    def requestAvatar(self, avatar_id, mind, *interfaces):
        return interfaces[0], User(), lambda: None


components.registerAdapter(SFTPServerForUnixConchUser, User, filetransfer.ISFTPServer)
key = keys.Key(ed25519.Ed25519PrivateKey.generate())
server = factory.SSHFactory()
server.publicKeys, server.privateKeys = {b"ssh-ed25519": key.public()}, {b"ssh-ed25519": key}
server.portal = portal.Portal(Realm())
server.portal.registerChecker(checkers.InMemoryUsernamePasswordDatabaseDontUse(u=b"p"))
print(reactor.listenTCP(0, server, interface="127.0.0.1").getHost().port, flush=True)
reactor.run()
PY
cat >run.py <<'PY'
import os
import subprocess
import sys

from sshfs import SSHFileSystem

server = subprocess.Popen([sys.executable, "server.py"], stdout=subprocess.PIPE, stderr=open("log", "w"), text=True)
try:
    system = SSHFileSystem("127.0.0.1", port=int(server.stdout.readline()), username="u", password="p", known_hosts=None,
                           config=None)
    source, target = os.path.abspath("files/source"), os.path.abspath("files/target")
    with system.open(source, "wb") as file:
        file.write(b"the only copy")
    print("before:", *os.listdir("files"))
    try:
        system.mv(source, target)
        print("mv: done")
    except Exception as error:
        print("mv:", type(error).__name__)
    print("after:", *os.listdir("files"))
finally:
    server.terminate()
    server.wait()
PY
timeout 60 venv/bin/python run.py >actual 2>errors || { cat errors >&2; exit 1; }

cat >expected <<'END'
before: source
mv: ChannelOpenError
after:
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
