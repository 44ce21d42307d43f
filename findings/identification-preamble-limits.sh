#!/usr/bin/env bash
# Text in front of the server's identification: Go counts the length of a line, Paramiko the number of lines.
#
# Seen with: golang.org/x/crypto 0.59.0, Paramiko 5.1.0, asyncssh 2.24.1 as the clients.
#
# RFC 4253, section 4.2, lets a server send other lines before its identification, and sets no limit; the 255
# characters are for the identification itself. Go applies them to every line: one notice of 254 characters and the
# connection fails with "overflow reading version string", while a thousand short lines are fine. Paramiko has it the
# other way round: a line may be long, but after 100 lines it takes the next one for the identification. asyncssh
# takes both, and so does OpenSSH.
#
# Why it matters: legal notices are put there by appliances and TCP wrappers. "ssh connects, the Go program does not"
# looks like a network fault. A proxy or jump host that adds such text must fold it: lines up to 253 characters, at
# most 99 of them.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1 paramiko==5.1.0
mkdir "$dir/src"
cd "$dir/src"
cat >main.go <<'GO'
package main

import (
	"fmt"
	"os"

	"golang.org/x/crypto/ssh"
)

func main() {
	config := &ssh.ClientConfig{User: "u", HostKeyCallback: ssh.InsecureIgnoreHostKey()}
	if _, err := ssh.Dial("tcp", "127.0.0.1:"+os.Args[1], config); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("connected")
}
GO
go mod init finding 2>/dev/null
go get golang.org/x/crypto@v0.59.0 2>/dev/null
go build -o "$dir/client" .

cat >"$dir/run.py" <<'PY'
import asyncio
import logging
import socket
import subprocess
import sys
import threading

import asyncssh
import paramiko

logging.disable(logging.CRITICAL)


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


def relay(preamble, target):
    """Listens, sends the preamble to each client, and then only passes bytes on."""
    def copy(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def serve():
        while True:
            client, _ = listener.accept()
            client.sendall(preamble)
            server = socket.create_connection(("127.0.0.1", target))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def with_paramiko(port):
    try:
        transport = paramiko.Transport(("127.0.0.1", port))
        transport.start_client(timeout=20)
        transport.close()
        return "connected"
    except paramiko.SSHException as error:
        return str(error)


async def with_asyncssh(port):
    async with asyncssh.connect("127.0.0.1", port, username="u", config=None, known_hosts=None, client_keys=None,
                                agent_path=None):
        return "connected"


def with_go(port):
    return subprocess.run([sys.argv[1], str(port)], capture_output=True, text=True).stdout.strip()


async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key])
    for name, preamble in (("a line of 253", b"x" * 253 + b"\r\n"), ("a line of 254", b"x" * 254 + b"\r\n"),
                           ("99 lines", b"notice\r\n" * 99), ("100 lines", b"notice\r\n" * 100)):
        port = relay(preamble, server.get_port())
        print(f"{name}, Go: {await asyncio.to_thread(with_go, port)}")
        print(f"{name}, Paramiko: {await asyncio.to_thread(with_paramiko, port)}")
        print(f"{name}, asyncssh: {await with_asyncssh(port)}")


asyncio.run(main())
PY
"$dir/venv/bin/python" "$dir/run.py" "$dir/client" >"$dir/actual"

cat >"$dir/expected" <<'END'
a line of 253, Go: connected
a line of 253, Paramiko: connected
a line of 253, asyncssh: connected
a line of 254, Go: ssh: handshake failed: ssh: overflow reading version string
a line of 254, Paramiko: connected
a line of 254, asyncssh: connected
99 lines, Go: connected
99 lines, Paramiko: connected
99 lines, asyncssh: connected
100 lines, Go: connected
100 lines, Paramiko: Indecipherable protocol version "notice"
100 lines, asyncssh: connected
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
