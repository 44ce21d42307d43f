#!/usr/bin/env bash
# Twisted Conch's SFTP server says OK to a truncation that it does not do, and to a link that leads elsewhere.
#
# Seen with: Twisted 26.10.0, its SFTPServerForUnixConchUser; Paramiko 5.1.0 as the client.
#
# - SETSTAT with a size: owner, mode and times are applied, the size is not. The answer is "setstat succeeded".
# - SYMLINK with a relative text: the text is joined to the user's home directory. "x -> f" beside f becomes "x ->
#   /home/user/f". (The order of the arguments is the draft's: link first. Paramiko's own symlink() sends OpenSSH's
#   order, so the request is made by hand below.)
# - MKDIR of a directory that exists: status 11, which version 3 of the protocol does not have. The session is version
#   3.
#
# Why it matters: neither error can be noticed without asking again. A client that writes over a longer file without
# TRUNC and cuts it with SETSTAT leaves the old tail behind; look at the size afterwards. A copy of a tree has to
# READLINK what it made. Status codes above 8 have to count as failures even in version 3.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q 'twisted[conch]==26.10.0' paramiko==5.1.0
mkdir "$dir/home" "$dir/files"

cat >"$dir/server.py" <<'PY'
import sys

from cryptography.hazmat.primitives.asymmetric import ed25519
from twisted.conch import avatar, unix
from twisted.conch.ssh import factory, filetransfer, keys, session
from twisted.cred import checkers, portal
from twisted.internet import reactor
from twisted.python import components
from twisted.python.filepath import FilePath
from zope.interface import implementer


class User(avatar.ConchUser):
    """What UnixConchUser is, without changing to another user."""

    def __init__(self):
        super().__init__()
        self.channelLookup[b"session"] = session.SSHSession
        self.subsystemLookup[b"sftp"] = filetransfer.FileTransferServer

    def getHomeDir(self):
        return FilePath(sys.argv[1])

    def _runAsUser(self, calls, *args, **kwargs):
        for function, *rest in calls if isinstance(calls, list) else [(calls, args)]:
            result = function(*(rest[0] if rest else ()))
        return result


@implementer(portal.IRealm)
class Realm:
    def requestAvatar(self, avatar_id, mind, *interfaces):
        return interfaces[0], User(), lambda: None


components.registerAdapter(unix.SFTPServerForUnixConchUser, User, filetransfer.ISFTPServer)
key = keys.Key(ed25519.Ed25519PrivateKey.generate())
server = factory.SSHFactory()
server.publicKeys, server.privateKeys = {b"ssh-ed25519": key.public()}, {b"ssh-ed25519": key}
server.portal = portal.Portal(Realm())
server.portal.registerChecker(checkers.InMemoryUsernamePasswordDatabaseDontUse(u=b"p"))
print(reactor.listenTCP(0, server, interface="127.0.0.1").getHost().port, flush=True)
reactor.run()
PY
cat >"$dir/client.py" <<'PY'
import os
import subprocess
import sys

import paramiko
from paramiko.sftp import CMD_MKDIR, CMD_SYMLINK

here, home, files = sys.argv[1:]
server = subprocess.Popen([sys.executable, f"{here}/server.py", home], stdout=subprocess.PIPE, text=True)
try:
    transport = paramiko.Transport(("127.0.0.1", int(server.stdout.readline())))
    transport.connect(username="u", password="p")
    client = paramiko.SFTPClient.from_transport(transport)

    with open(f"{files}/f", "w") as file:
        file.write("0123456789")
    client.truncate(f"{files}/f", 3)
    print("SETSTAT of size 3: OK, the size is", os.path.getsize(f"{files}/f"))

    client._request(CMD_SYMLINK, f"{files}/link", "f")
    print("SYMLINK to f: OK, it leads to", os.readlink(f"{files}/link").replace(home, "HOME"))

    seen = []
    client._convert_status = lambda message: seen.append(message.get_int())
    client._request(CMD_MKDIR, files, paramiko.SFTPAttributes())
    print("MKDIR of what exists: status", seen[0])
    transport.close()
finally:
    server.kill()
    server.wait()
PY
"$dir/venv/bin/python" "$dir/client.py" "$dir" "$dir/home" "$dir/files" >"$dir/actual"

cat >"$dir/expected" <<'END'
SETSTAT of size 3: OK, the size is 10
SYMLINK to f: OK, it leads to HOME/f
MKDIR of what exists: status 11
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
