"""What somebody asks of advice: on which settings, what may leave a site, how long it may take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewfed.data.federation import MOST_GROUPS
from fewfed.errors import ConfigError, did_you_mean
from fewfed.privacy.sharing import Share, share_of
from fewfed.runs.experiment import Experiment
from fewfed.runs.look import Look
from fewfed.runs.naming import DEFAULT_OUT
from fewfed.runs.time_plan import MOST_SEEDS
from fewfed.runs.tuning import VALIDATION
from fewfed.settings import make

DEFAULT_FOLDER = DEFAULT_OUT / "advice"
MINUTES = 10.0
MOST_MINUTES = 20_000
"""Two weeks. A system waits for no more milliseconds at once than a number of 32 bits holds, which is 25 days."""
JUDGES = ("auto", "own", "all")
RESERVE = 2.0
"""Seconds at the end for stopping what still runs and for the report."""


@dataclass(frozen=True)
class Asked:
    """What the user wants to know, and may spend."""

    values: Mapping[str, Any]
    """Settings as `--set` takes them, without those that are decided here."""
    allowed: str
    methods: tuple[str, ...]
    validation: float
    rounds: int | None
    """As the user wants; None leaves it to the budget."""
    judge: str
    """Which rows a site's model is judged on: its own, those of all sites, or its own where the data know sites."""
    seeds: int
    """At most."""
    minutes: float
    root: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def until(self) -> float:
        """The time of `time.monotonic` at which everything is stopped."""
        return self.began + max(1.0, 60 * self.minutes - RESERVE)

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def identity(self) -> dict[str, Any]:
        """What must be the same for a bake-off to go on."""
        values = {name: str(value) for name, value in sorted(self.values.items())}
        return {"values": values, "share": self.allowed, "methods": list(self.methods), "rounds": self.rounds,
                "judge": self.judge, "validation": self.validation}  # fmt: skip

    def judges_own(self, look: Look) -> bool:
        """Whether every site's model is judged on that site's rows."""
        if self.judge == "own" and not look.own_rows:
            raise ConfigError(
                "judge = own: sites of these data have no test rows of their own that could be told apart (or are more "
                f"than {MOST_GROUPS}): expected clients that are the data's own sites, or judge = all",
                key="judge",
            )
        if self.judge == "own" and not look.metric_at_sites:
            raise ConfigError(
                "judge = own: this metric is not measured on the rows of single sites: expected metric = accuracy, or "
                "judge = all",
                key="judge",
            )
        return look.can_judge_own and self.judge != "all"


def asked_of(
    values: Mapping[str, Any],
    *,
    allowed: str = Share.FEATURES.word,
    methods: Sequence[str] = (),
    judge: str = "auto",
    seeds: int = MOST_SEEDS,
    minutes: float = MINUTES,
    root: Path = DEFAULT_FOLDER,
) -> Asked:
    """What a user asks for, checked. Rounds and the validation part are taken out of the settings."""
    share_of(allowed)
    if judge not in JUDGES:
        raise ConfigError(did_you_mean("choice of rows", judge, JUDGES), key="judge")
    if not 0 < minutes <= MOST_MINUTES:
        raise ConfigError(f"minutes = {minutes}: expected a number above 0 and at most {MOST_MINUTES}", key="minutes")
    rest = dict(values)
    taken = {name: _taken(rest, name) for name in ("rounds", "validation")}
    made = make(Experiment, {name: value for name, value in taken.items() if value is not None}, "the experiment")
    if "validation" in taken and made.validation == 0 and taken["validation"] is not None:
        raise ConfigError("validation = 0: expected a part of every site's rows to judge methods by", key="validation")
    return Asked(
        rest,
        allowed,
        tuple(methods),
        made.validation or VALIDATION,
        None if taken["rounds"] is None else made.rounds,
        judge,
        seeds,
        minutes,
        root,
    )


def _taken(values: dict[str, Any], name: str) -> Any:
    """A setting of the experiment, in either spelling, taken out of others."""
    found = [values.pop(key) for key in (name, f"experiment.{name}") if key in values]
    return found[-1] if found else None
