"""The release policy of a site: what may leave it, whatever a method asks for. A TOML file that the site owns.

It is applied at the client, to the report of a turn, before anything is handed over. Rows that may not leave are taken
out of every upload of rows of the phase alike. Where a phase sends something that may not leave at all, the client does
not take part in it, and the round goes on without.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfed.data.examples import Dataset
from fewfed.engine.gate import LeftOut
from fewfed.engine.job import Job
from fewfed.errors import ConfigError, DataError
from fewfed.method import Context, Report, Setup
from fewfed.phase import Clock, Cohort, Phase, Role
from fewfed.settings import make, setting
from fewfed.tree import Tree

_BY_CLASS = frozenset({Role.PROTOTYPES, Role.COUNTS})
"""Roles that tell something of every class a client has, beside rows themselves."""
_OF_ROWS = frozenset({Role.FEATURES, Role.INPUTS, Role.LABELS})
"""Roles of what single rows are, or what is made of them one by one."""
_SITE = "site"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Policy:
    """What one site allows. Everything that is not said is allowed."""

    roles: tuple[str, ...] | None = setting(None, "what may leave: model, features, labels ...; none = everything")
    stages: tuple[str, ...] | None = setting(
        None, "stages behind which features may be taken, and no inputs; none = all"
    )
    min_rows_of_class: int = setting(0, "rows of a class that has fewer at this site do not leave", ge=0)
    never: tuple[str, ...] = setting((), "classes, by name or number, whose rows never leave")
    opt_out: tuple[int, ...] = setting((), "numbers of rows in the site's file, from 0, that never leave")
    most_releases_of_row: int | None = setting(None, "how often a row may leave; none = always", ge=0)
    most_releases: int | None = setting(None, "how many rows may leave in all; none = any number", ge=0)
    group: int = setting(1, "least number of rows behind each row that leaves", ge=1)
    epsilon: float | None = setting(None, "privacy budget of a row of this site; none = the experiment's", gt=0)
    revoked_from: int | None = setting(None, "round, from 1, from which on the site does not take part any more", ge=1)

    @property
    def limits_rows(self) -> bool:
        """Whether it says which rows may leave, or how, beside those that opted out."""
        limits = (self.stages, self.most_releases_of_row, self.most_releases)
        return bool(self.min_rows_of_class or self.never) or self.group > 1 or any(each is not None for each in limits)


@dataclass(frozen=True)
class Policies:
    """Of all sites of a simulation: one for all, and others by name or number of the site."""

    common: Policy = field(default_factory=Policy)
    sites: Mapping[str, Policy] = field(default_factory=dict)


def read(path: Path) -> Policies:
    """Read a policy file; `[site.NAME]` says what is different at one site."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # A device or a pipe may have no end.
            raise ConfigError(f"'{path}' is no ordinary file: expected a policy in TOML", key="policy")
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"'{path}' is larger than {_MOST_BYTES} bytes: expected a policy in TOML", key="policy")
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the policy '{path}': {error.strerror or error}; expected a TOML file", key="policy"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the policy '{path}' is not TOML: {error}", key="policy") from error
    own = content.pop(_SITE, {})
    if not isinstance(own, dict) or not all(isinstance(each, dict) for each in own.values()):
        raise ConfigError(f"'{path}': [site.NAME] is expected to be a table for each site", key="policy")
    try:
        common = _made(content)
        return Policies(common, {str(name): _made({**content, **each}) for name, each in own.items()})
    except ConfigError as error:
        raise error.at(f"policy '{path}'") from None


def _made(content: Mapping[str, Any]) -> Policy:
    values = dict(content)
    if isinstance(values.get("never"), list):
        values["never"] = [str(each) for each in values["never"]]
    made = make(Policy, values, "a policy")
    for role in made.roles or ():
        if role not in {known.value for known in Role}:
            raise ConfigError(f"roles has '{role}': expected some of {', '.join(Role)}", key="roles", value=role)
    if any(row < 0 for row in made.opt_out):
        raise ConfigError("opt_out has a number below 0: expected numbers of rows from 0 on", key="opt_out")
    return made


@dataclass(frozen=True)
class PolicyGate:
    """Applies policies where packets are made."""

    by_client: tuple[Policy, ...]
    never: tuple[frozenset[int], ...]
    """Of every client, the numbers of the classes whose rows never leave."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """What one row of features looks like behind each stage of the network."""
    opted_out: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Of every client that has such, the rows that never leave, as it counts those it trains on."""
    name: str = field(default="policy", init=False)
    withdraws: bool = field(default=True, init=False)

    def withdrawn(self, clock: Clock) -> frozenset[int]:
        """Clients that are revoked in a round."""
        return frozenset(client for client, each in enumerate(self.by_client) if _is_revoked(each, clock))

    def admit(self, ctx: Context, notes: Tree) -> None:  # noqa: ARG002
        policy = self.by_client[ctx.client]
        reason = _forbidden(policy, ctx.phase, ctx.clock)
        by_class = [name for name, upload in ctx.phase.uploads.items() if upload.role in _BY_CLASS]
        if not reason and by_class and bool(self._barred(policy, ctx).any()):
            reason = f"'{by_class[0]}' tells of classes that may not leave"
        means = [name for name in by_class if ctx.phase.uploads[name].role is Role.PROTOTYPES]
        if not reason and means:
            reason = self._forbidden_means(policy, means[0], ctx)
        if reason:
            raise LeftOut(f"its policy forbids it: {reason}", "policy")

    def _forbidden_means(self, policy: Policy, name: str, ctx: Context) -> str:
        """Why a vector for each class must not leave, since all rows of a class are behind it; empty where it may."""
        if bool(self._opted_out(ctx).any()):
            return f"'{name}' are made of all rows of each class, and some have opted out"
        labels = ctx.data.y.cpu()
        sizes = torch.bincount(labels) if labels.dim() == 1 and not labels.is_floating_point() else torch.zeros(1)
        fewest = int(sizes[sizes > 0].min()) if bool(sizes.any()) else 0
        if fewest < policy.group and policy.group > 1:
            return f"'{name}' are made of all rows of each class, and of one there are fewer than {policy.group}"
        return ""

    def released(self, report: Report, ctx: Context, notes: Tree) -> tuple[Report, Tree]:
        policy = self.by_client[ctx.client]
        if not self.tells_losses(ctx.client):
            report = report._replace(metrics={})
        self._refuse_unnamed(policy, report, ctx)
        names = [name for name, upload in ctx.phase.uploads.items() if upload.rows]
        if not names:
            return report, notes
        self._refuse_stages(policy, report, ctx)
        origins = ctx.phase.does.origins(ctx).cpu()
        lengths = {_length(report.upload[name]) for name in names if name in report.upload}
        if lengths != {len(origins)}:
            raise LeftOut("its policy forbids it: it is not known which rows are behind those it would send", "policy")
        used = notes.get("releases", torch.zeros(len(ctx.data), dtype=torch.long))
        total = int(notes.get("total", torch.tensor(0)))
        kept, used, total = self._choose(policy, origins, ctx, used.clone(), total)
        if not bool(kept.all()):
            rows = {name: _cut(report.upload[name], kept) for name in names}
            report = report._replace(upload={**report.upload, **rows})
        return report, {"releases": used, "total": torch.tensor(total)}

    def tells_losses(self, client: int) -> bool:
        """They say how well the client's rows are predicted, as other scores do."""
        roles = self.by_client[client].roles
        return roles is None or Role.SCORE in roles

    def _choose(
        self, policy: Policy, origins: Tensor, ctx: Context, used: Tensor, total: int
    ) -> tuple[Tensor, Tensor, int]:
        """Which rows leave, and how often each row of the client, and rows in all, have left then."""
        barred = self._barred(policy, ctx) | self._opted_out(ctx)
        kept = torch.zeros(len(origins), dtype=torch.bool)
        for number, behind in enumerate(origins):
            rows = behind[behind >= 0]
            often = policy.most_releases_of_row
            if len(rows.unique()) < policy.group or bool(barred[rows].any()):
                continue
            if often is not None and bool((used[rows] >= often).any()):
                continue
            if policy.most_releases is not None and total >= policy.most_releases:
                break
            kept[number] = True
            used[rows.unique()] += 1
            total += 1
        return kept, used, total

    def _barred(self, policy: Policy, ctx: Context) -> Tensor:
        """For every row of the client whether its class keeps it from leaving: rows that never leave hide no others."""
        labels = ctx.data.y.cpu()
        if labels.dim() != 1 or not (policy.min_rows_of_class or policy.never):
            return torch.zeros(len(labels), dtype=torch.bool)
        there = labels[~self._opted_out(ctx)]
        few = torch.bincount(there, minlength=int(labels.max()) + 1) < policy.min_rows_of_class
        return few[labels] | torch.isin(labels, torch.tensor(sorted(self.never[ctx.client]), dtype=labels.dtype))

    def _opted_out(self, ctx: Context) -> Tensor:
        found = torch.zeros(len(ctx.data), dtype=torch.bool)
        found[[row for row in self.opted_out.get(ctx.client, ()) if row < len(found)]] = True
        return found

    def _refuse_unnamed(self, policy: Policy, report: Report, ctx: Context) -> None:
        """What is of rows by its role, but by its declaration counts none, may hold those that must not leave."""
        if not (policy.limits_rows or bool(self._opted_out(ctx).any())):
            return
        for name, upload in ctx.phase.uploads.items():
            if upload.role in _OF_ROWS and not upload.rows and _holds_numbers(report.upload.get(name, {})):
                raise LeftOut(
                    f"its policy forbids it: it is not known which rows are behind '{name}', of role {upload.role}",
                    "policy",
                )

    def _refuse_stages(self, policy: Policy, report: Report, ctx: Context) -> None:
        """Features must look like those of an allowed stage, and like those of no other."""
        if policy.stages is None:
            return
        numbers = ctx.phase.does.decoded(dict(report.upload))
        features = [name for name, each in ctx.phase.uploads.items() if each.rows and each.role is Role.FEATURES]
        for name in features:
            if reason := self.forbidden_features(policy, name, tuple(numbers[name].shape[1:])):
                raise LeftOut(f"its policy forbids it: {reason}", "policy")

    def forbidden_features(self, policy: Policy, name: str, shape: tuple[int, ...]) -> str:
        """Why features of this shape must not leave; empty where they may."""
        if policy.stages is None:
            return ""
        alike = [stage for stage, known in self.shapes.items() if known == shape]
        if alike and all(stage in policy.stages for stage in alike):
            return ""
        behind = f"behind {' or '.join(alike)}" if alike else f"of shape {shape}, which no stage gives"
        return f"'{name}' are features {behind}, but allowed are those behind {', '.join(policy.stages) or 'no stage'}"


@dataclass(frozen=True)
class Numbering:
    """How sites count their rows. Those of a file are numbered before some are drawn for tests or left out."""

    of_client: Callable[[int], np.ndarray]
    """Of a client, the number of each row that it trains on."""
    end: int | None = None
    """No row has this number, or a larger one; None where that is not known."""

    def positions(self, client: int, numbers: Sequence[int]) -> frozenset[int]:
        """Where among the rows that a client trains on those with these numbers are."""
        return frozenset(np.flatnonzero(np.isin(self.of_client(client), numbers)).tolist())


def gate_of(
    policies: Policies,
    job: Job,
    class_names: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    numbering: Numbering | None = None,
) -> PolicyGate:
    """The gate of a run's clients. A site is named as its data name it, or by the client's number. Without a numbering
    clients count the rows that they train on."""
    numbers = [str(client) for client in range(len(job.federation))]
    names = list(job.federation.client_groups) or numbers
    # Where data name their sites by numbers, a number is a name.
    spare = {number: name for name, number in zip(names, numbers, strict=True) if number not in names}
    unknown = policies.sites.keys() - {*names, *spare}
    if unknown:
        raise ConfigError(
            f"the policy speaks of site '{min(unknown)}', which is none of the run's: expected a name such as "
            f"'{names[0]}', or the number of a client",
            key="policy",
        )
    twice = [(name, number) for number, name in spare.items() if {name, number} <= policies.sites.keys()]
    if twice:
        raise ConfigError(
            f"the policy speaks of site '{twice[0][0]}' twice, by its name and as client {twice[0][1]}: expected one "
            "of both",
            key="policy",
        )
    by_name = {name: policies.sites[number] for number, name in spare.items() if number in policies.sites}
    chosen = tuple({**by_name, **policies.sites}.get(name, policies.common) for name in names)
    for policy in (policies.common, *policies.sites.values()):
        if (policy.never or policy.min_rows_of_class) and not _has_class_of_row(job):
            raise ConfigError(
                "the policy speaks of rows of a class (never, min_rows_of_class), but rows of these data have no class "
                "each: expected opt_out, which names rows by number, or no features and inputs among roles",
                key="policy",
            )
        for stage in policy.stages or ():
            job.net.position(stage)
        end = None if numbering is None else numbering.end
        if end is not None and any(row >= end for row in policy.opt_out):
            raise ConfigError(
                f"opt_out names row {max(policy.opt_out)}, which is not there: expected numbers from 0 to {end - 1}",
                key="policy",
            )
    opted_out = {
        client: frozenset(each.opt_out) if numbering is None else numbering.positions(client, each.opt_out)
        for client, each in enumerate(chosen)
        if each.opt_out
    }
    return PolicyGate(chosen, tuple(_classes(each, class_names) for each in chosen), shapes, opted_out)


def row_numbers(dataset: Dataset, of_client: Callable[[int], np.ndarray]) -> Numbering:
    """How rows of a data set are counted; `of_client` knows which of them a client trains on."""
    if dataset.places is None:
        return Numbering(of_client, len(dataset.train))
    if dataset.reading is None:
        return Numbering(of_client)
    return Numbering(of_client, len(dataset.train) + len(dataset.test) + dataset.reading.dropped)


def _has_class_of_row(job: Job) -> bool:
    """Whether the label of a row is one class: not a number to be estimated, and no mask."""
    return bool(job.task.classes) and job.federation.test.y.dim() == 1


def refuse_nobody(gate: PolicyGate, phases: Sequence[Phase], clock: Clock, known: Setup | None = None) -> None:
    """Raise where no site may ever take part in a phase: the method cannot be run under these policies. `known`: what
    the method knows beforehand, where features may be forbidden by their stage."""
    for phase in phases:
        if phase.cohort in (Cohort.ROUND, Cohort.ALL):
            stage = _stage_of(phase, known, gate.shapes)
            reasons = [
                _forbidden(policy, phase, clock)
                or (gate.forbidden_features(policy, phase.row_upload, gate.shapes[stage]) if stage else "")
                for policy in gate.by_client
            ]
            if all(reasons):
                raise ConfigError(
                    f"no site may take part in phase '{phase.name}': their policies forbid it ({reasons[0]}); expected "
                    "a method that sends what they allow",
                    key="policy",
                )
        if phase.cohort is Cohort.UNION:
            raise ConfigError(f"phase '{phase.name}' takes all rows to one place, which no policy allows", key="policy")


def _stage_of(phase: Phase, known: Setup | None, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The stage behind which a phase takes the features it sends; empty where it sends none, or nobody can tell."""
    if known is None or not phase.row_upload or phase.uploads[phase.row_upload].role is not Role.FEATURES:
        return ""
    try:
        position = phase.does.shares_at(known)
    except Exception:  # Whatever a method says of it, what it sends is looked at when it does.
        return ""
    stage = known.net.stages[position - 1] if position else ""
    return stage if stage in shapes else ""


def _classes(policy: Policy, class_names: Sequence[str]) -> frozenset[int]:
    found = set()
    for text in policy.never:
        if text in class_names:
            found.add(list(class_names).index(text))
        elif text.isdecimal() and int(text) < len(class_names):
            found.add(int(text))
        else:
            raise DataError(
                f"the policy never shares class '{text}', which the data do not have: expected one of "
                f"{', '.join(list(class_names)[:20])}"
            )
    return frozenset(found)


def _forbidden(policy: Policy, phase: Phase, clock: Clock) -> str:
    """Why a client must not take part in a phase at all; empty where it may."""
    if _is_revoked(policy, clock):
        return f"it was revoked from round {policy.revoked_from} on"
    for name, upload in phase.uploads.items():
        if policy.roles is not None and upload.role not in policy.roles:
            return f"'{name}' is of role {upload.role}, and allowed are {', '.join(policy.roles) or 'none'}"
        if policy.stages is not None and upload.rows and upload.role is Role.INPUTS:
            allowed = ", ".join(policy.stages) or "no stage"
            return f"'{name}' are inputs, before any stage, and allowed are features behind {allowed}"
    return ""


def _is_revoked(policy: Policy, clock: Clock) -> bool:
    return policy.revoked_from is not None and clock.round + 1 >= policy.revoked_from


def _holds_numbers(value: Any) -> bool:
    return value.numel() > 0 if isinstance(value, Tensor) else any(map(_holds_numbers, value.values()))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Tensor) else _length(next(iter(value.values())))


def _cut(value: Any, kept: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value[kept.to(value.device)]
    return {name: _cut(part, kept) for name, part in value.items()}


def budgets(gate: PolicyGate) -> Mapping[int, float]:
    """The clients whose policies have a privacy budget of their own."""
    return {client: each.epsilon for client, each in enumerate(gate.by_client) if each.epsilon is not None}
