#!/usr/bin/env bash
# sftpretty: put_d(), get_d(), put_r() and get_r() report how the first file of a directory went, and no other.
#
# Seen with: sftpretty 1.2.4 on Paramiko 5.1.0, asyncssh 2.24.1 as the server.
#
# The files of a directory are copied by a pool of threads. The loop over the results returns from inside, as soon as
# the first one has come. The pool is waited for, so everything is tried, but nobody looks at the other results. An
# exception reaches the caller only if its file happens to be the first to end; put() and get() of one file raise it.
#
# Why it matters: a backup or a deployment of a directory "succeeds" with files missing, here two of three. With more
# workers it is chance whether an error is seen, and a quick error is seen more often than a slow one like a full disk.
# List both sides and compare, or loop over put() and get().
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q sftpretty==1.2.4 paramiko==5.1.0 asyncssh==2.24.1

cat >run.py <<'PY'
import asyncio
import logging
import os
import shutil

import asyncssh
import sftpretty

logging.disable(logging.CRITICAL)


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


def fresh(order):
    """Makes a tree with three files, and targets in which directories are in the way of all but the first in this order."""
    shutil.rmtree("work", ignore_errors=True)
    os.makedirs("work/from")
    for name in ("a", "b", "c"):
        with open(f"work/from/{name}", "w") as file:
            file.write("text")
    first, *others = order("work/from")
    for name in others:
        os.makedirs(f"work/to/{name}")
        os.makedirs(f"work/put/from/{name}")
    return others[0]


def attempt(what, order, action, folder):
    name = fresh(order)
    try:
        action(name)
        result = "done"
    except OSError:
        result = "an error"
    print(f"{what}: {result}, {sum(entry.is_file() for entry in os.scandir(folder))} of 3 files are there")


def copy(port):
    options = sftpretty.CnOpts(knownhosts=None)
    options.hostkeys = None
    here = os.path.abspath("work")
    put, to = "work/put/from", "work/to"
    with sftpretty.Connection("127.0.0.1", port=port, username="u", password="p", cnopts=options) as client:
        def remote(folder):
            return [entry.filename for entry in client.listdir_attr(os.path.abspath(folder))]

        attempt("put, second", os.listdir, lambda name: client.put(f"{here}/from/{name}", f"{here}/put/from/{name}"), put)
        attempt("put_d", os.listdir, lambda _: client.put_d(f"{here}/from", f"{here}/put", workers=1), put)
        attempt("put_r", os.listdir, lambda _: client.put_r(f"{here}/from", f"{here}/put", workers=1), put)
        attempt("get, second", remote, lambda name: client.get(f"{here}/from/{name}", f"{here}/to/{name}"), to)
        attempt("get_d", remote, lambda _: client.get_d(f"{here}/from", f"{here}/to", workers=1), to)
        attempt("get_r", remote, lambda _: client.get_r(f"{here}/from", f"{here}/to", workers=1), to)


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True)
    await asyncio.to_thread(copy, server.get_port())


asyncio.run(main())
PY
timeout 60 venv/bin/python run.py >actual

cat >expected <<'END'
put, second: an error, 0 of 3 files are there
put_d: done, 1 of 3 files are there
put_r: done, 1 of 3 files are there
get, second: an error, 0 of 3 files are there
get_d: done, 1 of 3 files are there
get_r: done, 1 of 3 files are there
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
