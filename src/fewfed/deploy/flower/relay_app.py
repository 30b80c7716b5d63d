"""The relay as Flower wants an app: an archive with a list of what is in it."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from pathlib import Path

_MODULE = "fewfed_relay"
_PROJECT = f"""\
[project]
name = "fewfed"
version = "1.0.0"
description = "Hands parcels to the daemon of a site of fewfed"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "fewfed"
[tool.flwr.app.components]
serverapp = "{_MODULE}:app"
clientapp = "{_MODULE}:app"
"""
_LIST = ".info/CONTENT"
_RAISED = re.compile(r"<class '[^']*'>:<'(.*)'>", re.DOTALL)
"""How Flower writes down what an app raised."""


def packed() -> tuple[bytes, str]:
    """The app, the same bytes every time, and their digest."""
    files = {
        "pyproject.toml": _PROJECT.encode(),
        f"{_MODULE}.py": Path(__file__).with_name("relay.py").read_bytes(),
    }
    listed = "\n".join(
        f"{name},{hashlib.sha256(content).hexdigest()},{8 * len(content)}" for name, content in files.items()
    )
    archived = io.BytesIO()
    with zipfile.ZipFile(archived, "w") as archive:
        for name, content in {**files, _LIST: listed.encode()}.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    app = archived.getvalue()
    return app, hashlib.sha256(app).hexdigest()


def told(reason: str) -> str:
    """What the relay raised, without the words that Flower puts around it."""
    found = _RAISED.fullmatch(reason)
    return found[1] if found else reason
