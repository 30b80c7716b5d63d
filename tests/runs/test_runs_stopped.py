"""A run that is stopped, or that a fault ends, keeps the rounds it has finished."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fewfed import resume, run
from fewfed.engine import storage
from fewfed.engine.client_store import ClientStore
from fewfed.engine.holdings import Holdings
from fewfed.engine.loop import RoundView
from fewfed.runs.folder import CHECKPOINT, METRICS, RunFolder
from run_support import SHORT, assert_same_end, forked, rounds_written, small

Patch = pytest.MonkeyPatch

SELDOM = small(rounds=5, checkpoint_seconds=1e9)
"""Without being stopped, such a run writes one checkpoint, at its end."""

STATEFUL = ("local", "scaffold")
METHODS = (*STATEFUL, "fedmix", "flea")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def folder_of(method: str) -> Path:
        out: Path = tmp_path_factory.mktemp("reference") / method
        run(method, SELDOM, SHORT, out=out)
        return out

    return folder_of


def rounds_kept(out: Path) -> int:
    return int(storage.load(out / CHECKPOINT)[1]["round"]) if (out / CHECKPOINT).exists() else 0


MOMENTS: dict[str, tuple[type, str, bool]] = {
    "the broadcast is made": (Holdings, "announce", True),
    "a client receives": (Holdings, "deliver", True),
    "a client is about to remember": (ClientStore, "put", False),
    "a client remembers": (ClientStore, "put", True),
    "a round is about to be written down": (RunFolder, "append", False),
    "a round is written down": (RunFolder, "append", True),
    "a round is about to be marked": (ClientStore, "finish_round", False),
    "half of a round is marked": (ClientStore, "finish_round", True),
    "a round is marked": (Holdings, "finish_round", True),
    "a checkpoint is written": (RunFolder, "checkpoint", False),
}

AFTER_TRAINING = ("append", "finish_round", "checkpoint")

CASES = [
    (method, moment)
    for method in METHODS
    for moment, (owner, _, _) in MOMENTS.items()
    if owner is not ClientStore or method in STATEFUL
]


@pytest.mark.parametrize(("method", "moment"), CASES)
def test_the_rounds_before_are_kept(
    method: str, moment: str, tmp_path: Path, monkeypatch: Patch, reference: Callable[[str], Path]
) -> None:
    """Stopped in the third round, at the first such moment there."""
    owner, name, after = MOMENTS[moment]
    original = getattr(owner, name)
    done = 0

    class Count:
        def after_round(self, view: RoundView) -> None:
            nonlocal done
            done = view.clock.round + 1

    def stopping(*arguments: Any) -> Any:
        result = original(*arguments) if after else None
        if done == (3 if name in AFTER_TRAINING else 2):
            monkeypatch.setattr(owner, name, original)
            raise KeyboardInterrupt
        return result if after else original(*arguments)

    monkeypatch.setattr(owner, name, stopping)
    settings = small(rounds=5, checkpoint_seconds=0) if name == "checkpoint" else SELDOM
    with pytest.raises(KeyboardInterrupt):
        run(method, settings, SHORT, out=tmp_path / "run", observers=[Count()])
    expected = 3 if name in ("finish_round", "checkpoint") else 2
    assert rounds_kept(tmp_path / "run") == expected
    seen: list[int] = []
    monkeypatch.setattr(Count, "after_round", lambda _, view: seen.append(view.clock.round))
    resume(tmp_path / "run", observers=[Count()])
    assert seen == list(range(expected, 5))
    assert_same_end(tmp_path / "run", reference(method))


@pytest.mark.parametrize("executor", ["sequential", pytest.param("workers", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("method", METHODS)
def test_stopped_at_random_moments(
    method: str, executor: str, tmp_path: Path, reference: Callable[[str], Path]
) -> None:
    expected, chance = reference(method), random.Random(f"{method} {executor}")
    out = tmp_path / "run"

    def begin_or_resume() -> None:
        resume(out) if (out / METRICS).exists() else run(method, SELDOM, SHORT, executor=executor, out=out)

    for _ in range(6):
        pid = forked(begin_or_resume)
        time.sleep(chance.uniform(0, 0.6))
        os.kill(pid, signal.SIGINT)
        os.waitpid(pid, 0)
        if (out / METRICS).exists():
            assert rounds_written(out) - rounds_kept(out) in (0, 1)
    begin_or_resume()
    assert_same_end(out, expected)


def test_a_fault_in_a_late_round_costs_none_before_it(tmp_path: Path, monkeypatch: Patch) -> None:
    class Faulty:
        def after_round(self, view: RoundView) -> None:
            if view.clock.round == 3:
                raise ValueError("an observer's fault")

    with pytest.raises(ValueError, match="an observer's fault"):
        run("scaffold", SELDOM, SHORT, out=tmp_path / "run", observers=[Faulty()])
    assert rounds_kept(tmp_path / "run") == 3


def test_where_no_checkpoint_can_be_written_the_cause_is_told_all_the_same(tmp_path: Path, monkeypatch: Patch) -> None:
    class Faulty:
        def after_round(self, view: RoundView) -> None:
            if view.clock.round == 3:
                raise ValueError("an observer's fault")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "checkpoint", full)
    with pytest.raises(ValueError, match="an observer's fault"):
        run("scaffold", SELDOM, SHORT, out=tmp_path / "run", observers=[Faulty()])
