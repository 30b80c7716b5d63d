"""How well the rows that a run shares can be reconstructed, measured while it goes on: a number, not an adjective.

Two attackers know the model that was broadcast and hold rows that nobody trained on. One regresses from what clients
with such rows would send to these rows; the other asks the weights which input gives what was sent. Both are told of
every defence, since they go through the method's own code. Cheap: `fewfed attack` has stronger ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.engine.job import Job, is_inside
from fewfed.engine.loop import PhaseResult, RoundView
from fewfed.engine.threads import one_thread
from fewfed.engine.turn import Member, context_of
from fewfed.errors import told
from fewfed.method import Combined
from fewfed.phase import Clock, Combine, Phase
from fewfed.privacy.inverting import inverted
from fewfed.privacy.noiseless import without_noise
from fewfed.privacy.ridge import Ridge
from fewfed.privacy.shared_rows import origins_of, row_upload
from fewfed.privacy.stand_in import MOST_CLIENTS, Exchanged, dealt, groups_of, stand_ins
from fewfed.tree import Tree

RIDGE, INVERTING = "ridge", "inverting"
PARTS = 10
"""It is measured in the first round that shares rows, and then once in every such part of the run."""
_MOST_HELD, _FEWEST_HELD = 1000, 12
"""Rows that the attackers hold."""
_MOST_SCORED, _MOST_CLIENTS = 100, 200
_MOST_CANDIDATES = 2000
_MOST_NUMBERS = 1 << 25
"""Numbers of one table: fewer rows are taken of what is very wide."""
_AT_ONCE = 256
_PERFECT = 1 - 1e-9
_SEED = 20_240_607

Key = tuple[int, int]
"""A client, and the number of one of its rows."""


class _NothingToMeasure(Exception):
    """The message says why."""


@dataclass
class MeasureLeak:
    """The observer. What it finds, or why it finds nothing, is in the round's record under "leak"."""

    _pool: _Candidates | None = None

    def after_round(self, view: RoundView) -> None:
        try:
            exchanged = _last_exchange(view)
            if exchanged is None or not _is_due(view.job, view.clock):
                return
            with one_thread():
                found = self._measured(view, exchanged)
        except _NothingToMeasure as reason:
            found = {"skipped": str(reason)}
        except Exception as error:  # Whatever a method's code does with strange rows, the run goes on.
            found = {"skipped": told(error)}
        view.record.add({"leak": found})

    def _measured(self, view: RoundView, result: PhaseResult) -> dict[str, Any]:
        truth = _truth(view, result)
        exchanged = Exchanged(view.job, result.phase, view.clock, result.shared, truth.personal)
        held = _held(view.job.federation.test, truth, result.shared)
        with torch.no_grad():
            pairs = _pairs(exchanged, held, truth.sent.device)
            guess = Ridge(pairs.sent, pairs.source, pairs.apart, pairs.quiet)(truth.sent)
        centre = pairs.source.double().mean(0)
        if self._pool is None:
            self._pool = _Candidates.of(view.job, truth.width)
        candidates = self._pool.with_rows(truth.rows)
        attackers: dict[str, dict[str, Any]] = {RIDGE: _scored(guess, truth, centre, candidates)}
        if _is_thorough(view, truth) and attackers[RIDGE]["r2"] < _PERFECT:
            attackers[INVERTING] = self._inverted(exchanged, held, truth, guess, centre, candidates)
        scored = {name: found for name, found in attackers.items() if "r2" in found}
        best = max(scored, key=lambda name: float(scored[name]["r2"]))
        return {
            "phase": result.phase.name,
            "attacker": best,
            "r2": scored[best]["r2"],
            "reidentified": max(found["reidentified"] for found in scored.values()),
            "chance": sum(len(keys) for keys in truth.keys) / len(truth.keys) / len(candidates.keys),
            "rows": len(truth.keys),
            "among": len(candidates.keys),
            "held": len(held),
            "attackers": attackers,
        }

    def _inverted(
        self, exchanged: Exchanged, held: Examples, truth: _Truth, start: Tensor, centre: Tensor, among: _Candidates
    ) -> dict[str, Any]:
        try:
            with torch.enable_grad():
                found = _inverted(exchanged, held, truth.sent, start)
        except _NothingToMeasure as reason:
            return {"skipped": str(reason)}
        except Exception as error:  # Rounded numbers have no slope; a method may leave the tensors' graph.
            return {"skipped": f"what is sent cannot be differentiated by the inputs: {told(error)}"}
        return _scored(found, truth, centre, among)


def _shares(job: Job, clock: Clock) -> bool:
    """Whether clients send rows in a round."""
    return any(_sends(phase) for phase in job.method.phases(clock))


def _sends(phase: Phase) -> bool:
    return bool(row_upload(phase)) and not is_inside(phase)


def _last_exchange(view: RoundView) -> PhaseResult | None:
    found = [result for result in view.phases if _sends(result.phase) and result.combined.clients]
    return found[-1] if found else None


def _is_due(job: Job, clock: Clock) -> bool:
    """Whether a round that shares rows is the first to do so in its part of the run. A function of the round alone, so
    that a run that was stopped measures in the same rounds."""
    return clock.last or not _shared_since(job, clock, _first_of_part(clock))


def _first_of_part(clock: Clock) -> int:
    part = (clock.round + 1) * PARTS // clock.rounds
    return max(0, -(-part * clock.rounds // PARTS) - 1)


def _shared_since(job: Job, clock: Clock, first: int) -> bool:
    earlier = (Clock(number, clock.rounds, clock.epochs) for number in range(clock.round - 1, first - 1, -1))
    return any(_shares(job, each) for each in earlier)


def _is_thorough(view: RoundView, truth: _Truth) -> bool:
    """Whether weights are inverted too, which takes longest: in the first round that shares rows, and in the last."""
    # Torch's gradients start threads where there is a GPU, and a process with threads must not be forked: the workers
    # of a CPU are, until the last round is over.
    may_fork = torch.cuda.is_available() and truth.sent.device.type == "cpu"
    return view.clock.last or not (may_fork or _shared_since(view.job, view.clock, 0))


@dataclass(frozen=True)
class _Truth:
    """Rows that were sent, and what no attacker is told."""

    sent: Tensor
    keys: tuple[tuple[Key, ...], ...]
    """Whose rows are behind each."""
    rows: Mapping[Key, Tensor]
    personal: Tree
    """What the client that sent most received beside the broadcast."""

    @property
    def width(self) -> int:
        """Numbers of an input."""
        return len(next(iter(self.rows.values())))


def _truth(view: RoundView, result: PhaseResult) -> _Truth:
    """Some of the rows that were sent. Combined rows come without names, in the order of the clients."""
    job, phase = view.job, result.phase
    sent = _joined(result.combined, phase)
    if not len(sent):
        raise _NothingToMeasure("no rows were sent in this round")
    clients, state = result.combined.clients, job.method.client_init(job.setup)
    keys: list[tuple[Key, ...]] = []
    inputs: dict[int, Tensor] = {}
    most = -1
    received: Tree = {}
    counts, first = result.sent_rows.get(row_upload(phase)), 0
    for place, client in enumerate(clients[:_MOST_CLIENTS]):
        member = Member(client, phase.does.personal(view.server, client), state)
        ctx = context_of(job, phase, view.clock, result.shared, member)
        mine = None if counts is None else sent[first : first + counts[place]]
        first += 0 if mine is None else len(mine)
        if job.adversary is not None and client in job.adversary.clients:  # What it sends is no row of anybody's.
            origins = torch.full((len(phase.does.origins(ctx)) if mine is None else len(mine), 1), -1)
        elif mine is None or not (job.gates or (job.defence and job.defence.rows)):
            origins = phase.does.origins(ctx).cpu()
        else:  # A policy may have kept some back, or a filter of the server left some out.
            origins = origins_of(ctx, mine).cpu()
        behind = [tuple((client, row) for row in one if row >= 0) for one in origins.tolist()]
        if len(behind) > most and any(behind):
            most, received = len(behind), member.personal
        keys += behind
        inputs[client] = ctx.data.x
    whole = len(clients) <= _MOST_CLIENTS
    if len(keys) > len(sent) or (whole and len(keys) != len(sent)):
        raise _NothingToMeasure(f"{len(sent)} rows were sent, but the method says that they are {len(keys)}")
    random = torch.Generator().manual_seed(_SEED)
    picked = [
        number for number in torch.randperm(len(keys), generator=random).tolist() if keys[number]
    ][: min(_MOST_SCORED, max(1, _MOST_NUMBERS // sent[0].numel()))]  # fmt: skip
    if not picked:
        raise _NothingToMeasure("no rows are named behind what was sent")
    rows = {key: inputs[key[0]][key[1]].flatten().cpu() for number in picked for key in keys[number]}
    return _Truth(sent[picked].flatten(1), tuple(keys[number] for number in picked), rows, received)


def _joined(combined: Combined, phase: Phase) -> Tensor:
    """The rows of all clients as numbers."""
    name, value = row_upload(phase), combined.values[row_upload(phase)]
    one_a_client = phase.uploads[name].combine is Combine.KEEP
    parts = [value[str(client)] for client in combined.clients] if one_a_client else [value]
    return torch.cat([phase.does.decoded({name: part})[name] for part in parts])


def _held(test: Examples, truth: _Truth, shared: Mapping[str, Any]) -> Examples:
    """The attackers' own rows: of the same kind, and nobody trained on them."""
    widest = max(truth.sent.shape[1], truth.width)
    count = min(len(test), _MOST_HELD, max(_FEWEST_HELD, _MOST_NUMBERS // widest))
    if count < _FEWEST_HELD:
        raise _NothingToMeasure(f"there are {len(test)} test rows for an attacker: expected at least {_FEWEST_HELD}")
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(_SEED))[:count].to(test.x.device)
    rows = test.rows(order)
    device = truth.sent.device
    return Examples(rows.x.to(device), rows.y.to(device)) if shared else rows


class _Pairs(NamedTuple):
    sent: Tensor
    """What clients with the attackers' rows would send."""
    source: Tensor
    """The mean input behind each."""
    apart: int
    """So many of the first have rows behind them that the others have not."""
    quiet: Tensor | None
    """What they would send if no noise protected it; None where none does."""


def _pairs(exchanged: Exchanged, held: Examples, device: torch.device) -> _Pairs:
    third = len(held) // 3
    halves = (Examples(held.x[:third], held.y[:third]), Examples(held.x[third:], held.y[third:]))

    def both(exchanged: Exchanged) -> tuple[list[tuple[Tensor, Tensor]], ...]:
        # No client is imitated twice: noise that both halves have would look like something to learn.
        return tuple(_sent_of(exchanged, rows, device, number * MOST_CLIENTS) for number, rows in enumerate(halves))

    parts = both(exchanged)
    if not all(parts) or sum(len(sent) for part in parts for sent, _ in part) < _FEWEST_HELD:
        raise _NothingToMeasure("clients that hold the attackers' rows would send next to nothing")
    sent, source = (torch.cat([pair[place] for part in parts for pair in part]) for place in (0, 1))
    quiet = None
    silent = replace(exchanged, job=without_noise(exchanged.job))
    if _differ(exchanged, silent, held):
        quiet = torch.cat([sent for part in both(silent) for sent, _ in part])
    return _Pairs(sent, source, sum(len(sent) for sent, _ in parts[0]), quiet)


def _differ(first: Exchanged, second: Exchanged, rows: Examples) -> bool:
    """Whether a client sends something else in one exchange than in another one."""
    few = rows.rows(torch.arange(_FEWEST_HELD, device=rows.y.device))
    sent = [_sent_of(each, few, torch.device("cpu"), 0) for each in (first, second)]
    return any(not torch.equal(one, other) for (one, _), (other, _) in zip(*sent, strict=True))


def _sent_of(exchanged: Exchanged, rows: Examples, device: torch.device, first: int) -> list[tuple[Tensor, Tensor]]:
    """What clients with such rows would send, about as many rows as they have."""
    found = []
    left = len(rows)
    for one in stand_ins(exchanged, rows, len(rows), first):
        x = dealt(one, rows, _SEED + one.number)
        found.append((one(x)[:left].to(device), one.sources(x)[:left].to(device)))
        left -= len(found[-1][0])
    return found


def _inverted(exchanged: Exchanged, held: Examples, sent: Tensor, start: Tensor) -> Tensor:
    """Inputs that the weights give what was sent for, as far as that was not noise. Where a row sent has several behind
    it: all of them alike."""
    found: list[Tensor] = []
    done = 0
    exchanged = replace(exchanged, job=without_noise(exchanged.job))
    for one in stand_ins(exchanged, held, len(sent)):
        groups = groups_of(one)
        if groups is None:
            raise _NothingToMeasure("rows are behind several of the rows sent: they cannot be taken apart")
        function, count = groups
        part = [(done + number) % len(sent) for number in range(count)]
        begin = start[part].to(one.rows.x).reshape(-1, *one.rows.x.shape[1:])
        found.append(inverted(function, sent[part].to(one.rows.x), begin).flatten(1)[: len(sent) - done])
        done += count
        if done >= len(sent):
            break
    if done < len(sent):
        raise _NothingToMeasure("clients that hold the attackers' rows would send next to nothing")
    return torch.cat(found)


@dataclass
class _Candidates:
    """Training rows among which the one behind a reconstruction is looked for."""

    keys: list[Key]
    x: Tensor
    most: int = _MOST_CANDIDATES
    _known: set[Key] = field(default_factory=set)

    @classmethod
    def of(cls, job: Job, width: int) -> _Candidates:
        """Rows of clients drawn at random: all there are, up to a limit."""
        most = max(_MOST_SCORED, min(_MOST_CANDIDATES, _MOST_NUMBERS // width))
        keys: list[Key] = []
        parts: list[Tensor] = []
        random = torch.Generator().manual_seed(_SEED)
        for client in torch.randperm(len(job.federation), generator=random).tolist():
            x = job.federation.examples(client).x[: most - len(keys)]
            keys += [(client, row) for row in range(len(x))]
            parts.append(x.flatten(1).cpu())
            if len(keys) >= most:
                break
        return cls(keys, torch.cat(parts), most, set(keys))

    def with_rows(self, rows: Mapping[Key, Tensor]) -> _Candidates:
        """The same with some rows among them, in place of others where there are too many."""
        new = [key for key in rows if key not in self._known]
        room = max(0, self.most - len(new))
        kept = [number for number, key in enumerate(self.keys) if key in rows or number < room]
        x = self.x[kept].clone()
        keys = [self.keys[number] for number in kept]
        for number, key in enumerate(keys):
            if key in rows:  # As the client saw it in this round.
                x[number] = rows[key]
        added = torch.stack([rows[key] for key in new]).to(x) if new else x[:0]
        return _Candidates([*keys, *new], torch.cat([x, added]), self.most)


def _scored(guess: Tensor, truth: _Truth, centre: Tensor, candidates: _Candidates) -> dict[str, Any]:
    """R2 of all rows behind what was sent, beside guessing the mean of the attackers' own rows; and in which part of
    all cases the nearest of all candidates is such a row."""
    guess = guess.double().cpu()
    which = [number for number, behind in enumerate(truth.keys) for _ in behind]
    rows = torch.stack([truth.rows[key] for behind in truth.keys for key in behind]).double()
    spread = float((rows - centre.cpu()).square().sum())
    r2 = 1 - float((rows - guess[which]).square().sum()) / spread if spread else math.nan
    if not math.isfinite(r2):
        raise _NothingToMeasure("the rows sent are all alike, or the reconstruction is not finite")
    hits = _hits(guess, truth.keys, candidates)
    return {"r2": r2, "reidentified": hits / len(truth.keys)}


def _hits(guess: Tensor, keys: Sequence[Sequence[Key]], candidates: _Candidates) -> int:
    # From their middle and in double precision: numbers far from zero, a year or an amount, would all look alike.
    middle = candidates.x.mean(0, dtype=torch.double)
    guess = guess - middle
    places = {key: number for number, key in enumerate(candidates.keys)}
    # Of each distance what differs from candidate to candidate.
    nearness = torch.cat([_nearness(guess, part.double() - middle) for part in torch.split(candidates.x, _AT_ONCE)], 1)
    nearest = nearness.argmin(1)
    hits = 0
    for number, behind in enumerate(keys):
        own = torch.tensor([*(places[key] for key in behind), int(nearest[number])])
        x = candidates.x[own].double() - middle
        distance = (x * (x - 2 * guess[number])).sum(1)
        # The same row may be there twice: what is as near as the nearest was found.
        hits += int(distance[:-1].min() <= distance[-1])
    return hits


def _nearness(guess: Tensor, x: Tensor) -> Tensor:
    return x.square().sum(1) - 2 * guess @ x.T
