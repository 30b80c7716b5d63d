"""A run folder: configuration, environment, split, one line of metrics a round, checkpoint, final model, result."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewfed import arrays
from fewfed.errors import RunError
from fewfed.tree import Tree
from fewfed.version import __version__

CONFIG, ENVIRONMENT, SPLIT = "config.json", "environment.json", "split.json"
METRICS, CHECKPOINT, MODEL, RESULT = "metrics.jsonl", "checkpoint.safetensors", "model.safetensors", "result.json"


class RunFolder:
    """The files of one run. Every file but the metrics is replaced atomically; those are appended line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], split: Mapping[str, Any]) -> RunFolder:
        """Start a run folder; an existing run is not overwritten."""
        if (path / CONFIG).exists():
            raise RunError(
                f"'{path}' already holds a run: continue it with 'fewfed resume {path}' or choose another --out"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create '{path}': {error.strerror or error}; choose another --out") from error
        folder = cls(path)
        folder._write_json(ENVIRONMENT, environment())
        folder._write_json(SPLIT, split)
        folder._write_json(CONFIG, {"fewfed": __version__, **config})
        return folder

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, dict[str, Any]]:
        """An existing run and its configuration."""
        if not (path / CONFIG).is_file():
            raise RunError(f"'{path}' is not a run folder: expected one with a {CONFIG}, as 'fewfed run' writes it")
        try:
            config = json.loads((path / CONFIG).read_text())
            version = config["fewfed"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"'{path / CONFIG}' is damaged: expected the JSON that 'fewfed run' wrote") from error
        if version != __version__:
            raise RunError(
                f"'{path}' was written by fewfed {version}, this is {__version__}: results could differ; "
                f"continue it with that version or start a new run"
            )
        return cls(path), config

    def checkpoint(self, server: Tree, round: int, states: Mapping[str, str]) -> None:
        """Write the server's tree after `round` rounds, and where the clients' states lie."""
        arrays.save(self.path / CHECKPOINT, server, {"round": round, "states": dict(states)})

    def restore(self) -> tuple[Tree | None, int, dict[str, str]]:
        """Server tree, finished rounds and client states of the last checkpoint; metrics of lost rounds are dropped."""
        if not (self.path / CHECKPOINT).is_file():
            server, done, states = None, 0, {}
        else:
            server, facts = arrays.load(self.path / CHECKPOINT)
            done, states = int(facts["round"]), dict(facts["states"])
        kept = [line for line in self._lines() if json.loads(line)["round"] <= done]
        arrays.write(self.path / METRICS, "".join(line + "\n" for line in kept).encode())
        return server, done, states

    def append(self, metrics: Mapping[str, Any]) -> None:
        try:
            with open(self.path / METRICS, "a") as file:
                file.write(json.dumps(metrics) + "\n")
        except OSError as error:
            raise RunError(f"cannot write '{self.path / METRICS}': {error.strerror or error}") from error

    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines()]

    def finish(self, model: Tree, result: Mapping[str, Any]) -> None:
        arrays.save(self.path / MODEL, model, {"fewfed": __version__})
        self._write_json(RESULT, result)

    def result(self) -> dict[str, Any] | None:
        """The summary of a finished run; None while it is not finished."""
        path = self.path / RESULT
        return json.loads(path.read_text()) if path.is_file() else None

    @property
    def clients(self) -> Path:
        return self.path / "clients"

    def _lines(self) -> list[str]:
        path = self.path / METRICS
        if not path.is_file():
            return []
        # A run killed while it wrote leaves at most one line without its end.
        text = path.read_text()
        return [line for line in text[: text.rfind("\n") + 1].splitlines() if line]

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        arrays.write(self.path / name, (json.dumps(content, indent=1) + "\n").encode())


def environment() -> dict[str, Any]:
    """What a reader needs to judge the numbers."""
    return {
        "fewfed": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
