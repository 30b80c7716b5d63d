"""Nothing crosses the boundary that the statement does not announce, and all that it announces crosses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from conformance_cases import every_method, job_for, numbers_apart
from torch import Tensor

from fewfed import tree
from fewfed.conformance.clients import SIZES
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.engine.packet import Packet
from fewfed.phase import Clock, Phase
from fewfed.privacy.statement import Exchange, Form, Sent, Spans, exchanges_of
from fewfed.tree import Tree

ROUNDS = 3
AROUND = ("sem(flea)", "ccvr(flea)", "fedfa(scaffold)")
"""Wrappers around methods with more than one phase, or state."""


@dataclass
class Crossed:
    """One phase of one round, as it crossed."""

    round: int
    phase: str
    received: dict[int, Tree]
    packets: dict[int, Packet] = field(default_factory=dict)
    up: int = -1
    """As the loop counts it."""


@dataclass
class Everything:
    """The witness that keeps all, and the observer that adds what was counted."""

    crossed: list[Crossed] = field(default_factory=list)

    def begins(self, phase: Phase, clock: Clock, shared: Tree, members: Iterable[int]) -> frozenset[int]:
        self.crossed.append(Crossed(clock.round + 1, phase.name, {c: {"shared": tree.clone(shared)} for c in members}))
        return frozenset(members)

    def receives(self, client: int, personal: Tree) -> None:
        self.crossed[-1].received[client]["personal"] = tree.clone(personal)

    def sends(self, packet: Packet) -> None:
        self.crossed[-1].packets[packet.sender] = Packet(
            packet.round, packet.phase, packet.sender, packet.weight, tree.clone(packet.arrays), packet.metrics
        )

    def ends(self) -> None:
        pass

    def after_round(self, view: RoundView) -> None:
        for crossed in self.crossed:
            if crossed.round == view.clock.round + 1:
                crossed.up = view.record.phases[crossed.phase].traffic.up


def played(job: Job) -> list[Crossed]:
    """All sites take part, so that whatever is announced comes up."""
    everything = Everything()
    run_rounds(job, Sequential(job), [everything], rounds=ROUNDS, cohort=len(SIZES), witness=everything)
    return everything.crossed


def within(round: int, spans: Spans) -> bool:
    return any(first <= round <= last for first, last in spans)


def fitting(path: str, leaf: Tensor, forms: Iterable[Form]) -> Form:
    """The form that announces an array."""
    for form in forms:
        same = form.path == path and form.dtype == str(leaf.dtype) and len(form.shape) == leaf.dim()
        if same and all(wanted in (None, found) for wanted, found in zip(form.shape, leaf.shape, strict=True)):
            return form
    raise AssertionError(f"'{path}', {leaf.dtype} {tuple(leaf.shape)}, is not announced: {list(forms)}")


def announced(exchange: Exchange, round: int) -> dict[str, Sent]:
    return {sent.name: sent for sent in exchange.sends if within(round, sent.rounds)}


def check_sent(crossed: Crossed, exchange: Exchange) -> Iterator[str]:
    """Raise where a packet has what is not announced, or lacks what is; the names of its metrics."""
    assert exchange.header is not None
    wanted = announced(exchange, crossed.round)
    in_all = 0
    for client, packet in crossed.packets.items():
        assert packet.arrays.keys() == wanted.keys()
        for name, sent in wanted.items():
            leaves = dict(tree.leaves({name: packet.arrays[name]}))
            used = {fitting(path, leaf, sent.forms) for path, leaf in leaves.items()}
            assert used == set(sent.forms), "everything that is announced is sent"
            rows = {len(leaf) for leaf in leaves.values()} if sent.rows_per_row else {0}
            assert len(rows) == 1
            assert max(rows) <= sent.most_rows(SIZES[client])
            assert sent.size(max(rows)) == tree.nbytes({name: packet.arrays[name]})
            in_all += sent.size(max(rows))
        header = exchange.header
        assert packet.metrics.keys() <= set(header.metrics)
        assert 0 < packet.weight <= header.weight_per_row * max(SIZES) + header.weight_beside
        per_row = header.weight_per_row if header.weighting == "uniform" else 0.0
        assert header.tells_rows or packet.weight == per_row + header.weight_beside
        yield from packet.metrics
    assert in_all == crossed.up, "bytes are those that are counted"


def check_received(crossed: Crossed, exchange: Exchange) -> Iterator[Form]:
    for received in crossed.received.values():
        for path, leaf in tree.leaves(received):
            yield fitting(path, leaf, exchange.receives)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("spec", [*numbers_apart(), *AROUND])
def test_what_crosses_is_what_the_statement_says(spec: str) -> None:
    job = job_for(spec)
    statement: Mapping[str, Exchange] = {each.name: each for each in exchanges_of(job, ROUNDS)}
    crossed = played(job)
    expected = [(n, each.name) for n in range(1, ROUNDS + 1) for each in statement.values()
                if each.crosses and within(n, each.rounds)]  # fmt: skip
    assert sorted((each.round, each.phase) for each in crossed) == sorted(expected)
    metrics: dict[str, set[str]] = {}
    forms: dict[str, set[Form]] = {}
    for each in crossed:
        exchange = statement[each.phase]
        assert exchange.header is not None
        assert not exchange.header.unknown
        assert not exchange.receives_unknown
        assert len(each.packets) == len(each.received) == len(SIZES), "nobody failed"
        metrics.setdefault(each.phase, set()).update(check_sent(each, exchange))
        forms.setdefault(each.phase, set()).update(check_received(each, exchange))
    for name, exchange in statement.items():
        if exchange.crosses and exchange.header is not None:
            assert metrics[name] == set(exchange.header.metrics)
            assert forms[name] == set(exchange.receives)
            assert all(sent.reaches is not None for sent in exchange.sends)


def test_the_check_can_fail() -> None:
    job = job_for("flea")
    statement = {each.name: each for each in exchanges_of(job, ROUNDS)}
    crossed = played(job)
    other: Any = {each.name: each for each in exchanges_of(job_for("fedavg"), ROUNDS)}
    share = next(each for each in crossed if each.phase == "share")
    train = [each for each in crossed if each.phase == "train"]
    with pytest.raises(AssertionError):
        list(check_sent(share, statement["train"]))
    with pytest.raises(AssertionError):
        list(check_sent(train[0], other["train"]))  # Loss terms that nobody announced.
    with pytest.raises(AssertionError, match="not announced"):
        list(check_received(train[1], other["train"]))  # Rows of others.


def test_every_method_is_looked_at() -> None:
    assert set(every_method()) <= {spec if isinstance(spec, str) else spec.values[0] for spec in numbers_apart()}
