"""What trackers wrote, read back by their own libraries: rounds in the order in which they were written."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Rounds = list[tuple[int, float]]
_BLOCK = 32768
_HEADER = 7


def tensorboard(run: Path) -> dict[str, Rounds]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tracking" / "tensorboard"), {"scalars": 0})
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def mlflow(run: Path, uri: str = "") -> Any:
    """The MLflow runs in the database beside a run folder, with the client that reads them."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri or f"sqlite:///{run.parent / 'mlflow.db'}")
    experiments = client.search_experiments()
    return client, client.search_runs([each.experiment_id for each in experiments])


def mlflow_rounds(client: Any, run_id: str) -> dict[str, Rounds]:
    names = client.get_run(run_id).data.metrics
    return {name: [(each.step, each.value) for each in client.get_metric_history(run_id, name)] for name in names}


def wandb(run: Path) -> list[Any]:
    """All records that were written offline, of all files of a run, once a process beside ours has written the last."""
    deadline = time.monotonic() + 30
    found = _wandb(run)
    while "exit" not in {record.WhichOneof("record_type") for record in found}:
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
        found = _wandb(run)
    return found


def _wandb(run: Path) -> list[Any]:
    from wandb.proto import wandb_internal_pb2

    found = []
    for file in sorted((run / "tracking" / "wandb").glob("offline-run-*/*.wandb")):
        for content in _records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            found.append(record)
    return found


def wandb_history(run: Path) -> list[Mapping[str, str]]:
    return [
        {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
        for record in wandb(run)
        if record.WhichOneof("record_type") == "history"
    ]


def _records(content: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, behind a header of seven bytes; one cut short is left out."""
    assert not content or content[:4] == b":W&B"
    place, parts = _HEADER, b""
    while place + _HEADER <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        part = content[place + _HEADER : place + _HEADER + size]
        if kind == 0 or len(part) < size:
            return
        place += _HEADER + size
        parts = part if kind in (1, 2) else parts + part
        if kind in (1, 4):
            yield parts
