#!/usr/bin/env bash
# Ruby's net-sftp: upload! of an IO that has been read from begins the remote file with zeros.
#
# Seen with: net-sftp 4.0.0 on net-ssh 7.0.1 (Debian 12's ruby-net-sftp and ruby3.1), asyncssh 2.24.1 as the server;
# Ruby's own IO for comparison.
#
# upload! sends each block to the offset that the IO is at, so what was read before the call leaves a gap of its length
# at the start of the file. Of a file that was opened on the server, gets reads 8192 bytes ahead and write goes on
# behind them: a line that is overwritten after a gets lands at the end. No call fails.
#
# Why it matters: looking at the first line or the magic number of an upload before passing it on is usual, and the copy
# has zeros in their place and the size of the whole. Call rewind before upload! if the whole is meant, or pass
# StringIO.new(io.read) for the rest; set file.pos = file.pos between gets and write.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" || true; wait; rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq ruby3.1 libruby3.1 libgmp10 libyaml-0-2 libffi8 ruby-net-sftp=1:4.0.0-1 ruby-net-ssh=1:7.0.1-1 \
    >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
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
cat >run.rb <<'RB'
require 'stringio'

# Without RubyGems, net-ssh asks for the ed25519 gem in vain and does without.
def gem(*) = raise(LoadError)

require 'net/sftp'

PATH = File.expand_path('file')
OPTIONS = { port: Integer(ARGV[0]), password: 'p', config: false, non_interactive: true, verify_host_key: :never,
            auth_methods: ['password'] }

def show(what)
  File.write(PATH, "one\ntwo\nend\n")
  yield
  puts "#{what}: #{File.binread(PATH).tr("\0", '.').inspect}"
end

def input
  io = StringIO.new("head\nbody\n")
  io.gets
  io
end

Net::SFTP.start('127.0.0.1', 'u', OPTIONS) do |sftp|
  show('IO.copy_stream, after a line') { IO.copy_stream(input, PATH) }
  show('Net::SFTP, after a line') { sftp.upload!(input, PATH) }
  show('Net::SFTP, after a line and a rewind') { sftp.upload!(input.tap(&:rewind), PATH) }
  show('File, gets and write') { File.open(PATH, 'r+') { |file| file.gets && file.write("TWO\n") } }
  show('Net::SFTP, gets and write') { sftp.file.open(PATH, 'r+') { |file| file.gets && file.write("TWO\n") } }
end
RB
venv/bin/python server.py 2>log &
server=$!
for _ in {1..300}; do [[ -e port ]] && break; sleep 0.1; done
library=$(echo "$dir"/root/usr/lib/*-linux-gnu)
export LD_LIBRARY_PATH=$library
paths=()
for folder in root/usr/lib/ruby/3.1.0 root/usr/lib/*/ruby/3.1.0 root/usr/lib/ruby/vendor_ruby \
    root/usr/share/rubygems-integration/all/gems/*/lib; do
    paths+=(-I "$folder")
done
timeout 60 root/usr/bin/ruby3.1 --disable-gems "${paths[@]}" run.rb "$(cat port)" >actual

cat >expected <<'END'
IO.copy_stream, after a line: "body\n"
Net::SFTP, after a line: ".....body\n"
Net::SFTP, after a line and a rewind: "head\nbody\n"
File, gets and write: "one\nTWO\nend\n"
Net::SFTP, gets and write: "one\ntwo\nend\nTWO\n"
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
