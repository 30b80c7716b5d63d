"""Weights & Biases: files in the run folder, and nothing is sent unless WANDB_MODE says so; `wandb sync` sends them.

A run that is continued keeps its id. Offline, what an earlier process wrote and nobody has sent is removed, since it
may end in the middle of a round, and told again from the metrics in the run folder.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewfed.tracking.tracker import FOLDER, About

_TRIES = 20
_PAUSE = 0.1


class Runs:
    """Tells Weights & Biases of one run."""

    def __init__(self) -> None:
        self._run: Any = None

    def begin(self, about: About) -> tuple[str, int]:
        import wandb

        mode = os.environ.get("WANDB_MODE") or "offline"
        folder = about.run / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        name = about.known or uuid.uuid4().hex[:16]
        was_sent = mode == "offline" and _removed_unsent(folder / "wandb", name)
        self._run = wandb.init(
            dir=str(folder.absolute()),
            id=name,
            mode=mode,  # type: ignore[arg-type]
            project=os.environ.get("WANDB_PROJECT") or "fewfed",
            name=about.name,
            group=about.group or None,
            config=dict(about.settings),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True, init_timeout=30
            ),
        )
        if mode == "online":
            return name, int(self._run.starting_step) - 1
        return name, about.sent if was_sent else 0

    def round(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=number)

    def end(self, summary: Mapping[str, float] | None) -> None:
        if summary is not None:
            self._run.summary.update({f"result/{name}": value for name, value in summary.items()})
        self._run.finish(exit_code=0 if summary is not None else 1)


def _removed_unsent(folder: Path, name: str) -> bool:
    """Remove what was written of a run and not sent; whether some of it was sent."""
    was_sent = False
    for place in folder.glob(f"offline-run-*-{name}"):
        if any(place.glob("*.synced")):
            was_sent = True
        else:
            _remove(place)
    return was_sent


def _remove(folder: Path) -> None:
    """Remove a folder in which a process that is about to end may still write."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_PAUSE)
    raise OSError(f"'{folder}' cannot be removed")
