#!/usr/bin/env bash
# phpseclib: put() of a local file that is not there empties the remote one.
#
# Seen with: phpseclib 3.0.19 and PHP 8.2 (Debian 12's php-phpseclib3 and php8.2-cli), asyncssh 2.24.1 as the server.
#
# SFTP::put() with SOURCE_LOCAL_FILE opens the remote file with CREATE and TRUNC, and looks for the local one after
# that. FileNotFoundException says which file is missing, and not that the other is empty now, or new. The same goes
# for a local directory. Where put() is given a start in the remote file, or RESUME, nothing is cut off.
#
# Why it matters: "upload it if it is there", with the exception caught, is a usual way to refresh a remote copy, and
# the last good copy is gone once a file is late. Other clients open the local file first. Call is_file() before put(),
# or pass an open stream in place of a name.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq php8.2-cli libargon2-1 libsodium23 libpcre2-8-0 libxml2 libicu72 libssl3 php8.2-common \
    php-phpseclib3=3.0.19-1+deb12u6 php-constant-time php-random-compat >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
for package in *.deb; do
    dpkg -x "$package" root
done
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1

cat >server.py <<'PY'
import asyncio
import os

import asyncssh


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, sftp_factory=True,
                                   server_host_keys=[asyncssh.generate_private_key("ecdsa-sha2-nistp256")])
    with open("port.new", "w") as file:
        file.write(str(server.get_port()))
    os.rename("port.new", "port")
    await server.wait_closed()


asyncio.run(main())
PY
cat >run.php <<'PHP'
<?php
require 'root/usr/share/php/phpseclib3/autoload.php';

use phpseclib3\Net\SFTP;

$sftp = new SFTP('127.0.0.1', (int) $argv[1]);
$sftp->login('u', 'p');

function show(string $what, callable $put, string $name = 'remote'): void {
    file_put_contents('remote', 'old text');
    try {
        $result = json_encode($put(__DIR__ . "/$name"));
    } catch (Exception $error) {
        $result = (new ReflectionClass($error))->getShortName();
    }
    echo "$what: $result, ", file_exists($name) ? json_encode(file_get_contents($name)) : 'no file', "\n";
}

file_put_contents('local', 'new text');
mkdir('folder');
$mode = SFTP::SOURCE_LOCAL_FILE;
show('local file', fn ($remote) => $sftp->put($remote, 'local', $mode));
show('missing file', fn ($remote) => $sftp->put($remote, 'missing', $mode));
show('missing file, new name', fn ($remote) => $sftp->put($remote, 'missing', $mode), 'new');
show('directory', fn ($remote) => $sftp->put($remote, 'folder', $mode));
show('missing file, RESUME', fn ($remote) => $sftp->put($remote, 'missing', $mode | SFTP::RESUME));
show('missing file, from 3', fn ($remote) => $sftp->put($remote, 'missing', $mode, 3));
PHP
venv/bin/python server.py 2>log.server &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
library=$(echo "$dir"/root/usr/lib/*-linux-gnu)
extensions=$(echo "$dir"/root/usr/lib/php/2*)
LD_LIBRARY_PATH=$library timeout 60 root/usr/bin/php8.2 -n -d extension_dir="$extensions" -d extension=ctype.so \
    run.php "$(cat port)" >actual

cat >expected <<'END'
local file: true, "new text"
missing file: FileNotFoundException, ""
missing file, new name: FileNotFoundException, ""
directory: FileNotFoundException, ""
missing file, RESUME: FileNotFoundException, "old text"
missing file, from 3: FileNotFoundException, "old text"
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
