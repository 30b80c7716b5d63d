"""MLflow: a run of its own for each run here, in the database beside the run folder or where MLFLOW_TRACKING_URI says.

A run that is continued goes on under the same MLflow run, which is asked which rounds it has.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fewfed.tracking.tracker import About

DATABASE = "mlflow.db"
_URI, _EXPERIMENT = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
_MARK = "round"
"""A metric that every round has."""
_LONGEST = 500
_AT_ONCE = 100
_WAITING = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""A server that is away must not hold the run for the minutes that MLflow would try, unless the user set that."""


def database_at(path: Path) -> str:
    """The address of a database: of a path with ? or % in it, the path as it stands would be another one's."""
    if not set("?%") & set(str(path)):
        return f"sqlite:///{path}"
    from sqlalchemy.engine import URL

    # With the driver named, or MLflow would make a folder that is called as the address spells it.
    return URL.create("sqlite+pysqlite", database=str(path)).render_as_string()


class Runs:
    """Tells MLflow of one run."""

    def __init__(self) -> None:
        self._client: Any = None
        self._run = ""
        self._lock: Path | None = None

    def begin(self, about: About) -> tuple[str, int]:
        for name, value in _WAITING.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        place = about.run.absolute().parent
        uri = os.environ.get(_URI)
        if not uri:
            uri = database_at(place / DATABASE)
            self._lock = place / f".{DATABASE}.lock"
        with self._alone():
            self._client = MlflowClient(tracking_uri=uri)
            if about.known and self._is_there(about.known):
                self._run = about.known
                self._client.set_terminated(self._run, "RUNNING")
                return self._run, self._last_round()
            experiment = self._experiment(os.environ.get(_EXPERIMENT) or about.group or "fewfed", place)
            tags = {"mlflow.runName": about.name, "fewfed.folder": str(about.run), "fewfed.group": about.group}
            self._run = self._client.create_run(experiment, tags=tags).info.run_id
            settings = [Param(name, str(value)[:_LONGEST]) for name, value in about.settings.items()]
            for first in range(0, len(settings), _AT_ONCE):
                self._client.log_batch(self._run, params=settings[first : first + _AT_ONCE])
        return self._run, 0

    def round(self, number: int, values: Mapping[str, float]) -> None:
        self._log({**values, _MARK: number}, number)

    def end(self, summary: Mapping[str, float] | None) -> None:
        if summary is not None:
            self._log({f"result/{name}": value for name, value in summary.items()}, 0)
        with self._alone():
            self._client.set_terminated(self._run, "FINISHED" if summary is not None else "KILLED")

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        with self._alone():
            # One call: all of a round is there, or none.
            self._client.log_batch(self._run, [Metric(name, float(value), now, step) for name, value in values.items()])

    def _experiment(self, name: str, place: Path) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        # Nothing is written there; without it MLflow would name a folder where the program happens to run.
        where = None if self._lock is None else (place / "mlflow-artifacts").as_uri()
        return str(self._client.create_experiment(name, artifact_location=where))

    def _is_there(self, run: str) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            return bool(self._client.get_run(run).info.lifecycle_stage == "active")
        except MlflowException:  # Another server than before, or somebody deleted it.
            return False

    def _last_round(self) -> int:
        return max((int(each.step) for each in self._client.get_metric_history(self._run, _MARK)), default=0)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Runs of a comparison share a database, which several programs cannot make or write at the same moment."""
        if self._lock is None:
            yield
            return
        with self._lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
