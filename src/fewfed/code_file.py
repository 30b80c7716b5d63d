"""Python files that a user names: the code in them is run."""

from __future__ import annotations

import importlib.util
import os
import sys
import zlib
from pathlib import Path
from types import ModuleType

from fewfed.errors import ConfigError, told


def run_file(path: str, kind: str, expected: str) -> ModuleType:
    """The module that a file makes. `kind` is what the user takes it for, and `expected` what should be in it."""
    file = Path(path)
    if not _is_file(file):
        raise ConfigError(f"there is no {kind} file '{path}': expected {expected}")
    # A name of its own for each file: two may be called the same, in different folders.
    name = f"fewfed_user_{kind}_{file.stem}_{zlib.crc32(os.fsencode(file.absolute())):08x}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered by name, as the import system does: dataclasses look their module up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Also `sys.exit()`, which a script may end with.
        raise ConfigError(f"{kind} file '{path}' cannot be loaded: {told(error)}") from error
    return module


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except (OSError, ValueError):  # A name that no file can have.
        return False
