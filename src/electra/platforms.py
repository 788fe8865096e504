"""Where this software runs: one clear line instead of a missing module deep inside."""

from __future__ import annotations

import sys

from electra.errors import ConfigError


def require_supported(platform: str = sys.platform) -> None:
    """Refuse a platform that lacks what is needed everywhere."""
    if platform in ("win32", "cygwin"):
        raise ConfigError(
            "Windows", "is not supported: run folders are locked with fcntl", fix="use Linux, macOS or WSL 2"
        )
