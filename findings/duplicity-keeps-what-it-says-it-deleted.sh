#!/usr/bin/env bash
# duplicity: backups that it cannot remove are "deleted" with status 0; over scp://, a listing that fails is an empty one.
#
# Seen with: duplicity 3.2.1 on Paramiko 5.1.0; OpenSSH 9.2p1's sshd.
#
# remove-all-but-n-full --force says "Deleting complete backup chain" and ends with 0 where the server refuses each of the
# deletions. Over sftp:// there are lines that an attempt failed. Over scp://, which the same backend serves with "rm" and
# "ls -1", the exit status and the stderr of these commands are not looked at, and there is no word of it. When ls fails
# there, the store has no backups: the local archive is cleared as "not authoritative", and the run is a full backup.
#
# Why it matters: the job that keeps the store small does nothing, month after month, until the disk is full. One listing
# that fails (a mount that is gone, an I/O error) costs the local archive and a full backup, with status 0. Use sftp://,
# look for "failed" in the output, and count the files in the store after a removal.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q paramiko==5.1.0 fasteners==0.20
# Without the clients of all the clouds that it knows.
venv/bin/pip install -q --no-deps duplicity==3.2.1
sshd=$(PATH=$PATH:/usr/sbin command -v sshd)
ssh-keygen -q -t ed25519 -N '' -f host_key
ssh-keygen -q -t ed25519 -N '' -f key
port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
# The commands of a session come from here: ls, rm, mkdir and scp, until two of them are replaced.
mkdir bin data
for name in ls rm mkdir scp; do
    ln -s "$(command -v "$name")" "bin/$name"
done
cat >sshd_config <<END
Port $port
ListenAddress 127.0.0.1
HostKey $dir/host_key
AuthorizedKeysFile $dir/key.pub
StrictModes no
UsePAM no
PidFile $dir/sshd.pid
SetEnv PATH=$dir/bin
Subsystem sftp internal-sftp -P remove
END
"$sshd" -f sshd_config -E sshd.log
trap 'kill "$(cat sshd.pid)" 2>/dev/null || true; rm -rf "$dir"' EXIT
for _ in {1..100}; do grep -qs listening sshd.log && break; sleep 0.1; done
echo "[127.0.0.1]:$port $(cut -d' ' -f1,2 host_key.pub)" >known_hosts
echo text >data/file

run() { # WHAT, in words; SCHEME; ACTION and its arguments but the URL
    local status=0
    BACKEND_PASSWORD=none HOME=$dir timeout 60 venv/bin/duplicity "${@:3}" "$2://$(id -un)@127.0.0.1:$port/$dir/$2" \
        --no-encryption --archive-dir "$dir/archive-$2" --num-retries 1 \
        "--ssh-options=-oUserKnownHostsFile=$dir/known_hosts -oIdentityFile=$dir/key" "${force[@]}" >output 2>&1 || status=$?
    echo "$2, $1: status $status, full backups there: $(find "$2" -name '*-full.*.manifest' | wc -l)"
    echo "    $(grep -c 'failed' output || true) lines with \"failed\""
    sed -n 's/^\(Deleting complete backup chain\|No signatures found\|Deleting local\).*/    \1/p' output | uniq
}
refuse() { # COMMAND: replaces it
    rm "bin/$1"
    printf '#!/bin/sh\necho "%s: Input/output error" >&2\nexit 1\n' "$1" >"bin/$1"
    chmod +x "bin/$1"
}
{
    for scheme in sftp scp; do
        force=()
        mkdir "$scheme"
        run "first backup" "$scheme" full data
        sleep 1.1
        run "second backup" "$scheme" full data
    done
    refuse rm
    for scheme in sftp scp; do
        force=(--force)
        run "remove all but the last" "$scheme" remove-all-but-n-full 1
    done
    refuse ls
    force=()
    sleep 1.1
    run "incremental backup, ls fails" scp backup data
} >actual

cat >expected <<'END'
sftp, first backup: status 0, full backups there: 1
    0 lines with "failed"
sftp, second backup: status 0, full backups there: 2
    0 lines with "failed"
scp, first backup: status 0, full backups there: 1
    0 lines with "failed"
scp, second backup: status 0, full backups there: 2
    0 lines with "failed"
sftp, remove all but the last: status 0, full backups there: 2
    4 lines with "failed"
    Deleting complete backup chain
scp, remove all but the last: status 0, full backups there: 2
    0 lines with "failed"
    Deleting complete backup chain
scp, incremental backup, ls fails: status 0, full backups there: 3
    0 lines with "failed"
    Deleting local
    No signatures found
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
