"""``ECDSAKey``, where Paramiko has it."""

from .pkey import ECDSAKey as ECDSAKey
