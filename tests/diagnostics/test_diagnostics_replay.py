"""A repeated turn is the turn that was combined."""

from __future__ import annotations

import pytest
import torch

from fewfed import tree
from fewfed.diagnostics.replay import refuse_unrepeatable, repeat
from fewfed.engine.loop import RoundView
from fewfed.errors import ConfigError
from fewfed.tree import Tree
from support import digits_federation, job_of, run, same


class Repeats:
    """Repeats every turn of every round and averages the models by hand."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tree, Tree]] = []
        self.sizes: list[list[int]] = []

    def after_round(self, view: RoundView) -> None:
        turns = [repeat(view, client) for client in sorted(view.cohort)]
        weights = [view.job.federation.size(turn.client) for turn in turns]
        total = sum(weights)
        mean = tree.map(
            lambda *leaves: sum(w / total * leaf.double() for w, leaf in zip(weights, leaves, strict=True)).float(),
            *(turn.model for turn in turns),
        )
        self.pairs.append((mean, view.server["model"]))
        self.sizes.append([len(turn.batches) for turn in turns])


@pytest.mark.parametrize("method", ["fedavg", "flea", "fedmix", "fedsam", "flea:official"])
def test_repeated_models_average_to_the_server_model(method: str) -> None:
    repeats = Repeats()
    job = job_of(method, digits_federation(rows=[10 + k for k in range(10)]))
    run(job, rounds=2, observers=[repeats])
    for ours, servers in repeats.pairs:
        for (name, a), (_, b) in zip(tree.leaves(ours), tree.leaves(servers), strict=True):
            assert torch.allclose(a, b, atol=1e-6), name


def test_batches_are_those_of_the_plan() -> None:
    repeats = Repeats()
    run(job_of("fedsam", digits_federation(rows=12)), rounds=1, observers=[repeats])
    assert repeats.sizes == [[4, 4, 4]]  # two epochs of ceil(12 / 8) steps, though the method looks twice at each


def test_looking_changes_nothing() -> None:
    watched = run(job_of("flea"), observers=[Repeats()])
    assert same(watched.server, run(job_of("flea")).server)


@pytest.mark.parametrize(("method", "reason"), [("fedbn", "keeps state"), ("local", "no model")])
def test_methods_whose_turns_cannot_be_repeated_are_refused(method: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        refuse_unrepeatable(job_of(method))
