"""How a federation is doing, read from the coordinator's run folder by somebody who only looks."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import RunError
from fewfed.runs.folder import CONFIG, METRICS, RunFolder

STATUS = "status.json"
"""The file in a coordinator's run folder that says how its federation is doing."""
FINISHED = "finished"
"""The state of a federation whose run is over, and whose sites have been given the model."""
_MOST_BYTES = 1 << 26


def read_status(path: Path) -> dict[str, Any]:
    """What the coordinator last wrote, with the accuracy of the last round that was scored."""
    folder, found = OwnFolder(path), last_written(path)
    if folder.has(CONFIG) and folder.has(METRICS):
        records = [record for record in RunFolder(path).metrics() if "accuracy" in record]
        found["accuracy"] = records[-1]["accuracy"] if records else None
    return found


def last_written(path: Path) -> dict[str, Any]:
    """What the coordinator last wrote, and how many seconds ago."""
    folder = OwnFolder(path)
    if not path.is_dir() or not folder.has(STATUS):
        raise RunError(f"'{path}' holds no run of a federation: expected the folder of 'fewfed serve --out'")
    try:
        found: dict[str, Any] = json.loads(folder.read(STATUS, _MOST_BYTES))
        found["age"] = max(0.0, time.time() - float(found["written"]))
        if not isinstance(found["state"], str) or not all(type(found[name]) is int for name in ("round", "rounds")):
            raise ValueError("how far it is is not said")
        for site in found["sites"].values():
            _check_site(site)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"'{path / STATUS}' is damaged: expected what 'fewfed serve' wrote") from error
    return found


def _check_site(site: Mapping[str, Any]) -> None:
    """Raise where what is said of a site is not what a coordinator writes."""
    if not {"present", "joined", "declined", "rows"} <= site.keys():
        raise ValueError("something is missing")
    if not all(type(site[name]) is int for name in ("sent_bytes", "received_bytes")):
        raise ValueError("bytes are none")
    if site["accuracy"] is not None and not isinstance(site["accuracy"], (int, float)):
        raise ValueError("an accuracy is none")


def remarks_on(site: Mapping[str, Any]) -> str:
    """What is to be said of one site beside its numbers."""
    remarks = (
        ("quarantined", site.get("quarantined")),
        ("withdrawn", site.get("withdrawn")),
        ("not joined", not site["joined"]),
        (str(site["declined"]), site["declined"]),
        (f"no scores: {site.get('unscored')}", site.get("unscored")),
        (str(site.get("last_strike", "")), site.get("last_strike")),
    )
    return "; ".join(text for text, holds in remarks if holds)
