"""Whether the Flower that is installed is the one whose inner parts these modules use."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from importlib import metadata
from pathlib import Path

from fewfed.errors import ConfigError

VERSION = "1.41.0"
"""Parts are used that Flower does not promise to keep: the version is checked before anything is started."""


def require_flower() -> None:
    """Raise `ConfigError` unless Flower is there in the version that is needed."""
    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise ConfigError(
            f"a federation of real sites needs Flower {VERSION}, which is not installed: pip install 'fewfed[flower]'"
        ) from None
    if found != VERSION:
        raise ConfigError(
            f"Flower {found} is installed, and a federation of real sites needs {VERSION}: pip install 'fewfed[flower]'"
        )


def keep_to_itself(home: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let Flower neither report home nor look for updates, and write nothing outside a folder of ours.

    To be called before anything of Flower is imported, which reads this once.
    """
    environment["FLWR_TELEMETRY_ENABLED"] = "0"
    environment["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    environment["FLWR_HOME"] = str(home)
    environment.setdefault("FLWR_LOG_LEVEL", "ERROR")
