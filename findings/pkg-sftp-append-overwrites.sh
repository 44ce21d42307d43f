#!/usr/bin/env bash
# Two writers that append to one file through Go's pkg/sftp overwrite each other.
#
# Seen with: github.com/pkg/sftp 1.13.12, its Server and its Client, on Linux.
#
# With SSH_FXF_APPEND, OpenSSH's sftp-server, asyncssh, Apache MINA SSHD and Twisted ignore the offset of a WRITE and
# put the data at the end. pkg/sftp's server drops the flag and obeys the offset. It says OK both to the OPEN and to
# the WRITE. Its own client's file starts at offset 0 after O_APPEND, so a single writer already overwrites the
# beginning.
#
# Why it matters: a client cannot rely on APPEND to mean "at the end", and cannot rely on the offset to mean "here":
# one of the two is wrong on each server. To append: STAT, then WRITE at that offset without APPEND, and no second
# writer. A log that several hosts append to through such a server loses lines without any error.
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
	"net"
	"os"

	"github.com/pkg/sftp"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ours, theirs := net.Pipe()
	server := must(sftp.NewServer(theirs))
	go server.Serve()
	client := must(sftp.NewClientPipe(ours, ours))

	path := os.Args[1]
	os.WriteFile(path, []byte("0123456789"), 0o644)
	first := must(client.OpenFile(path, os.O_WRONLY|os.O_APPEND))
	second := must(client.OpenFile(path, os.O_WRONLY|os.O_APPEND))
	must(first.Write([]byte("one")))
	must(second.Write([]byte("two")))
	first.Close()
	second.Close()
	fmt.Printf("%s\n", must(os.ReadFile(path)))
}
GO
go mod init finding 2>/dev/null
go get github.com/pkg/sftp@v1.13.12 2>/dev/null
go run . "$dir/file" >"$dir/actual"

echo two3456789 >"$dir/expected"
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
