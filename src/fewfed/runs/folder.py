"""A run folder: configuration, environment, split, one line of metrics a round, checkpoint, final model, result."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fewfed.engine import storage
from fewfed.errors import RunError
from fewfed.tree import Tree
from fewfed.version import __version__

CONFIG, ENVIRONMENT, SPLIT = "config.json", "environment.json", "split.json"
METRICS, CHECKPOINT, MODEL, RESULT = "metrics.jsonl", "checkpoint.safetensors", "model.safetensors", "result.json"
CLIENTS = "clients"
CHOICES = "choices.json"

_RELEASE_SECONDS = 3.0
"""How long a process that was just killed may take to let go of its folder."""


class Checkpoint(NamedTuple):
    """What a run was when it was last written down."""

    server: Tree | None
    """Nothing before the first checkpoint."""
    done: int
    """Finished rounds."""
    states: dict[str, str]
    """The file of each client's state."""
    held: dict[str, Any]
    """What clients hold of the broadcast."""


class RunFolder:
    """The files of one run. Every file but the metrics is replaced atomically; those are appended line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], split: Mapping[str, Any]) -> RunFolder:
        """Start a run folder; an existing run is not overwritten."""
        refuse_existing(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create '{path}': {error.strerror or error}; choose another --out") from error
        folder = cls(path)
        folder._write_json(ENVIRONMENT, environment())
        folder._write_json(SPLIT, split)
        # Last: a folder with a configuration is a run that can be continued.
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

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other process from writing into this run."""
        try:
            import fcntl
        except ImportError:  # No such locks on this system: nothing is kept out.
            yield
            return
        # A record lock, unlike a lock on the open file, stays with this process and is not inherited by its workers.
        with open(self.path / CONFIG, "r+b") as file:
            deadline = time.monotonic() + _RELEASE_SECONDS
            while True:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except (BlockingIOError, PermissionError) as error:
                    if time.monotonic() > deadline:
                        raise RunError(
                            f"another process is running '{self.path}': wait for it or stop it first"
                        ) from error
                    time.sleep(0.05)
            yield

    def checkpoint(self, server: Tree, round: int, states: Mapping[str, str], held: Mapping[str, Any]) -> None:
        """Write the server's tree after `round` rounds, where the clients' states lie, and what clients hold."""
        try:
            with open(self.path / METRICS, "rb+") as file:
                os.fsync(file.fileno())  # A checkpoint must not outlive the metrics of its rounds.
        except OSError as error:
            raise RunError(f"cannot write '{self.path / METRICS}': {error.strerror or error}") from error
        storage.save(self.path / CHECKPOINT, server, {"round": round, "states": dict(states), "held": dict(held)})

    def restore(self) -> Checkpoint:
        """The last checkpoint, or nothing at all; metrics of rounds after it are dropped."""
        server: Tree | None = None
        done, states, held = 0, dict[str, str](), dict[str, Any]()
        path = self.path / CHECKPOINT
        if path.is_file():
            server, facts = storage.load(path)
            try:
                done, states, held = int(facts["round"]), dict(facts["states"]), dict(facts["held"])
            except (KeyError, TypeError, ValueError) as error:
                raise RunError(f"'{path}' is not a checkpoint of this program: remove it to start over") from error
        records = [record for record in self.metrics() if record["round"] <= done]
        if [record["round"] for record in records] != list(range(1, done + 1)):
            raise RunError(f"'{self.path / METRICS}' lacks rounds up to {done}: expected one line for each in order")
        storage.write(self.path / METRICS, "".join(json.dumps(record) + "\n" for record in records).encode())
        return Checkpoint(server, done, states, held)

    def append(self, metrics: Mapping[str, Any]) -> None:
        try:
            with open(self.path / METRICS, "a") as file:
                file.write(json.dumps(metrics) + "\n")
        except OSError as error:
            raise RunError(f"cannot write '{self.path / METRICS}': {error.strerror or error}") from error

    def metrics(self) -> list[dict[str, Any]]:
        """One record a finished round."""
        path = self.path / METRICS
        if not path.is_file():
            return []
        # A run killed while it wrote leaves at most one line without its end.
        text = path.read_text()
        try:
            return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line]
        except ValueError as error:
            raise RunError(f"'{path}' is damaged ({error}): expected one JSON object a line") from error

    def finish(self, model: Tree, result: Mapping[str, Any]) -> None:
        storage.save(self.path / MODEL, model, {"fewfed": __version__})
        self._write_json(RESULT, result)

    def result(self) -> dict[str, Any] | None:
        """The summary of a finished run, wherever its folder lies by now; None while it is not finished."""
        path = self.path / RESULT
        if not path.is_file():
            return None
        try:
            return {**json.loads(path.read_text()), "folder": str(self.path)}
        except (ValueError, TypeError) as error:
            raise RunError(f"'{path}' is damaged: remove it and resume the run to write it again") from error

    @property
    def choices(self) -> Path:
        return self.path / CHOICES

    @property
    def clients(self) -> Path:
        return self.path / CLIENTS

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        storage.write(self.path / name, (json.dumps(content, indent=1) + "\n").encode())


def refuse_existing(path: Path) -> None:
    """A new run does not go into a folder that holds one, nor over files it would overwrite or clear away."""
    if (path / CONFIG).exists():
        raise RunError(f"'{path}' already holds a run: continue it with 'fewfed resume {path}' or choose another --out")
    for name in (METRICS, CHECKPOINT, MODEL, RESULT, CLIENTS, CHOICES):
        if (path / name).exists():
            raise RunError(f"'{path}' holds '{name}', which a run would overwrite: choose another --out")


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
