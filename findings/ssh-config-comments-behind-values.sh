#!/usr/bin/env bash
# A "#" behind a value in ssh_config: none of five libraries reads it as OpenSSH does.
#
# Seen with: OpenSSH 9.2p1 (ssh -G), Paramiko 5.1.0, asyncssh 2.24.1, npm ssh-config 5.3.0, npm @jeanp413/ssh-config
# 4.3.1, github.com/kevinburke/ssh_config 1.6.0.
#
# OpenSSH takes "#" for a comment where a word begins, and for a part of the word inside one. Then:
# - Paramiko and @jeanp413/ssh-config make the comment a part of the value: HostName is "new.example.com # moved".
# - asyncssh refuses the whole file for such a line, but for "Host two # old" it does not.
# - Paramiko, asyncssh and @jeanp413/ssh-config take the words of a comment behind Host for patterns: "old" is a host.
# - ssh-config and kevinburke/ssh_config begin a comment at any "#": the user "job#1" becomes "job".
#
# Why it matters: such a file works with ssh, so it is blamed on the library ("cannot resolve"), or a host gets the
# settings of another one by a word in a remark. Only ssh -G gives what ssh will do.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
mkdir "$dir/src"
cd "$dir/src"
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1 paramiko==5.1.0
npm install --silent --no-audit --no-fund --prefix "$dir/src" ssh-config@5.3.0 @jeanp413/ssh-config@4.3.1
cat >comment <<'END'
Host one
    HostName new.example.com # moved
END
cat >hash <<'END'
Host one
    User job#1
END
cat >host <<'END'
Host two # old
    User joe
END

cat >main.go <<'GO'
package main

import (
	"fmt"
	"os"

	"github.com/kevinburke/ssh_config"
)

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	config, err := ssh_config.Decode(file)
	if err != nil {
		panic(err)
	}
	value, err := config.Get(os.Args[2], os.Args[3])
	if err != nil {
		panic(err)
	}
	fmt.Println(value)
}
GO
go mod init finding 2>/dev/null
go get github.com/kevinburke/ssh_config@v1.6.0 2>/dev/null
go build -o kevinburke .
cat >parse.js <<'JS'
const [name, file, host, key] = process.argv.slice(2);
const loaded = require(name);
const config = (loaded.default || loaded).parse(require('fs').readFileSync(file, 'utf8'));
console.log(config.compute(host)[key] ?? '');
JS
cat >parse.py <<'PY'
import sys

import asyncssh
import paramiko
from asyncssh.config import SSHClientConfig

library, file, host, key = sys.argv[1:]
if library == "paramiko":
    value = paramiko.SSHConfig.from_path(file).lookup(host).get(key.lower(), "")
    print("" if value == host else value)
else:
    try:
        config = SSHClientConfig.load(None, [file], False, False, False, "me", (), host, ())
        print(config.get_options(False).get({"HostName": "Hostname"}.get(key, key), ""))
    except asyncssh.ConfigParseError as error:
        print(f"error: {str(error).partition(': ')[2]}")
PY

look() {
    echo "$*, ssh: $(ssh -TF "$1" -G "$2" | sed -n "s/^${3,,} //p" | sed "s/^$(id -un)\$//")"
    for library in paramiko asyncssh; do
        echo "$*, $library: $("$dir/venv/bin/python" parse.py "$library" "$@")"
    done
    for package in ssh-config @jeanp413/ssh-config; do
        echo "$*, $package: $(node parse.js "$package" "$@")"
    done
    echo "$*, kevinburke: $(./kevinburke "$@")"
}
{
    look comment one HostName
    look hash one User
    look host two User
    look host old User
} >actual

cat >expected <<'END'
comment one HostName, ssh: new.example.com
comment one HostName, paramiko: new.example.com # moved
comment one HostName, asyncssh: error: Extra data at end: # moved
comment one HostName, ssh-config: new.example.com
comment one HostName, @jeanp413/ssh-config: new.example.com # moved
comment one HostName, kevinburke: new.example.com
hash one User, ssh: job#1
hash one User, paramiko: job#1
hash one User, asyncssh: job#1
hash one User, ssh-config: job
hash one User, @jeanp413/ssh-config: job#1
hash one User, kevinburke: job
host two User, ssh: joe
host two User, paramiko: joe
host two User, asyncssh: joe
host two User, ssh-config: joe
host two User, @jeanp413/ssh-config: joe
host two User, kevinburke: joe
host old User, ssh: 
host old User, paramiko: joe
host old User, asyncssh: joe
host old User, ssh-config: 
host old User, @jeanp413/ssh-config: joe
host old User, kevinburke: 
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
