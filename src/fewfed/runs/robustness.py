"""Attackers and defences of a run, from its settings; everything that does not fit is refused before it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fewfed.adversaries.attack import Attack, Attackers
from fewfed.adversaries.known import ATTACKS
from fewfed.engine import asking
from fewfed.engine.job import Job
from fewfed.engine.robust.bound import bound_of
from fewfed.engine.robust.clipped import Clipped
from fewfed.engine.robust.defence import Defence
from fewfed.engine.robust.fitting import clocks_of, refuse_unfit
from fewfed.engine.robust.krum import Krum
from fewfed.engine.robust.median import Median
from fewfed.engine.robust.norm_bound import NormBound
from fewfed.engine.robust.rows import RowFilter
from fewfed.engine.robust.rule import Rule
from fewfed.engine.robust.trimmed import Trimmed
from fewfed.errors import ConfigError
from fewfed.phase import Phase
from fewfed.privacy.recording import numbers_of
from fewfed.runs.experiment import Experiment

NONE = "none"

RULES: Mapping[str, Callable[[Experiment], Rule]] = MappingProxyType(
    {
        "clipped": lambda experiment: Clipped(bound_of(experiment.robust_clip, "robust_clip")),
        "median": lambda _: Median(),
        "trimmed": lambda experiment: Trimmed(experiment.robust_attackers),
        "krum": lambda experiment: Krum(experiment.robust_attackers),
        "multi-krum": lambda experiment: Krum(experiment.robust_attackers, many=True),
    }
)


def defence_of(experiment: Experiment, job: Job, cohort: int) -> Defence | None:
    """What the server does against clients that may not be honest; None where it combines as declared."""
    _refuse_unused(experiment)
    rule = RULES[experiment.robust](experiment) if experiment.robust != NONE else None
    bound = NormBound(bound_of(experiment.norm_bound, "norm_bound")) if experiment.norm_bound else None
    rows = None if experiment.row_filter is None else RowFilter(experiment.row_filter, experiment.row_margin)
    if not (rule or bound or rows):
        return None
    defence = Defence(rule, bound, rows)
    refuse_unfit(defence, job, experiment.rounds, cohort)
    return defence


def attackers_of(experiment: Experiment, job: Job) -> Attackers | None:
    """Who attacks, and how; None where everybody is honest."""
    if experiment.attack == NONE or not experiment.attackers:
        missing = "attackers" if experiment.attack != NONE else "attack"
        if experiment.attack != NONE or experiment.attackers:
            raise ConfigError(
                f"{missing} is not set: expected who attacks and how, as in attackers = 0.2 and attack = sign-flip",
                key=missing,
            )
        if experiment.attack_scale is not None:
            raise ConfigError("attack_scale is set, but nobody attacks: add attack and attackers", key="attack_scale")
        return None
    attack = _attack(experiment)
    if attack.needs_classes and job.task.outputs < 2:
        raise ConfigError(f"attack '{attack.name}' needs labels that are classes: choose another attack", key="attack")
    if not any(attack.hits(phase) for phase in _phases(experiment, job)):
        raise ConfigError(
            f"attack '{attack.name}' has no target: expected {attack.target}, which clients of method "
            f"'{job.method.label}' do not have; choose another attack",
            key="attack",
            value=attack.name,
        )
    return Attackers(_who(experiment, job), attack)


def told_robustness(attackers: Attackers | None, defence: Defence | None, clients: int) -> str:
    """What a result says of it; nothing where nobody attacks and nothing defends."""
    parts = []
    if attackers:
        parts.append(f"{len(attackers.clients)} of {clients} clients attack ({attackers.attack.told})")
    if defence and defence.rule:
        parts.append(f"combined by {defence.rule.told}")
    if defence and defence.bound:
        parts.append(f"changes longer than {defence.bound.bound} refused")
    if defence and defence.rows:
        parts.append(f"shared rows filtered ({defence.rows.told})")
    return "; ".join(parts)


def _attack(experiment: Experiment) -> Attack:
    cls, scale = ATTACKS[experiment.attack], experiment.attack_scale
    if scale is None:
        return cls()
    if not cls.has_scale:
        raise ConfigError(
            f"attack '{cls.name}' has no strength: leave attack_scale out", key="attack_scale", value=scale
        )
    return cls(scale=scale)  # type: ignore[call-arg]


def _who(experiment: Experiment, job: Job) -> frozenset[int]:
    text, clients = experiment.attackers.strip(), len(job.federation)
    try:
        part = float(text) if "." in text else None
    except ValueError:
        part = None
    if part is None:
        named = numbers_of("attackers", text, 0, clients - 1, "a part of all, as in 0.2")
        if len(named) == clients:
            raise ConfigError(
                f"attackers = {text:.60} are all {clients} clients: expected some honest ones", key="attackers"
            )
        return named
    count = int(part * clients + 0.5)
    if not 0 < part < 1 or not 0 < count < clients:
        raise ConfigError(
            f"attackers = {text} of {clients} clients are {count}: expected a part between 0 and 1 that is at least "
            "one and not everybody, or numbers of clients with commas between",
            key="attackers",
            value=text,
        )
    return job.plan.attackers(clients, count)


def _phases(experiment: Experiment, job: Job) -> list[Phase]:
    """Those of the first rounds and of the last one."""
    return [phase for clock in clocks_of(job, experiment.rounds) for phase in asking.phases(job, clock)]


def _refuse_unused(experiment: Experiment) -> None:
    """Options of a rule that is not used are a mistake, not a wish."""
    usual = Experiment()
    for name, rules in (("robust_clip", ("clipped",)), ("robust_attackers", ("trimmed", "krum", "multi-krum"))):
        if getattr(experiment, name) != getattr(usual, name) and experiment.robust not in rules:
            raise ConfigError(
                f"{name} is set, but robust is {experiment.robust}: expected {' or '.join(rules)}", key=name
            )
    if experiment.row_margin is not None and experiment.row_filter is None:
        raise ConfigError("row_margin is set, but no rows are filtered: add row_filter, as in 2", key="row_margin")
    if 1 <= experiment.robust_attackers != int(experiment.robust_attackers):
        raise ConfigError(
            f"robust_attackers = {experiment.robust_attackers:g}: expected a fraction below 1 or a whole number",
            key="robust_attackers",
        )
