"""Runs a program of somebody else's with a server to start: "@SERVER@" in its arguments is the command, and its environment has that
of the server."""

import os
import subprocess
import sys

from bed import Bed

with Bed() as bed:
    words = [part for word in sys.argv[1:] for part in ([bed.command, "mcp"] if word == "@SERVER@" else [word])]
    env = {**os.environ, **bed.env, "BED_COMMAND": bed.command, "BED_HOST": bed.hosts[0], "BED_FILES": str(bed.files)}
    sys.exit(subprocess.run(words, env=env, timeout=300).returncode)
