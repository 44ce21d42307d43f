#!/usr/bin/env bash
# sshconf (PyPI): a Match block is a part of the Host above: set() changes the wrong block, remove() removes both.
#
# Seen with: sshconf 0.2.7, OpenSSH's ssh -G.
#
# Only "Host" begins a block. A keyword that the host does not have, but the Match block below does, is read and changed
# there. remove() deletes all lines up to the next Host, with the Match block. A list given to set() is written in
# reverse order when it replaces lines that are there, and "Host a b" is found neither by the name "a" nor by "b".
#
# Why it matters: sshconf is for programs that edit ~/.ssh/config and keep the rest of it as it is. The file stays
# valid, so nothing reports that another host got the new user, lost its settings, or is offered its keys the other way
# round. Check the file for "Match" before editing it, or write to a file of your own that the user includes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q sshconf==0.2.7

cat >config <<'END'
Host web
    HostName web.example
    IdentityFile /keys/one
    IdentityFile /keys/two

Match host db.example
    User postgres
    Port 5422

Host *
    Compression yes
END
cat >edit.py <<'PY'
import sys

import sshconf

config = sshconf.read_ssh_config("config")
match sys.argv[1]:
    case "set the user of web":
        config.set("web", User="deploy")
    case "set the keys of web":
        config.set("web", IdentityFile=["/keys/first", "/keys/second"])
    case "remove web":
        config.remove("web")
config.write("edited")
PY
show() {
    for host in web db.example; do
        echo "  $host:" "$(ssh -T -G -F "$1" "$host" | grep -E '^(user|port) |^identityfile /keys/' | paste -sd, | sed 's/,/, /g')"
    done
}

{
    echo "before"
    show config
    for edit in "set the user of web" "set the keys of web" "remove web"; do
        venv/bin/python edit.py "$edit"
        echo "$edit"
        show edited
    done
} | sed "s/user $(id -un)\b/user (default)/" >actual

cat >expected <<'END'
before
  web: user (default), port 22, identityfile /keys/one, identityfile /keys/two
  db.example: user postgres, port 5422
set the user of web
  web: user (default), port 22, identityfile /keys/one, identityfile /keys/two
  db.example: user deploy, port 5422
set the keys of web
  web: user (default), port 22, identityfile /keys/second, identityfile /keys/first
  db.example: user postgres, port 5422
remove web
  web: user (default), port 22
  db.example: user (default), port 22
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
