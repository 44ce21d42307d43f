"""``Ed25519Key``, where Paramiko has it."""

from .pkey import Ed25519Key as Ed25519Key
