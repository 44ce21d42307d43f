"""parallel-ssh's constants."""

from __future__ import annotations

#: Attempts to connect.
DEFAULT_RETRIES = 3

#: Seconds between them.
RETRY_DELAY = 5
