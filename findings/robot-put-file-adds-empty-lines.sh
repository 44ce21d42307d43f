#!/usr/bin/env bash
# Robot Framework's SSHLibrary: Put File with newline=LF or CRLF adds empty lines to a file that has CRLF.
#
# Seen with: robotframework-sshlibrary 3.8.0 on Paramiko 5.1.0, Robot Framework 7.5; asyncssh 2.24.1 as the server.
#
# "newline" converts the line breaks of the uploaded file. The file is read in blocks of 4096 bytes, and each block is
# converted on its own. Where a block ends between the CR and the LF of one line break, the CR becomes one line break,
# and the LF at the beginning of the next block a second one.
#
# Why it matters: whether a file gets an empty line depends on nothing but the length of the text above that place. A file
# that is right today is wrong when a line at its top grows. An empty line ends a header or a paragraph, and is a record
# of its own in a list. No keyword reports it. Convert the file before, and give no newline.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q robotframework-sshlibrary==3.8.0 robotframework==7.5 paramiko==5.1.0 asyncssh==2.24.1

cat >run.py <<'PY'
import asyncio
import os
import warnings

import asyncssh

warnings.simplefilter("ignore")
from SSHLibrary import SSHLibrary  # noqa: E402


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


async def shell(process):
    await process.stdin.read()


def upload(port):
    here = os.getcwd()
    library = SSHLibrary()
    library.open_connection("127.0.0.1", port=port)
    library.login("u", "p")
    for name, last in (("short", 900), ("long", 9000)):
        text = "".join(f"{number} {'*' * (number % 50)}\r\n" for number in range(last)).encode()
        with open("local", "wb") as file:
            file.write(text)
        for newline, ending in (("", b"\r\n"), ("LF", b"\n"), ("CRLF", b"\r\n")):
            library.put_file(f"{here}/local", f"{here}/remote", newline=newline)
            with open("remote", "rb") as file:
                got = file.read()
            right = "right" if got == text.replace(b"\r\n", ending) else "wrong"
            lines = got.split(ending)[:-1]
            print(f"{name}, newline {newline or 'not given'}: {len(lines)} of {last} lines, {lines.count(b'')} empty, {right}")
    library.close_connection()


async def main():
    key = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], sftp_factory=True,
                                   process_factory=shell)
    await asyncio.to_thread(upload, server.get_port())
    server.close()


asyncio.run(main())
PY
timeout 100 venv/bin/python run.py >actual

cat >expected <<'END'
short, newline not given: 900 of 900 lines, 0 empty, right
short, newline LF: 900 of 900 lines, 0 empty, right
short, newline CRLF: 900 of 900 lines, 0 empty, right
long, newline not given: 9000 of 9000 lines, 0 empty, right
long, newline LF: 9002 of 9000 lines, 2 empty, wrong
long, newline CRLF: 9002 of 9000 lines, 2 empty, wrong
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
