#!/usr/bin/env bash
# lftp: mirror brings an older file down, and mirror -R does not take one up, with the same options and status 0.
#
# Seen with: lftp 4.9.2 and OpenSSH 9.2p1's sftp-server (Debian 12); rsync 3.5.0 for comparison.
#
# A file of the same size and another time is transferred by "mirror" whichever of the two is older; the manual says
# that "by default older files are transferred and replace newer ones". "mirror -R" leaves it as it is if the source is
# the older one, and says nothing. A file whose size differs goes in both directions, unless --ignore-size is given. The
# option --upload-older makes uploads like downloads.
#
# Why it matters: a release that is taken back, or a file from a backup or an archive, has an older time and often the
# size of the file it replaces (a version number, a digest, a flag). The target keeps the newer text, and a mirror there
# and back is not what was sent. Give --upload-older to every mirror -R.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq lftp=4.9.2-2+b1 openssh-sftp-server rsync >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
for package in *.deb; do
    dpkg -x "$package" root
done
mkdir home
export HOME=$dir/home LC_ALL=C
cat >connect <<END
#!/bin/sh
exec "$dir/root/usr/lib/openssh/sftp-server"
END
chmod +x connect

mirror() { # OPTIONS...: mirrors source to target
    timeout 30 root/usr/bin/lftp --norc -c "set sftp:connect-program $dir/connect; open sftp://u:@localhost; mirror $*"
}
copy() { # HOW, in words; and the command
    local status=0
    mkdir source target
    echo "version 1" >source/same-size
    echo "version 2" >target/same-size
    echo "v1" >source/other-size
    echo "version 2" >target/other-size
    touch -d 2026-01-01T00:00:00Z source/*
    touch -d 2026-02-01T00:00:00Z target/*
    "${@:2}" >output 2>&1 || status=$?
    echo "$1: status $status, $(wc -l <output) lines, $(<target/same-size), $(<target/other-size)"
    rm -r source target
}
{
    copy "rsync -a" root/usr/bin/rsync -a source/ target/
    copy "mirror" mirror "$dir/source" "$dir/target"
    copy "mirror -R" mirror -R "$dir/source" "$dir/target"
    copy "mirror -R --ignore-size" mirror -R --ignore-size "$dir/source" "$dir/target"
    copy "mirror -R --upload-older" mirror -R --upload-older "$dir/source" "$dir/target"
} >actual

cat >expected <<'END'
rsync -a: status 0, 0 lines, version 1, v1
mirror: status 0, 0 lines, version 1, v1
mirror -R: status 0, 0 lines, version 2, v1
mirror -R --ignore-size: status 0, 0 lines, version 2, version 2
mirror -R --upload-older: status 0, 0 lines, version 1, v1
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
