#!/usr/bin/env bash
# Through gliderlabs/ssh, a forwarded connection ends as soon as one side has nothing more to send.
#
# Seen with: github.com/gliderlabs/ssh 0.3.8 (its DirectTCPIPHandler), golang.org/x/crypto 0.59.0 as the client.
#
# RFC 4254, section 5.3: CHANNEL_EOF closes one direction, "the channel remains open". OpenSSH, asyncssh and Apache
# MINA SSHD pass it on as a half-close of the TCP connection. DirectTCPIPHandler copies in two goroutines, and
# whichever ends first closes both the channel and the socket. A service that answers at the end of its input (a
# filter, a whois-like protocol, `ssh -W` with stdin from a pipe) gets the whole request, and its answer is thrown
# away. Nothing reports an error: the client reads a clean end of file, and stock ssh exits with 0.
#
# Why it matters: such servers stand behind bastions written in Go. A tunnel that returned zero bytes and no error
# after our EOF is not proof that the service had nothing to say. Hold the EOF back where the protocol lets you.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
mkdir "$dir/src"
cd "$dir/src"
cat >main.go <<'GO'
package main

import (
	"fmt"
	"io"
	"net"
	"time"

	glider "github.com/gliderlabs/ssh"
	"golang.org/x/crypto/ssh"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// answer reads all of its input, thinks for half a second, and says how much it was.
func answer(conn net.Conn, seen chan<- int) {
	request, _ := io.ReadAll(conn)
	seen <- len(request)
	time.Sleep(500 * time.Millisecond)
	fmt.Fprintf(conn, "%d bytes\n", len(request))
	conn.Close()
}

func main() {
	service := must(net.Listen("tcp", "127.0.0.1:0"))
	seen := make(chan int, 2)
	go func() {
		for {
			answer(must(service.Accept()), seen)
		}
	}()

	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	server := &glider.Server{
		LocalPortForwardingCallback: func(glider.Context, string, uint32) bool { return true },
		ChannelHandlers:             map[string]glider.ChannelHandler{"direct-tcpip": glider.DirectTCPIPHandler},
	}
	go server.Serve(listener)

	direct := must(net.Dial("tcp", service.Addr().String()))
	fmt.Fprint(direct, "request")
	direct.(*net.TCPConn).CloseWrite()
	reply, err := io.ReadAll(direct)
	fmt.Printf("directly: the service saw %d bytes, the client %q, error %v\n", <-seen, reply, err)

	config := &ssh.ClientConfig{User: "u", HostKeyCallback: ssh.InsecureIgnoreHostKey()}
	client := must(ssh.Dial("tcp", listener.Addr().String(), config))
	tunnel := must(client.Dial("tcp", service.Addr().String()))
	fmt.Fprint(tunnel, "request")
	tunnel.(interface{ CloseWrite() error }).CloseWrite()
	reply, err = io.ReadAll(tunnel)
	fmt.Printf("tunnelled: the service saw %d bytes, the client %q, error %v\n", <-seen, reply, err)
}
GO
go mod init finding 2>/dev/null
go get github.com/gliderlabs/ssh@v0.3.8 golang.org/x/crypto@v0.59.0 2>/dev/null
go run . >"$dir/actual"

cat >"$dir/expected" <<'END'
directly: the service saw 7 bytes, the client "7 bytes\n", error <nil>
tunnelled: the service saw 7 bytes, the client "", error <nil>
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
