"""Whether a run has what its defence needs; said before it begins."""

from __future__ import annotations

from collections.abc import Sequence

from fewfed.engine import asking
from fewfed.engine.job import Job, is_inside
from fewfed.engine.robust.defence import Defence
from fewfed.engine.robust.rule import Rule
from fewfed.errors import ConfigError
from fewfed.phase import Clock, Cohort, Phase

_MOST = 100_000
"""Cohorts larger than this are not looked at to say which one would be enough."""


def refuse_unfit(defence: Defence, job: Job, rounds: int, cohort: int) -> None:
    """Raise `ConfigError` where a part of a defence could do nothing, has too few clients, or breaks a promise."""
    clocks = clocks_of(job, rounds)
    phases = [phase for clock in clocks for phase in asking.phases(job, clock) if not is_inside(phase)]
    _refuse_idle(defence, job.method.label, phases)
    for clock in clocks:
        _refuse_noise_after(defence, job, clock)
    for phase in phases:
        if defence.rule and any(defence.rule.covers(upload) for upload in phase.uploads.values()):
            _refuse_few(defence.rule, phase, len(job.federation) if phase.cohort is Cohort.ALL else cohort)


def clocks_of(job: Job, rounds: int) -> list[Clock]:
    """The first two rounds and the last one: a method may begin, or end, with other phases."""
    return [Clock(number, rounds, job.training.epochs) for number in sorted({0, min(1, rounds - 1), rounds - 1})]


def _refuse_idle(defence: Defence, method: str, phases: Sequence[Phase]) -> None:
    rule = (defence.rule.name, defence.rule.covers) if defence.rule else None
    bound = ("norm_bound", defence.bound.covers) if defence.bound else None
    for part, key in ((rule, "robust"), (bound, "norm_bound")):
        if part and not any(part[1](upload) for phase in phases for upload in phase.uploads.values()):
            raise ConfigError(
                f"'{part[0]}' has nothing to work on: {_why(phases, method)}; leave {key} out, or use "
                f"{_instead(phases)}",
                key=key,
            )
    if defence.rows and not any(defence.rows.covers(phase) for phase in phases):
        raise ConfigError(
            f"row_filter has nothing to work on: clients of method '{method}' send no rows with class labels that "
            "the server puts together; leave row_filter out",
            key="row_filter",
        )


def _refuse_noise_after(defence: Defence, job: Job, clock: Clock) -> None:
    """Noise that the server adds is as wide as one client can move a sum. Under a defence one client may move more: it
    can decide which others are left out, and how far they are clipped. Noise added before is not touched by it."""
    for one in job.method.mechanisms(clock):
        phase = next((phase for phase in asking.phases(job, clock) if phase.name == one.phase), None)
        if one.noise and not one.hides_from_server and phase is not None and defence.concerns(phase):
            raise ConfigError(
                f"method '{job.method.label}' adds noise to what the server has combined in phase '{one.phase}', as "
                "wide as one client can move a sum; under robust combination one may move it further, and no epsilon "
                "would hold: leave robust, norm_bound and row_filter out, or use noise that clients add themselves",
                key="robust",
            )


def _refuse_few(rule: Rule, phase: Phase, taking_part: int) -> None:
    if taking_part >= rule.needs(taking_part):
        return
    # What is needed may grow with the cohort, where a part of it may be attackers.
    enough = next((count for count in range(taking_part, _MOST) if count >= rule.needs(count)), None)
    expected = f"expected at least {enough}; use a larger cohort, or expect" if enough else "no cohort is: expect"
    raise ConfigError(
        f"robust = {rule.name} has {taking_part} clients in phase '{phase.name}', which is not enough: "
        f"{expected} fewer attackers (robust_attackers)",
        key="robust",
    )


def _why(phases: Sequence[Phase], method: str) -> str:
    sent = [upload for phase in phases for upload in phase.uploads.values()]
    if not sent:
        return f"clients of method '{method}' send nothing"
    kinds = " and ".join(sorted({f"{upload.role} ({upload.combine.value})" for upload in sent}))
    return f"clients of method '{method}' send {kinds}, of which it combines none"


def _instead(phases: Sequence[Phase]) -> str:
    sent = [upload for phase in phases for upload in phase.uploads.values()]
    if any(upload.rows for upload in sent):
        return "row_filter"
    return "robust = clipped or norm_bound" if any(upload.combine.seen_raw for upload in sent) else "another method"
