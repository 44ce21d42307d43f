#!/usr/bin/env bash
# Ansible's ssh_config module: adding one host drops lines of the other hosts, and can leave a file that ssh refuses.
#
# Seen with: community.general 11.4.2 (PyPI ansible 12.3.0), ansible-core 2.19.14, Paramiko 5.1.0; OpenSSH's ssh -G.
#
# The module parses the whole file and writes it anew. Of a keyword that comes twice it keeps the first line, but for
# IdentityFile and the two Forwards: SendEnv, CertificateFile and DynamicForward lose the others. Match becomes a
# keyword of the Host above, so keywords that both have are lost from the Match block, and those that only it has now
# follow the line of the Match. A line is split at its first "=", so that "SetEnv A=1" is written as "setenv a 1", which
# ssh takes for an error.
#
# Why it matters: the play says "changed" and names the new host only. One SetEnv anywhere in the file, and no ssh, scp,
# git or Ansible of that user connects to any host any more. Use blockinfile, or give the module a file of its own that
# the user's file includes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q ansible-core==2.19.14 paramiko==5.1.0
venv/bin/pip download -q --no-deps ansible==12.3.0
venv/bin/python - <<'PY'
import glob
import zipfile

with zipfile.ZipFile(glob.glob("*.whl")[0]) as package:
    package.extractall(".", [name for name in package.namelist()
                             if name.startswith("ansible_collections/community/general/")])
PY
mkdir home

cat >config <<'END'
Host web
    User deploy
    SendEnv LANG
    SendEnv DEPLOY_*
    CertificateFile /keys/one
    CertificateFile /keys/two

Match host db.example
    User postgres
    Port 5422
END
show() {
    for host in web db.example; do
        echo "  $host:" "$(ssh -T -G -F config "$host" 2>&1 |
            tr -d '\r' | grep -E '^(user|port|sendenv|certificatefile) |Invalid|bad' | paste -sd, | sed 's/,/, /g')"
    done
}
add() {
    HOME=$dir/home ANSIBLE_COLLECTIONS_PATH=$dir ANSIBLE_LOCALHOST_WARNING=false ANSIBLE_INVENTORY_UNPARSED_WARNING=false \
        venv/bin/ansible localhost -m community.general.ssh_config \
        -a "ssh_config_file=$dir/config host=$1 hostname=$1.example" | grep -oE 'CHANGED|"hosts_changed.*[^,]'
}

{
    echo "before"
    show
    add new
    show
    printf '\nHost env\n    SetEnv A=1\n' >>config
    echo "with SetEnv"
    show
    add newer
    show
} | sed "s/user $(id -un)\b/user (default)/" >actual

cat >expected <<'END'
before
  web: user deploy, port 22, certificatefile /keys/one, certificatefile /keys/two, sendenv LANG, sendenv DEPLOY_*
  db.example: user postgres, port 5422
CHANGED
"hosts_changed": []
  web: user deploy, port 22, certificatefile /keys/one, sendenv LANG
  db.example: user (default), port 5422
with SetEnv
  web: user deploy, port 22, certificatefile /keys/one, sendenv LANG
  db.example: user (default), port 5422
CHANGED
"hosts_changed": []
  web: config line 12: Invalid SetEnv., config: terminating,  1 bad configuration options
  db.example: config line 12: Invalid SetEnv., config: terminating,  1 bad configuration options
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
