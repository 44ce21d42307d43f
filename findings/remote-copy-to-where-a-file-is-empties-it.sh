#!/usr/bin/env bash
# A copy on the server to where the file already is empties it: asyncssh's copy(), sftp's copy and scp between remote names.
#
# Seen with: asyncssh 2.24.1 as client and server, OpenSSH 9.2p1's sftp and scp; coreutils' cp for comparison.
#
# cp and shutil.copy() see that source and target are one file and refuse. These three open the source to read and the
# target with TRUNC, one after the other, and copy the nothing that is left. asyncssh and sftp say that it went well. For
# asyncssh and scp a directory as the target is enough: the file's own name in it is the target then. With OpenSSH's
# sftp-server, sftp ends with 1, since that refuses to copy within one file, but the file is empty as well (tried by hand).
#
# Why it matters: "copy it to the folder where it belongs" is harmless on a local disk if it is there already. Here
# the only copy is lost, and scp's status 1 comes too late. Compare the two names by the server's realpath before such a
# copy, or copy to a name of its own and rename that.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
mkdir folder
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1

cat >server.py <<'PY'
import asyncio
import os

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, sftp_factory=True,
                                   server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")])
    with open("port.new", "w") as file:
        file.write(str(server.get_port()))
    os.rename("port.new", "port")
    await server.wait_closed()


asyncio.run(main())
PY
cat >client.py <<'PY'
import asyncio
import sys

import asyncssh


async def main():
    port, source, target = sys.argv[1:]
    async with asyncssh.connect("127.0.0.1", int(port), username="u", known_hosts=None, config=None) as connection:
        async with connection.start_sftp_client() as client:
            await client.copy(source, target)


asyncio.run(main())
PY
venv/bin/python server.py 2>log &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
port=$(<port)
options=(-F none -q -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR)

with_cp() { cp "$1" "$2"; }
with_asyncssh() { venv/bin/python client.py "$port" "$1" "$2"; }
with_sftp() { sftp "${options[@]}" -P "$port" -b - u@127.0.0.1 <<<"copy $1 $2"; }
with_scp() { scp "${options[@]}" "scp://u@127.0.0.1:$port/$1" "scp://u@127.0.0.1:$port/$2"; }

for program in cp asyncssh sftp scp; do
    for target in folder/file folder; do
        echo text >folder/file
        status=0
        "with_$program" "$dir/folder/file" "$dir/$target" >out 2>&1 || status=$?
        echo "$program to $target: status $status, $(wc -c <folder/file) bytes"
    done
done >actual

cat >expected <<'END'
cp to folder/file: status 1, 5 bytes
cp to folder: status 1, 5 bytes
asyncssh to folder/file: status 0, 0 bytes
asyncssh to folder: status 0, 0 bytes
sftp to folder/file: status 0, 0 bytes
sftp to folder: status 1, 5 bytes
scp to folder/file: status 1, 0 bytes
scp to folder: status 1, 0 bytes
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
