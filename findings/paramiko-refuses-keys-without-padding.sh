#!/usr/bin/env bash
# Paramiko: about half of the ECDSA keys that have no comment are refused, "Invalid key curve identifier".
#
# Seen with: Paramiko 5.1.0 and 3.5.1, OpenSSH's ssh-keygen; the package cryptography 46.0.3 for comparison.
#
# The private part of a key in OpenSSH's format is filled up to a multiple of eight bytes with 1, 2, 3 and so on. Paramiko takes
# the last byte for the number of bytes to take off. Where nothing was filled up, and there is no comment whose last letter
# would tell, that byte is 0, and taking off "the last 0 bytes" leaves nothing at all. An ECDSA key's length depends on the
# first bit of its number, so that it happens to some of P-256 and P-384.
#
# Why it matters: keys of containers and deployments are made with -C '', and each new one is good or bad by chance, for
# Paramiko, Fabric and Ansible's paramiko plugin only; ssh takes it. The message speaks of a curve, which is right. Give the key
# a comment: ssh-keygen -c -C deploy -f KEY.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
for version in 5.1.0 3.5.1; do
    python3 -m venv "$version"
    "$version/bin/pip" install -q "paramiko==$version" cryptography==46.0.3
done

cat >open.py <<'PY'
import glob
from collections import Counter

import paramiko
from cryptography.hazmat.primitives.serialization import load_ssh_private_key


def attempt(action):
    try:
        action()
        return "opened"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def show(who, action):
    results = Counter(attempt(lambda: action(file)) for file in sorted(glob.glob("key-??")))
    print(f"  {who}:", "; ".join(f"{result} ({'all' if count == 32 else 'some'})" for result, count in sorted(results.items())))


def by_cryptography(file):
    with open(file, "rb") as content:
        load_ssh_private_key(content.read(), None)


show("cryptography", by_cryptography)
show("Paramiko", paramiko.ECDSAKey.from_private_key_file)
PY
for number in {10..41}; do
    ssh-keygen -q -t ecdsa -b 256 -N '' -C '' -f "key-$number"
done
{
    for version in 5.1.0 3.5.1; do
        echo "no comment, $version"
        "$version/bin/python" open.py
    done
    for number in {10..41}; do
        ssh-keygen -q -c -C deploy -P '' -f "key-$number" >/dev/null
    done
    for version in 5.1.0 3.5.1; do
        echo "a comment, $version"
        "$version/bin/python" -W ignore open.py
    done
} >actual

cat >expected <<'END'
no comment, 5.1.0
  cryptography: opened (all)
  Paramiko: SSHException: Invalid key curve identifier (some); opened (some)
no comment, 3.5.1
  cryptography: opened (all)
  Paramiko: SSHException: Invalid key curve identifier (some); opened (some)
a comment, 5.1.0
  cryptography: opened (all)
  Paramiko: opened (all)
a comment, 3.5.1
  cryptography: opened (all)
  Paramiko: opened (all)
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
