#!/usr/bin/env bash
# Go's x/crypto/ssh says "not an encrypted key" of an encrypted key in PKCS #8.
#
# Seen with: golang.org/x/crypto 0.59.0, keys of OpenSSL 3.0; asyncssh 2.24.1 reads the same file.
#
# ParsePrivateKey answers an encrypted key with PassphraseMissingError, and programs ask for the passphrase on that
# error alone. For "BEGIN ENCRYPTED PRIVATE KEY", the format that openssl writes, it is an unsupported key type. With
# the right passphrase, ParsePrivateKeyWithPassphrase says that the key is not encrypted at all. The same key without
# encryption is read.
#
# Why it matters: the error sends people after a wrong file or a wrong passphrase. A client that offers to ask for a
# passphrase has to know the PEM label by itself. `ssh-keygen -p` on such a key writes a format that all of them read.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
mkdir "$dir/src"
cd "$dir/src"
openssl ecparam -name prime256v1 -genkey -noout -out sec1
openssl pkcs8 -topk8 -nocrypt -in sec1 -out plain
openssl pkcs8 -topk8 -passout pass:secret -in sec1 -out encrypted
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q asyncssh==2.24.1
cat >main.go <<'GO'
package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/crypto/ssh"
)

func read(name string) []byte {
	text, err := os.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return text
}

func main() {
	_, err := ssh.ParsePrivateKey(read("plain"))
	fmt.Println("plain:", err)
	_, err = ssh.ParsePrivateKey(read("encrypted"))
	var missing *ssh.PassphraseMissingError
	fmt.Printf("encrypted: %v; passphrase missing: %v\n", err, errors.As(err, &missing))
	_, err = ssh.ParsePrivateKeyWithPassphrase(read("encrypted"), []byte("secret"))
	fmt.Println("encrypted, with the passphrase:", err)
}
GO
go mod init finding 2>/dev/null
go get golang.org/x/crypto@v0.59.0 2>/dev/null
{
    go run .
    "$dir/venv/bin/python" -c '
import asyncssh
print("asyncssh, with the passphrase:", asyncssh.read_private_key("encrypted", "secret").get_algorithm())'
} >actual

cat >expected <<'END'
plain: <nil>
encrypted: ssh: unsupported key type "ENCRYPTED PRIVATE KEY"; passphrase missing: false
encrypted, with the passphrase: ssh: not an encrypted key
asyncssh, with the passphrase: ecdsa-sha2-nistp256
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
