"""Runs /bin/sh with its arguments and speaks with an Erlang port about it, in frames of a length of four bytes and a letter.

To it: d and standard input, e for its end. From it: o and standard output, r and standard error, x and the status.
"""

import os
import struct
import subprocess
import sys
import threading

LOCK = threading.Lock()


def tell(kind, data):
    with LOCK:
        sys.stdout.buffer.write(struct.pack(">I", len(data) + 1) + kind + data)
        sys.stdout.buffer.flush()


def pass_on(stream, kind):
    while data := os.read(stream.fileno(), 32768):
        tell(kind, data)


def feed(child):
    """Until the port is closed: then nobody waits for the command any more."""
    while len(head := sys.stdin.buffer.read(4)) == 4:
        frame = sys.stdin.buffer.read(struct.unpack(">I", head)[0])
        try:
            if frame[:1] == b"e":
                child.stdin.close()
            else:
                child.stdin.write(frame[1:])
                child.stdin.flush()
        except (OSError, ValueError):
            pass
    child.terminate()


def main():
    child = subprocess.Popen(
        ["/bin/sh", *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    threading.Thread(target=feed, args=(child,), daemon=True).start()
    readers = [
        threading.Thread(target=pass_on, args=(child.stdout, b"o")),
        threading.Thread(target=pass_on, args=(child.stderr, b"r")),
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    tell(b"x", struct.pack(">I", child.wait() & 255))
    os._exit(0)


main()
