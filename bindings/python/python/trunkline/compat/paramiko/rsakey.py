"""``RSAKey``, where Paramiko has it."""

from .pkey import RSAKey as RSAKey
