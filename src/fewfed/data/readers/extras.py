"""Optional packages, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from fewfed.errors import DataError


def need(module: str, extra: str, purpose: str) -> Any:
    """The module, or a `DataError` naming the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(
            f"{purpose} needs the package '{package}', which is not installed: run pip install 'fewfed[{extra}]'"
        ) from error
