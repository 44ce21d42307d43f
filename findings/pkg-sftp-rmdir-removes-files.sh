#!/usr/bin/env bash
# The server of Go's pkg/sftp removes a regular file when asked for RMDIR, and a directory when asked for REMOVE.
#
# Seen with: github.com/pkg/sftp 1.13.12, its Server (not RequestServer), on Linux.
#
# The draft (draft-ietf-secsh-filexfer-02, sections 6.5 and 6.6) has two requests, and other servers hold them apart:
# OpenSSH's sftp-server and asyncssh refuse both cases. pkg/sftp maps both to os.Remove, which tries unlink and rmdir.
#
# Why it matters: "RMDIR, and if that fails REMOVE" and its reverse are used to delete a path of unknown type in one
# round trip, and RMDIR is used as a safe guess ("it can only remove an empty directory"). Here the guess deletes a
# file that has replaced the directory in between. A client that must not delete a file asks LSTAT first, on any
# server.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
mkdir "$dir/src" "$dir/files"
cd "$dir/src"
cat >main.go <<'GO'
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/pkg/sftp"
)

// ask sends one request that has a single path and returns the status code of the answer.
func ask(conn net.Conn, kind byte, path string) uint32 {
	body := binary.BigEndian.AppendUint32([]byte{kind, 0, 0, 0, 1}, uint32(len(path)))
	answer := exchange(conn, append(body, path...))
	return binary.BigEndian.Uint32(answer[5:])
}

func exchange(conn net.Conn, body []byte) []byte {
	conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	var size [4]byte
	io.ReadFull(conn, size[:])
	answer := make([]byte, binary.BigEndian.Uint32(size[:]))
	io.ReadFull(conn, answer)
	return answer
}

func exists(path string) string {
	if _, err := os.Lstat(path); err != nil {
		return "gone"
	}
	return "there"
}

func main() {
	client, remote := net.Pipe()
	server, err := sftp.NewServer(remote)
	if err != nil {
		panic(err)
	}
	go server.Serve()
	exchange(client, []byte{1, 0, 0, 0, 3})

	file, folder := os.Args[1]+"/file", os.Args[1]+"/folder"
	os.WriteFile(file, []byte("text"), 0o644)
	os.Mkdir(folder, 0o755)
	fmt.Printf("RMDIR of a file: status %d, the file is %s\n", ask(client, 15, file), exists(file))
	fmt.Printf("REMOVE of a directory: status %d, the directory is %s\n", ask(client, 13, folder), exists(folder))
}
GO
go mod init finding 2>/dev/null
go get github.com/pkg/sftp@v1.13.12 2>/dev/null
go run . "$dir/files" >"$dir/actual"

cat >"$dir/expected" <<'END'
RMDIR of a file: status 0, the file is gone
REMOVE of a directory: status 0, the directory is gone
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
