#!/usr/bin/env bash
# Ansible's known_hosts module: adding a host removes the wildcard line that covers it, and with that other hosts' keys.
#
# Seen with: ansible-core 2.19.14's ansible.builtin.known_hosts, OpenSSH 9.2p1's ssh-keygen.
#
# To find what the new key replaces, the module takes the first line that "ssh-keygen -F NAME" reports for the key's
# type. That may be a line with a pattern that matches, or with several names. It goes as a whole, and the new line has
# just the name of the task. `ssh-keygen -R NAME` removes a whole pattern in the same way.
#
# Why it matters: the task speaks of one host, and says "changed" as it should. All other hosts under the pattern, and
# the addresses on the line, are unknown from then on, and the next play stops at them, or takes whatever key it meets.
# Keep lines with patterns in a file of their own (GlobalKnownHostsFile, or a second name in UserKnownHostsFile).
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q ansible-core==2.19.14
mkdir home
for name in all web new; do
    ssh-keygen -q -t ed25519 -N '' -C '' -f "$name"
done

fresh() {
    echo "*.example $(cut -d' ' -f1,2 all.pub)"
    echo "web.test,192.0.2.1 $(cut -d' ' -f1,2 web.pub)"
} >known_hosts
known_hosts() {
    HOME=$dir/home ANSIBLE_LOCALHOST_WARNING=false ANSIBLE_INVENTORY_UNPARSED_WARNING=false \
        venv/bin/ansible localhost -m ansible.builtin.known_hosts -a "path=$dir/known_hosts $1" | grep -o CHANGED
}
show() {
    local host
    for host in db.example new.example web.test 192.0.2.1; do
        echo "  $host: $(ssh-keygen -F "$host" -f known_hosts 2>&1 | grep -c ssh-ed25519) key"
    done
}

{
    fresh
    echo "before"
    show
    known_hosts "name=new.example key='new.example $(cut -d' ' -f1,2 new.pub)'"
    echo "present: new.example"
    show
    fresh
    known_hosts "name=web.test key='web.test $(cut -d' ' -f1,2 new.pub)'"
    echo "present: web.test"
    show
    fresh
    ssh-keygen -R new.example -f known_hosts >ssh-keygen.log 2>&1 || true
    echo "ssh-keygen -R new.example"
    show
} >actual

cat >expected <<'END'
before
  db.example: 1 key
  new.example: 1 key
  web.test: 1 key
  192.0.2.1: 1 key
CHANGED
present: new.example
  db.example: 0 key
  new.example: 1 key
  web.test: 1 key
  192.0.2.1: 1 key
CHANGED
present: web.test
  db.example: 1 key
  new.example: 1 key
  web.test: 1 key
  192.0.2.1: 0 key
ssh-keygen -R new.example
  db.example: 0 key
  new.example: 0 key
  web.test: 1 key
  192.0.2.1: 1 key
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
