"""Trackers by name, each imported where it is used."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from fewfed.errors import ConfigError, did_you_mean
from fewfed.tracking.tracker import Tracker

TRACKERS = {
    "mlflow": ("mlflow", "MLflow", "mlflow_runs"),
    "tensorboard": ("tensorboard", "TensorBoard", "event_files"),
    "wandb": ("wandb", "Weights & Biases", "wandb_runs"),
}
"""Of each: the package it needs, what people call it, the module here."""


def checked(names: Any) -> tuple[str, ...]:
    """The trackers that were asked for, each once, or a `ConfigError` before anything is run."""
    given = (names,) if isinstance(names, str) else names
    if not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"track = {names!r:.60}: expected names of trackers ({', '.join(TRACKERS)})", key="track")
    for name in given:
        if name not in TRACKERS:
            raise ConfigError(did_you_mean("tracker", name, TRACKERS), key="track", value=name)
        package, title, _ = TRACKERS[name]
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"{title} needs the package '{package}', which is not installed: run pip install 'fewfed[track]'",
                key="track",
            )
    return tuple(dict.fromkeys(given))


def tracker(name: str) -> Tracker:
    """A new tracker; the package behind it is loaded now."""
    made: Tracker = importlib.import_module(f"fewfed.tracking.{TRACKERS[name][2]}").Runs()
    return made
