#!/usr/bin/env bash
# Erlang/OTP's SFTP server empties a file that is opened for writing without TRUNC, and ignores EXCL and a new size.
#
# Seen with: OTP 25.2.3's ssh 4.15.2 (Debian 12's erlang-ssh), asyncssh 2.24.1 as the client.
#
# ssh_sftpd hands OPEN's flags on to file:open/2 as read, write and append. A write alone empties the file there, so
# WRITE, with or without CREAT, acts as if TRUNC were set; READ with WRITE keeps the text, even if TRUNC is set. EXCL becomes
# read: a file that exists is opened. SETSTAT and FSETSTAT of a size are answered with OK and do nothing.
#
# Why it matters: an upload that is resumed opens with WRITE and writes from its offset: the part that was there becomes
# zeros, the size is right, and all answers are OK (lftp 4.9.2's "put -c" ends with 0; OpenSSH's reput, which sets APPEND,
# is right). A lock file made with EXCL is taken twice. A client that cannot compare the contents starts again, or
# resumes with READ and WRITE.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
for package in base crypto asn1 public-key ssh; do
    apt-get download -qq "erlang-$package=1:25.2.3+dfsg-1+deb12u4" >>apt.log 2>&1 || { cat apt.log >&2; exit 1; }
done
for package in *.deb; do
    dpkg -x "$package" root
done
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1
mkdir keys home files
ssh-keygen -q -t ed25519 -N '' -f keys/ssh_host_ed25519_key

cat >server.erl <<'ERL'
-module(server).
-export([start/0]).

start() ->
    {ok, _} = application:ensure_all_started(ssh),
    {ok, Daemon} = ssh:daemon({127, 0, 0, 1}, 0, [{system_dir, "keys"}, {no_auth_needed, true}]),
    {ok, Info} = ssh:daemon_info(Daemon),
    ok = file:write_file("port.new", integer_to_list(proplists:get_value(port, Info))),
    ok = file:rename("port.new", "port").
ERL
export HOME="$dir/home" ROOTDIR="$dir/root/usr/lib/erlang" EMU=beam PROGNAME=erl
export BINDIR="$ROOTDIR/erts-13.1.5/bin"
"$BINDIR/erlexec" -noinput -noshell -eval 'case compile:file("server") of {ok, _} -> halt(0); error -> halt(1) end.'
"$BINDIR/erlexec" -noinput -noshell -s server start >log 2>&1 &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done

cat >run.py <<'PY'
import asyncio
import os
import sys

import asyncssh
from asyncssh.sftp import FXF_CREAT, FXF_EXCL, FXF_READ, FXF_TRUNC, FXF_WRITE

FILE = os.path.abspath("files/file")


def fresh():
    with open(FILE, "w") as file:
        file.write("0123456789")


def contents():
    with open(FILE, "rb") as file:
        return file.read()


async def main():
    async with asyncssh.connect("127.0.0.1", int(sys.argv[1]), username="u", known_hosts=None, config=None) as connection:
        async with connection.start_sftp_client() as client:
            for name, flags in (("WRITE", FXF_WRITE), ("WRITE CREAT", FXF_WRITE | FXF_CREAT),
                                ("WRITE CREAT EXCL", FXF_WRITE | FXF_CREAT | FXF_EXCL),
                                ("READ WRITE", FXF_READ | FXF_WRITE),
                                ("READ WRITE CREAT TRUNC", FXF_READ | FXF_WRITE | FXF_CREAT | FXF_TRUNC)):
                fresh()
                async with client.open(FILE, flags, encoding=None) as file:
                    opened = contents()
                    await file.write(b"56789ab", offset=5)
                print(f"{name}: {opened}, and with 7 bytes from 5 on {contents()}")
            fresh()
            await client.truncate(FILE, 3)
            print("SETSTAT of size 3:", contents())


asyncio.run(main())
PY
timeout 60 venv/bin/python run.py "$(cat port)" >actual

cat >expected <<'END'
WRITE: b'', and with 7 bytes from 5 on b'\x00\x00\x00\x00\x0056789ab'
WRITE CREAT: b'', and with 7 bytes from 5 on b'\x00\x00\x00\x00\x0056789ab'
WRITE CREAT EXCL: b'0123456789', and with 7 bytes from 5 on b'0123456789ab'
READ WRITE: b'0123456789', and with 7 bytes from 5 on b'0123456789ab'
READ WRITE CREAT TRUNC: b'0123456789', and with 7 bytes from 5 on b'0123456789ab'
SETSTAT of size 3: b'0123456789'
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
