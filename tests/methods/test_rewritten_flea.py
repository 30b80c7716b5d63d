"""FLea and FedMix against whole rounds written anew from the papers and the released code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from rewritten import Played, State, Turn, descend, divergence, labels, loaded, soft_entropy, state_of
from torch import Tensor
from torch.nn.functional import cross_entropy

from support import EXACT

Rows = tuple[Tensor, Tensor]
Form = Callable[[Tensor, Tensor], Tensor]
BATCHES = (24, 19, 30, 6, 16, 27, 18, 21)
"""Sizes with which batches of 8 fit, do not, and leave one row."""


def distances(z: Tensor, floor: float = 1e-7) -> Tensor:
    """Euclidean, one pair after another; rows that are the same have none, and no gradient."""
    flat = z.flatten(1)
    rows = []
    for a in flat:
        square = torch.stack([(a - b).square().sum() for b in flat])
        rows.append(torch.where(square > floor, square, 1.0).sqrt() * (square > floor))
    return torch.stack(rows)


def centred(d: Tensor) -> Tensor:
    middle = torch.eye(len(d), dtype=d.dtype) - 1 / len(d)
    return middle @ d @ middle


def squared_correlation(x: Tensor, f: Tensor) -> Tensor:
    a, b = centred(distances(x)), centred(distances(f))
    return (a * b).mean() / ((a * a).mean() * (b * b).mean()).sqrt()


def traces(x: Tensor, f: Tensor, *, centre: bool, rv: bool) -> Tensor:
    x, f = x.flatten(1), f.flatten(1)
    if centre:
        x, f = x - x.mean(0), f - f.mean(0)
    xx, ff = x.T @ x, f.T @ f
    scale = (torch.trace(xx @ xx) * torch.trace(ff @ ff)).sqrt() if rv else torch.trace(xx) * torch.trace(ff)
    return torch.trace(x.T @ f @ f.T @ x) / scale


def released_correlation(x: Tensor, f: Tensor) -> Tensor:
    def centred_roots(z: Tensor) -> Tensor:
        z = z.flatten(1)
        square = z.square().sum(1)
        root = torch.clamp(square[:, None] - 2 * z @ z.T + square[None], min=1e-7).sqrt()
        return root - root.mean(1, keepdim=True) - root.mean(0, keepdim=True) + root.mean()

    def of(p: Tensor, q: Tensor) -> Tensor:
        return ((p * q).sum() / len(x) ** 2 + 1e-7).sqrt()

    a, b = centred_roots(x), centred_roots(f)
    return of(a, b) / ((of(a, a) + 1e-7).sqrt() * (of(b, b) + 1e-7).sqrt())


def collected(played: Played, clients: list[int], state: State, *, repeats: bool) -> Rows:
    """What the round's clients send of their chosen rows, with the new model, in eval mode."""
    model, features, found = loaded(state, train=False), [], []
    for client in clients:
        x, y = played.rows(client)
        count = int(0.1 * len(y)) if repeats else max(1, int(0.1 * len(y)))
        rows = played.plan.fixed(client, "shared rows").choice(len(y), count, replace=repeats)
        with torch.no_grad():
            features.append(model.first(x[rows]))
        found.append(y[rows])
    return torch.cat(features), torch.cat(found)


def mixed(f: Tensor, y: Tensor, buffer: Rows, rows: Tensor, lam: Tensor) -> Rows:
    """Eq. 2: the weight is the local row's."""
    count, column = len(rows), lam.reshape(-1, 1, 1, 1)
    target = lam[:, None] * labels(y[:count]) + (1 - lam[:, None]) * labels(buffer[1][rows])
    return column * f[:count] + (1 - column) * buffer[0][rows], target


class Buffer:
    """What the clients of the last rounds sent, newest first."""

    def __init__(self, played: Played, history: int = 1, *, repeats: bool = False) -> None:
        self.played, self.history, self.repeats = played, history, repeats
        self.rounds: list[Rows] = []

    @property
    def rows(self) -> Rows | None:
        if not self.rounds:
            return None
        return torch.cat([f for f, _ in self.rounds]), torch.cat([y for _, y in self.rounds])

    def after(self, round: int, state: State) -> None:
        new = collected(self.played, self.played.cohort(round), state, repeats=self.repeats)
        self.rounds = [new, *self.rounds][: self.history]
        sent, (f, y) = self.played.server(round), self.rows or new
        assert torch.allclose(sent["features"], f, rtol=0, atol=EXACT)
        assert torch.equal(sent["labels"], y)


@pytest.mark.parametrize(
    ("values", "form"),
    [
        ({}, lambda x, f: squared_correlation(x, f).sqrt()),
        ({"power": 2, "kl": "local-global"}, squared_correlation),
        ({"decorrelation": "trace"}, lambda x, f: traces(x, f, centre=True, rv=False)),
        ({"decorrelation": "trace", "centred": False}, lambda x, f: traces(x, f, centre=False, rv=False)),
        ({"decorrelation": "rv", "centred": False}, lambda x, f: traces(x, f, centre=False, rv=True)),
        ({"history": 2}, lambda x, f: squared_correlation(x, f).sqrt()),
        ({"pairing": "truncate"}, lambda x, f: squared_correlation(x, f).sqrt()),
    ],
)
def test_flea_is_the_papers(values: dict[str, Any], form: Form) -> None:
    played = Played("flea", values, rounds=4)
    buffer = Buffer(played, values.get("history", 1))

    def local(turn: Turn) -> State:
        (x, y), random = turn.rows, turn.random
        model, teacher = loaded(turn.state), loaded(turn.state, train=False)
        optimizer = turn.adam(model)
        for rows in turn.batches():
            f, target = model.first(x[rows]), labels(y[rows])
            relation, judged = form(x[rows], f), teacher(x[rows])
            if buffer.rows is not None:
                count = len(buffer.rows[1])
                theirs = random.loader(count, 8)[: len(rows)] if "pairing" in values else random.cycle(count, len(rows))
                f, target = mixed(f, y[rows], buffer.rows, theirs, random.beta(2.0, len(theirs)))
                judged = teacher.head(teacher.second(f.detach()))
            output = model.head(model.second(f))
            pair = (output, judged.detach()) if "kl" in values else (judged.detach(), output)
            descend(optimizer, soft_entropy(output, target) + divergence(*pair) + 3 * relation)
        return state_of(model)

    played.follow(local, buffer.after)


def test_the_released_code_is_the_preset_official() -> None:
    played = Played("flea:official", sizes=BATCHES)
    buffer = Buffer(played, repeats=True)

    def local(turn: Turn) -> State:
        (x, y), random, number = turn.rows, turn.random, turn.round
        model, teacher = loaded(turn.state), loaded(turn.state, train=False)
        batches = turn.batches()
        assert len(batches) == (3 if number == 0 else 1) * 2 * (len(y) // 8 + 1)
        for rows in batches:
            f = model.first(x[rows])
            relation, output = released_correlation(x[rows], f), model(x[rows])
            loss = cross_entropy(output, y[rows]) + (3 - 0.1 * number) * relation
            if buffer.rows is None:
                loss = loss + 0.5 * divergence(teacher(x[rows]).detach(), output)
            else:
                theirs = random.loader(len(buffer.rows[1]), 8)[: len(rows)]
                both, target = mixed(f, y[rows], buffer.rows, theirs, random.beta(2.0, len(theirs)))
                loss = loss + soft_entropy(model.head(model.second(both)), target)
                alone = buffer.rows[0][theirs]
                student = model.head(model.second(alone))
                loss = loss + divergence(teacher.head(teacher.second(alone)).detach(), student)
            # A new Adam for every batch, and a rate that falls linearly.
            descend(torch.optim.Adam(model.parameters(), 1e-3 * (1 - 0.018 * number)), loss)
        return state_of(model)

    assert [played.cohort(round) for round in range(3)] == [
        sorted(np.random.RandomState(round).choice(8, 4, replace=False).tolist()) for round in range(3)
    ]
    played.follow(local, buffer.after)


def test_fedmix_is_fleas_form_with_an_unmixed_pass_for_batchnorm() -> None:
    played = Played("fedmix:flea", sizes=BATCHES)
    inputs, targets = [], []
    for client in range(len(played)):
        x, y = played.rows(client)
        order = played.plan.fixed(client, "averaged rows").permutation(len(y))
        for group in order[: len(y) // 10 * 10].reshape(-1, 10):
            inputs.append(x[group].mean(0))
            targets.append(labels(y[group]).mean(0))
    mean_x, mean_y = torch.stack(inputs), torch.stack(targets)

    def local(turn: Turn) -> State:
        (x, y), random, model = turn.rows, turn.random, loaded(turn.state)
        optimizer = turn.adam(model)
        for rows in turn.batches():
            theirs, lam = random.cycle(len(mean_x), len(rows)), random.beta(2.0, 1)
            model(x[rows])
            output = model(lam * x[rows] + (1 - lam) * mean_x[theirs])
            descend(optimizer, soft_entropy(output, lam * labels(y[rows]) + (1 - lam) * mean_y[theirs]))
        return state_of(model)

    played.follow(local)
