#!/usr/bin/env bash
# Wish's SCP server sends a file without waiting for the client, and does nothing, with status 0, for `scp -qt`.
#
# Seen with: charm.land/wish/v2 2.0.5 (its scp middleware); the clients are OpenSSH 9.2p1's scp -O, scp 0.16.2 of PyPI on
# Paramiko 5.1.0, and github.com/bramvdbogaerde/go-scp 1.6.1.
#
# In SCP each line of the source is answered with a byte before the next part comes. Wish reads no answers: the times, the
# header and the data follow one another at once. OpenSSH reads one byte at a time and is content. Python's scp takes what
# has come for one line: the header is dropped as a part of the times, and get() returns without an error and without a
# file, or raises an AssertionError without a word. go-scp loses the first bytes of the data to its buffer of the header,
# and says EOF. Both depend on how fast the client is. Wish also knows -t and -f as words of their own only: go-scp's -qt
# and -pf do nothing, with status 0.
#
# Why it matters: a test with OpenSSH, or on a slow link, finds nothing. Behind a library the file is missing or cut at its
# beginning. Compare the size after a get(), and offer SFTP as well where clients other than scp are to come. A server
# of SCP has to wait for each answer, and a client has to take its lines byte by byte.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
mkdir -p "$dir/src/files"
cd "$dir/src"
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q paramiko==5.1.0 scp==0.16.2
head -c 100000 /dev/zero | tr '\0' x >files/file
echo hello >files/small

cat >get.py <<'PY'
import os
import sys

import paramiko
import scp

transport = paramiko.Transport(("127.0.0.1", int(sys.argv[1])))
transport.start_client()
transport.auth_none("u")
whole = missing = 0
for number in range(40):
    copy = f"copy-{number}"
    try:
        scp.SCPClient(transport, socket_timeout=10).get("small", copy)
    except (AssertionError, OSError, scp.SCPException):
        continue
    whole += os.path.exists(copy)
    missing += not os.path.exists(copy)
print("scp.py, 40 downloads are whole:", whole == 40)
print("scp.py, some have no error and no file:", missing > 0)
transport.close()
PY
cat >main.go <<'GO'
package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"charm.land/wish/v2"
	wishscp "charm.land/wish/v2/scp"
	goscp "github.com/bramvdbogaerde/go-scp"
	"golang.org/x/crypto/ssh"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	handler := wishscp.NewFileSystemHandler("files")
	server := must(wish.NewServer(wish.WithMiddleware(wishscp.Middleware(handler, handler))))
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	go server.Serve(listener)
	address := listener.Addr().String()
	port := fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
	size := must(os.Stat("files/file")).Size()

	err := exec.Command("scp", "-O", "-q", "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		"-P", port, "u@127.0.0.1:file", "copy-by-scp").Run()
	fmt.Println("scp, download:", err, must(os.Stat("copy-by-scp")).Size() == size)

	python := exec.Command(os.Args[1], "get.py", port)
	python.Stderr = os.Stderr
	fmt.Print(string(must(python.Output())))

	config := &ssh.ClientConfig{User: "u", HostKeyCallback: ssh.InsecureIgnoreHostKey()}
	client := must(ssh.Dial("tcp", address, config))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	copier := must(goscp.NewClientBySSH(client))
	whole := 0
	for range 20 {
		var data bytes.Buffer
		if copier.CopyFromRemotePassThru(ctx, &data, "file", nil) == nil && int64(data.Len()) == size {
			whole++
		}
	}
	fmt.Println("go-scp, 20 downloads are whole:", whole == 20)
	fmt.Println("go-scp, upload:", copier.Copy(ctx, strings.NewReader("text"), "new", "0644", 4))
	for _, command := range []string{"scp -q -t .", "scp -qt .", "scp -pf file"} {
		session := must(client.NewSession())
		output, err := session.Output(command)
		fmt.Printf("%s: %d bytes, error %v\n", command, len(output), err)
	}
}
GO
go mod init finding 2>/dev/null
go get charm.land/wish/v2@v2.0.5 github.com/bramvdbogaerde/go-scp@v1.6.1 golang.org/x/crypto@v0.59.0 2>/dev/null
go mod tidy 2>/dev/null
go build -o run .
timeout 120 ./run "$dir/venv/bin/python" >"$dir/actual"

cat >"$dir/expected" <<'END'
scp, download: <nil> true
scp.py, 40 downloads are whole: False
scp.py, some have no error and no file: True
go-scp, 20 downloads are whole: false
go-scp, upload: EOF
scp -q -t .: 2 bytes, error <nil>
scp -qt .: 0 bytes, error <nil>
scp -pf file: 0 bytes, error <nil>
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
