#!/usr/bin/env bash
# SSHKit (Capistrano): execute and capture raise for a status other than 0, and say nothing of a command that was killed.
#
# Seen with: sshkit 1.21.2, net-ssh 7.0.1 (Debian 12), Ruby 3.1; asyncssh 2.24.1 and bash as the server.
#
# A command that a signal ends has no exit status; the server sends exit-signal in its place. SSHKit's handler for that is
# commented out, and "raise_on_non_zero_exit" is looked at only when a status comes. execute returns false, which is the
# value it has with raise_on_non_zero_exit: false, and capture returns what had come so far, as for a success.
#
# Why it matters: a deployment rests on the exception. A "bundle install", an asset build or a dump that the kernel kills
# for want of memory counts as done, and the next steps publish what is there. Test the value of execute, or end each
# command with "; exit $?", which makes the shell wait for it and turns a signal into a status of 128 and more.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq ruby3.1 libruby3.1 libgmp10 libyaml-0-2 libffi8 ruby-net-ssh=1:7.0.1-1 ruby-net-scp=4.0.0-1 \
    ruby-sshkit=1.21.2-1 >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
for package in *.deb; do
    dpkg -x "$package" root
done
python3 -m venv venv
venv/bin/pip install -q asyncssh==2.24.1
lib=$(dirname "$(find "$dir/root" -name 'libruby-3.1.so.3.1')")
RUBYLIB=$(find "$dir/root" -type d \( -path '*/ruby/3.1.0' -o -path '*/net-*/lib' -o -path '*/vendor_ruby' \
    -o -path '*-gnu/ruby/3.1.0' \) | paste -sd:)
export RUBYLIB

cat >run.rb <<'RB'
# Without RubyGems, net-ssh asks for the ed25519 gem in vain and does without.
def gem(*) = raise(LoadError)

require 'sshkit'

SSHKit.config.output = SSHKit::Formatter::BlackHole.new($stderr)
host = SSHKit::Host.new(hostname: '127.0.0.1', port: ARGV[0].to_i, user: 'u', password: 'p')
host.ssh_options = { config: false, verify_host_key: :never, auth_methods: ['password'] }

def show(name)
  puts "#{name}: #{yield.inspect}"
rescue SSHKit::Command::Failed => e
  puts "#{name}: #{e.class}, #{e.message.lines.first.strip}"
rescue StandardError => e
  puts "#{name}: #{e.class}"
end

SSHKit::Backend::Netssh.new(host) do
  show('execute, status 0') { execute 'exit 0;' }
  show('execute, status 3') { execute 'exit 3;' }
  show('execute, killed') { execute 'kill -9 $$;' }
  show('capture, status 3') { capture 'echo first; exit 3' }
  show('capture, killed') { capture 'echo first; kill -9 $$; echo second' }
  show('execute, killed, with exit $?') { execute "bash -c 'kill -9 $$'; exit $?" }
end.run
RB
cat >server.py <<'PY'
import asyncio
import os
import sys

import asyncssh


class Session(asyncssh.SSHServerSession):
    def connection_made(self, channel):
        self.channel = channel

    def exec_requested(self, command):
        self.command = command
        return True

    def session_started(self):
        self.task = asyncio.create_task(self.run())

    async def run(self):
        shell = await asyncio.create_subprocess_exec("bash", "-c", self.command, stdin=asyncio.subprocess.DEVNULL,
                                                     stdout=asyncio.subprocess.PIPE)
        output, _ = await shell.communicate()
        self.channel.write(output.decode())
        if shell.returncode < 0:
            self.channel.exit_with_signal("KILL")
        else:
            self.channel.exit(shell.returncode)


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True

    def session_requested(self):
        return Session()


async def main():
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server,
                                   server_host_keys=[asyncssh.generate_private_key("ecdsa-sha2-nistp256")])
    program = await asyncio.create_subprocess_exec(*sys.argv[2:], str(server.get_port()),
                                                   env={**os.environ, "LD_LIBRARY_PATH": sys.argv[1]})
    sys.exit(await program.wait())


asyncio.run(main())
PY
timeout 60 venv/bin/python server.py "$lib" root/usr/bin/ruby3.1 --disable-gems -W0 run.rb >actual 2>errors ||
    { cat errors >&2; exit 1; }

cat >expected <<'END'
execute, status 0: true
execute, status 3: SSHKit::Command::Failed, exit 3; exit status: 3
execute, killed: false
capture, status 3: SSHKit::Command::Failed, echo first; exit 3 exit status: 3
capture, killed: "first"
execute, killed, with exit $?: SSHKit::Command::Failed, bash -c 'kill -9 $$'; exit $? exit status: 137
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
