"""Faces of other SSH libraries, for programs written for them: ``paramiko`` and ``pssh``."""
