"""The door to advice for programs: `fewfed.advise`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

from torch import nn

from fewfed.data.examples import Dataset
from fewfed.data.readers.options import DataOptions
from fewfed.errors import ConfigError
from fewfed.network import Network
from fewfed.privacy.sharing import Share, share_of
from fewfed.runs import aside, given
from fewfed.runs.advice import Bakeoff
from fewfed.runs.cells import Cell, LoadedData, Update
from fewfed.runs.considered import considered
from fewfed.runs.executors import packing_for
from fewfed.runs.experiment import Experiment
from fewfed.runs.question import DEFAULT_FOLDER, MINUTES, asked_of
from fewfed.runs.time_plan import MOST_SEEDS
from fewfed.settings import shown
from fewfed.training import Training

if TYPE_CHECKING:
    from fewfed.report.advice import Advice


def advise(
    experiment: Experiment | Mapping[str, Any] | None = None,
    training: Training | Mapping[str, Any] | None = None,
    *,
    minutes: float = MINUTES,
    share: str = Share.FEATURES.word,
    judge: str = "auto",
    methods: Sequence[str | PathLike[str]] = (),
    seeds: int = MOST_SEEDS,
    jobs: int = 0,
    values: Mapping[str, Any] | None = None,
    options: DataOptions | Mapping[str, Any] | None = None,
    data: Dataset | str | PathLike[str] | None = None,
    network: nn.Module | Network | str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = None,
    progress: bool | None = None,
) -> Advice:
    """Which method fits some data: `fewfed advise`. `print` shows the advice; `recommended` is the method's name,
    `settings` what to train it with, `table` the evidence.

    `minutes`: what it may take in all. `share`: what may leave a site at most (model, statistics, averages, features,
    inputs). `judge`: rows that a site's model must be good at: its "own", those of "all" sites, or "auto": its own
    where the data know sites. `methods`: tried beside `local` and `fedavg`; none leaves it to the data. Rounds that
    the experiment names are kept to, others are as many as fit. The rest is as in `compare`; the folder is runs/advice.
    """
    from fewfed.report.advice import advised

    names, wanted = given.methods_of(methods), given.wanted(progress)
    count, most = given.count_of(seeds, "seeds", 1), given.count_of(jobs, "jobs", 0)
    if not isinstance(minutes, (int, float)) or isinstance(minutes, bool):
        raise ConfigError(f"minutes = {shown(minutes)}: expected a number", key="minutes")
    described, own_objects = given.experiment_of(experiment, data, network)
    asked = asked_of(
        {
            **_stated("experiment", described, Experiment()),
            **{f"training.{name}": value for name, value in given.training_of(training).items()},
            **_stated("data_options", given.options_of(options), DataOptions()),
            **given.values_of(values),
        },
        allowed=share,
        methods=names,
        judge=judge,
        seeds=count,
        minutes=float(minutes),
        root=given.folder_of(out, "out") if out else DEFAULT_FOLDER,
    )
    loaded = LoadedData(own_objects)
    aside.refuse_spent_autograd()
    found = considered({**asked.values, "experiment.validation": asked.validation}, share_of(share), names, loaded)
    own = asked.judges_own(found.look)

    @contextmanager
    def watch(title: str, cells: Sequence[Cell]) -> Iterator[Callable[[Update], None]]:
        from fewfed.report.progress import cell_reporter, display

        rounds = max(cell.resolved.experiment.rounds for cell in cells)
        with display(title, len(cells) * rounds, wanted) as seen:
            yield cell_reporter(seen, rounds)

    bakeoff = Bakeoff(asked, found, own, loaded, lambda: packing_for(most), watch)
    return advised(asked, found, bakeoff.run(), own, loaded)


def _stated(part: str, made: Any, usual: Any) -> dict[str, Any]:
    """The fields that are not as they would be by themselves."""
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made) if field.init}
    return {f"{part}.{name}": value for name, value in fields.items() if value != getattr(usual, name)}
