#!/usr/bin/env bash
# Erlang/OTP's SFTP client: after a read or a write that timed out or failed, the next one is one block further on.
#
# Seen with: OTP 25.2.3's ssh 4.15.2 (Debian 12's erlang-ssh), asyncssh 2.24.1 as the server.
#
# ssh_sftp moves a handle's position as it sends a request, and does not take it back when the answer is an error or
# does not come within the Timeout of read/4 and write/4. Repeating the call reads the block behind, and the one that
# was asked for is never returned; a write that was refused and is repeated leaves a gap of zeros. The repeated calls
# return ok.
#
# Why it matters: timeouts are there to try again, and a full disk is tried again after tidying up. The file that
# results has a block too few, or one of zeros, and each error seems to have been dealt with. Use pread/5 and pwrite/5
# with offsets of your own, or call position/3 before repeating.
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
mkdir home

# Answers the second READ late, and the second WRITE with an error.
cat >server.py <<'PY'
import asyncio
import os

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


class Files(asyncssh.SFTPServer):
    reads = writes = 0

    async def read(self, file, offset, size):
        self.reads += 1
        if self.reads == 2:
            await asyncio.sleep(2)
        return super().read(file, offset, size)

    def write(self, file, offset, data):
        self.writes += 1
        if self.writes == 2:
            raise asyncssh.SFTPFailure("no space left")
        return super().write(file, offset, data)


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, sftp_factory=Files,
                                   server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")])
    with open("port.new", "w") as file:
        file.write(str(server.get_port()))
    os.rename("port.new", "port")
    await server.wait_closed()


asyncio.run(main())
PY
cat >client.erl <<'ERL'
-module(client).
-export([start/1]).

start([Port]) ->
    {ok, _} = application:ensure_all_started(ssh),
    {ok, Channel, _} = ssh_sftp:start_channel("127.0.0.1", list_to_integer(Port), [
        {user, "u"}, {password, "p"}, {user_dir, "home"}, {user_interaction, false},
        {silently_accept_hosts, true}, {save_accepted_host, false}]),
    {ok, Here} = file:get_cwd(),
    ok = file:write_file("in", "aaaabbbbcccc"),
    {ok, In} = ssh_sftp:open(Channel, filename:join(Here, "in"), [read]),
    [io:format("read: ~0p~n", [ssh_sftp:read(Channel, In, 4, 500)]) || _ <- [1, 2]],
    timer:sleep(3000),
    [io:format("read: ~0p~n", [ssh_sftp:read(Channel, In, 4, 500)]) || _ <- [1, 2]],
    {ok, Out} = ssh_sftp:open(Channel, filename:join(Here, "out"), [write]),
    [io:format("write ~s: ~0p~n", [Text, ssh_sftp:write(Channel, Out, Text)]) || Text <- ["aaaa", "bbbb", "bbbb", "cccc"]],
    ok = ssh_sftp:close(Channel, Out),
    halt().
ERL
venv/bin/python server.py 2>log &
server=$!
export HOME="$dir/home" ROOTDIR="$dir/root/usr/lib/erlang" EMU=beam PROGNAME=erl
export BINDIR="$ROOTDIR/erts-13.1.5/bin"
"$BINDIR/erlexec" -noinput -noshell -eval 'case compile:file("client") of {ok, _} -> halt(0); error -> halt(1) end.'
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
{
    timeout 60 "$BINDIR/erlexec" -noinput -noshell -eval "client:start([\"$(<port)\"])" 2>errors | grep -E '^(read|write)'
    echo "written: $(tr '\0' . <out)"
} >actual

cat >expected <<'END'
read: {ok,"aaaa"}
read: {error,timeout}
read: {ok,"cccc"}
read: eof
write aaaa: ok
write bbbb: {error,failure}
write bbbb: ok
write cccc: ok
written: aaaa....bbbbcccc
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
