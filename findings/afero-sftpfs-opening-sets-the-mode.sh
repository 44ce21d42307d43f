#!/usr/bin/env bash
# afero's SFTP file system: opening a file for reading sets its mode, usually to 0; MkdirAll of a file's name succeeds.
#
# Seen with: github.com/spf13/afero and afero/sftpfs 1.15.0 on pkg/sftp 1.13.12, asyncssh 2.24.1 as the server; afero's
# OsFs for comparison.
#
# OpenFile's third argument is the mode for a file that has to be made. sftpfs sends it in an FSETSTAT behind each OPEN,
# whatever the flags are. So OpenFile(name, os.O_RDONLY, 0), as it is usually written, leaves a file that nobody may
# read, and WriteFile(name, data, 0644) opens a private file to all. Where the server refuses the FSETSTAT, OpenFile
# returns an error although the file was opened, and emptied if TRUNC was set. MkdirAll returns nil for a path that is a
# file.
#
# Why it matters: code that is right with afero's other file systems takes a file away from its owner by reading it, and
# goes on without the directory that it asked for. Open() and Create() set no mode. For other flags, call Stat() first
# and give OpenFile the mode that the file has.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
mkdir "$dir/src"
cd "$dir/src"
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1

cat >main.go <<'GO'
package main

import (
	"fmt"
	"os"

	"github.com/pkg/sftp"
	"github.com/spf13/afero"
	"github.com/spf13/afero/sftpfs"
	"golang.org/x/crypto/ssh"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func mode(name string) os.FileMode {
	info, err := os.Stat(name)
	check(err)
	return info.Mode()
}

func succeeds(err error) string {
	if err != nil {
		return "an error"
	}
	return "nil"
}

func main() {
	connection, err := ssh.Dial("tcp", "127.0.0.1:"+os.Args[1],
		&ssh.ClientConfig{User: "u", HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	check(err)
	client, err := sftp.NewClient(connection)
	check(err)
	here, err := os.Getwd()
	check(err)
	name := here + "/file"
	for _, system := range []afero.Fs{afero.NewOsFs(), sftpfs.New(client)} {
		fmt.Println(system.Name())
		check(os.WriteFile(name, []byte("text"), 0o600))
		check(os.Chmod(name, 0o600))
		file, err := system.Open(name)
		check(err)
		check(file.Close())
		fmt.Println("  after Open:", mode(name))
		file, err = system.OpenFile(name, os.O_RDONLY, 0)
		check(err)
		check(file.Close())
		fmt.Println("  after OpenFile to read:", mode(name))
		check(os.Chmod(name, 0o600))
		check(afero.WriteFile(system, name, []byte("text"), 0o644))
		fmt.Println("  after WriteFile:", mode(name))
		fmt.Println("  MkdirAll of the file:", succeeds(system.MkdirAll(name, 0o755)))
	}
}
GO
cat >server.py <<'PY'
import asyncio
import sys

import asyncssh


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, sftp_factory=True,
                                   server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")])
    program = await asyncio.create_subprocess_exec(*sys.argv[1:], str(server.get_port()))
    sys.exit(await program.wait())


asyncio.run(main())
PY
go mod init finding 2>/dev/null
go get github.com/spf13/afero@v1.15.0 github.com/spf13/afero/sftpfs@v1.15.0 github.com/pkg/sftp@v1.13.12 \
    golang.org/x/crypto@v0.59.0 2>go.log || { cat go.log >&2; exit 1; }
go build -o program . 2>go.log || { cat go.log >&2; exit 1; }
timeout 60 "$dir/venv/bin/python" server.py ./program >actual

cat >expected <<'END'
OsFs
  after Open: -rw-------
  after OpenFile to read: -rw-------
  after WriteFile: -rw-------
  MkdirAll of the file: an error
sftpfs
  after Open: -rw-------
  after OpenFile to read: ----------
  after WriteFile: -rw-r--r--
  MkdirAll of the file: nil
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
