#!/usr/bin/env bash
# scp cuts an upload short, and ends with 0, when the answers to its WRITEs come in another order.
#
# Seen with: OpenSSH 9.2p1 (Debian 12), whose scp speaks SFTP; and, as a real server whose answers come so, Green End's
# gesftpserver 2: 7 of 15 uploads of 3 MiB over loopback were cut, to sizes between 128 KiB and 2.5 MiB.
#
# The SFTP draft has answers come in any order, and servers that work in several threads use that. scp writes a file in
# its place, and sets its size at the end: to where the answers were contiguous, not to what was confirmed. After the
# first answer that comes early that no longer moves. sftp's put opens the file with TRUNC, sets no size, and is right.
#
# Why it matters: the exit status says that all is well. A client that gets answers in any order has to count what was
# confirmed, and to look at the file's size before it says "copied"; a server that answers in any order loses scp's files.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

cat >server.py <<'PY'
#!/usr/bin/env python3
"""SFTP 3 on stdin and stdout, as far as an upload needs it. Behind the first WRITE, the answers to two at a time leave in the
other order."""
import os, struct, sys

def read(n): return sys.stdin.buffer.read(n)
def text(data): return struct.pack(">I", len(data)) + data
def send(kind, body):
    sys.stdout.buffer.write(text(bytes([kind]) + body))
    sys.stdout.buffer.flush()

held, files, written = [], {}, 0
while head := read(4):
    packet = read(struct.unpack(">I", head)[0])
    kind, rest = packet[0], packet[1:]
    if kind == 1:
        send(2, struct.pack(">I", 3))
        continue
    number, rest = rest[:4], rest[4:]
    length = struct.unpack(">I", rest[:4])[0]
    name, rest = rest[4 : 4 + length], rest[4 + length :]
    status = lambda code: send(101, number + struct.pack(">I", code) + text(b"") * 2)
    if kind == 6:
        offset, length = struct.unpack(">QI", rest[:12])
        os.pwrite(files[name], rest[12 : 12 + length], offset)
        held.append(number)
        written += 1
        if written == 1 or len(held) == 2:
            for one in reversed(held):
                send(101, one + struct.pack(">I", 0) + text(b"") * 2)
            held.clear()
        continue
    if kind == 16:
        send(104, number + struct.pack(">I", 1) + text(os.path.realpath(name)) + text(b"") + struct.pack(">I", 0))
    elif kind == 3:
        flags = struct.unpack(">I", rest[:4])[0]
        files[b"h"] = os.open(name, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if flags & 16 else 0), 0o644)
        send(102, number + text(b"h"))
    elif kind == 10:
        if struct.unpack(">I", rest[:4])[0] & 1:
            os.ftruncate(files[name], struct.unpack(">Q", rest[4:12])[0])
        status(0)
    elif kind == 4:
        os.close(files.pop(name))
        status(0)
    else:
        status(2)
PY
chmod +x server.py
# 11 WRITEs of 32 KiB.
head -c 360448 /dev/urandom >file

upload() { # PROGRAM...: how it ended, and what is there
    local status=0
    "$@" >/dev/null 2>&1 || status=$?
    echo "${1##*/}: exit status $status, $(stat -c %s copy) of $(stat -c %s file) bytes"
    rm -f copy
}
{
    upload scp -q -D "$dir/server.py" file "host:$dir/copy"
    echo "put file $dir/copy" >batch
    upload sftp -q -b batch -D "$dir/server.py"
} >actual

cat >expected <<'END'
scp: exit status 0, 32768 of 360448 bytes
sftp: exit status 0, 360448 of 360448 bytes
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
