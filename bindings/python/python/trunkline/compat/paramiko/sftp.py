"""SFTP's constants (draft-ietf-secsh-filexfer-02, section 7), by Paramiko's names."""

from __future__ import annotations

(
    SFTP_OK,
    SFTP_EOF,
    SFTP_NO_SUCH_FILE,
    SFTP_PERMISSION_DENIED,
    SFTP_FAILURE,
    SFTP_BAD_MESSAGE,
    SFTP_NO_CONNECTION,
    SFTP_CONNECTION_LOST,
    SFTP_OP_UNSUPPORTED,
) = range(9)


class SFTPError(Exception):
    """SFTP was not understood."""
