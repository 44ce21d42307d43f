"""Copies files both ways with the package for Python, by streams, whole files and trees.

client.py SSH_CONFIG BIG SMALL FAR BACK
"""

import os
import sys
from pathlib import Path

import trunkline

config, big, small, far, back = sys.argv[1:]
os.mkdir(back)
with trunkline.connect("nas", config=config, daemon=True) as nas, nas.sftp() as sftp:
    # As a stream.
    with open(big, "rb") as source, sftp.open(f"{far}/.big", "wb") as target:
        while part := source.read(1 << 20):
            target.write(part)
    sftp.rename(f"{far}/.big", f"{far}/big")
    with sftp.open(f"{far}/big", "rb") as source, open(f"{back}/big", "wb") as target:
        while part := source.read(1 << 20):
            target.write(part)
    # File by file.
    for path in sorted(Path(small).rglob("*")):
        name = f"{far}/small/{path.relative_to(small)}"
        if path.is_dir():
            sftp.mkdir(name, parents=True)
        else:
            sftp.write_bytes(f"{name}.new", path.read_bytes())
            sftp.rename(f"{name}.new", name)
    for top, directories, files in sftp.walk(f"{far}/small"):
        local = Path(back) / "small" / os.path.relpath(top, f"{far}/small")
        local.mkdir(parents=True, exist_ok=True)
        for name in files:
            (local / name).write_bytes(sftp.read_bytes(f"{top}/{name}"))
    # Whole files.
    sftp.put(big, f"{far}/whole")
    sftp.get(f"{far}/whole", f"{back}/whole")
