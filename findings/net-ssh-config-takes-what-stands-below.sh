#!/usr/bin/env bash
# net-ssh (Ruby): what stands above the first Host counts least, "ProxyJump none" jumps through a host "none", 2m is 2.
#
# Seen with: net-ssh 7.0.1 (Debian 12), Ruby 3.1; OpenSSH 9.2p1 (ssh -G) for comparison.
#
# In ssh_config the first value of a keyword counts, wherever it stands. Net::SSH::Config keeps to that among Host blocks.
# Of two lines above the first Host the second counts, and a Host block below beats both. "none" is known to it for
# ProxyCommand and not for ProxyJump. Times with a unit are not read: ServerAliveInterval loses the unit, and ConnectTimeout
# stays a text. A user whose name is digits becomes an Integer, and the names of several SendEnv lines do not add up.
#
# Why it matters: Capistrano, Vagrant, Chef and Bolt take host, user, port and proxy from here. One file then means another
# user or port than for ssh, a host that is excepted from the bastion by "ProxyJump none" cannot be reached, and a
# keepalive of two minutes is one of two seconds. Put general values into "Host *" at the end, and give seconds.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq ruby3.1 libruby3.1 libgmp10 libyaml-0-2 libffi8 ruby-net-ssh=1:7.0.1-1 >apt.log 2>&1 ||
    { cat apt.log >&2; exit 1; }
for package in *.deb; do
    dpkg -x "$package" root
done
lib=$(dirname "$(find "$dir/root" -name 'libruby-3.1.so.3.1')")
RUBYLIB=$(find "$dir/root" -type d \( -path '*/ruby/3.1.0' -o -path '*/net-ssh-7.0.1/lib' -o -path '*-gnu/ruby/3.1.0' \) |
    paste -sd:)
export RUBYLIB LD_LIBRARY_PATH=$lib

cat >config <<'END'
User first
User second
Port 2201
ServerAliveInterval 2m
ConnectTimeout 1m
SendEnv LANG
Host web
    User third
    Port 2202
    ProxyJump none
Host db
    ProxyCommand none
Host web db
    SendEnv EDITOR
Host *
    ProxyJump bastion
END
cat >names <<'END'
Host ci
    User 1000
END
cat >run.rb <<'RB'
require 'net/ssh/config'

file, *hosts = ARGV
hosts.each do |host|
  options = Net::SSH::Config.for(host, [file])
  proxy = options[:proxy] ? "jump #{options[:proxy].jump_proxies}" : 'no proxy'
  puts "#{host}, net-ssh: user #{options[:user].inspect}, port #{options[:port].inspect}, #{proxy}, " \
       "keepalive #{options[:keepalive_interval].inspect}, timeout #{options[:timeout].inspect}, " \
       "sends #{(options[:send_env] || []).map(&:source).join(' ')}"
end
RB

value() { # KEYWORD: its value in the output of ssh -G
    sed -n "s/^$1 //p" output | paste -sd' '
}
show() { # FILE, HOSTS...
    local host proxy
    for host in "${@:2}"; do
        ssh -TG -F "$1" "$host" >output
        proxy=$(value proxyjump)
        echo "$host, ssh: user $(value user), port $(value port), ${proxy:+jump }${proxy:-no proxy}," \
            "keepalive $(value serveraliveinterval), timeout $(value connecttimeout), sends $(value sendenv)"
    done
    "$dir/root/usr/bin/ruby3.1" --disable-gems run.rb "$@"
}
{
    show config web db other
    show names ci
} | sed 's/ *$//' >actual

cat >expected <<'END'
web, ssh: user first, port 2201, no proxy, keepalive 120, timeout 60, sends LANG EDITOR
db, ssh: user first, port 2201, no proxy, keepalive 120, timeout 60, sends LANG EDITOR
other, ssh: user first, port 2201, jump bastion, keepalive 120, timeout 60, sends LANG
web, net-ssh: user "third", port 2202, jump none, keepalive 2, timeout "1m", sends ^EDITOR$
db, net-ssh: user "second", port 2201, no proxy, keepalive 2, timeout "1m", sends ^EDITOR$
other, net-ssh: user "second", port 2201, jump bastion, keepalive 2, timeout "1m", sends ^LANG$
ci, ssh: user 1000, port 22, no proxy, keepalive 0, timeout none, sends
ci, net-ssh: user 1000, port nil, no proxy, keepalive nil, timeout nil, sends
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
