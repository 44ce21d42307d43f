#!/usr/bin/env bash
# phpseclib: a stream that is opened to append writes at the end the file had then, over what others have added since.
#
# Seen with: phpseclib 3.0.19 and PHP 8.2 (Debian 12's php-phpseclib3 and php8.2-cli), asyncssh 2.24.1 as the server;
# PHP's own files for comparison.
#
# In mode "a", the sftp:// stream wrapper asks for the file's size once, when the file is opened, and counts on from
# there. It does not ask the server for APPEND, and fseek() moves the place of the next fwrite(). All calls return the
# number of bytes written.
#
# Why it matters: PHP's logs are files that several processes hold open in mode "a". Over SFTP each line lands on
# another's, wholly or in part, and the file is shorter than what was written. file_put_contents() with FILE_APPEND
# opens the file anew for each line, and is right as long as no two write at once.
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
phpseclib3\Net\SFTP\Stream::register();

function show(string $what, string $path): void {
    $contents = json_encode(file_get_contents($path));
    unlink($path);
    echo "  $what: $contents\n";
}

$path = __DIR__ . '/log';
foreach (['local' => $path, 'SFTP' => "sftp://u:p@127.0.0.1:$argv[1]$path"] as $name => $place) {
    echo "$name\n";

    $one = fopen($place, 'a');
    $other = fopen($place, 'a');
    fwrite($one, "one: start\n");
    fwrite($other, "other: start\n");
    fwrite($one, "one: done\n");
    fclose($one);
    fclose($other);
    show('two open streams', $path);

    file_put_contents($path, "a line\n");
    $file = fopen($place, 'a');
    fseek($file, 0);
    fwrite($file, "new");
    fclose($file);
    show('fseek and fwrite', $path);

    file_put_contents($place, "a line\n", FILE_APPEND);
    file_put_contents($place, "another\n", FILE_APPEND);
    show('FILE_APPEND twice', $path);
}
PHP
venv/bin/python server.py 2>log.server &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
library=$(echo "$dir"/root/usr/lib/*-linux-gnu)
extensions=$(echo "$dir"/root/usr/lib/php/2*)
LD_LIBRARY_PATH=$library timeout 60 root/usr/bin/php8.2 -n -d extension_dir="$extensions" -d extension=ctype.so \
    run.php "$(cat port)" >actual

cat >expected <<'END'
local
  two open streams: "one: start\nother: start\none: done\n"
  fseek and fwrite: "a line\nnew"
  FILE_APPEND twice: "a line\nanother\n"
SFTP
  two open streams: "other: starone: done\n"
  fseek and fwrite: "newine\n"
  FILE_APPEND twice: "a line\nanother\n"
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
