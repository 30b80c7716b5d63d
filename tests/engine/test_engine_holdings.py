"""What is sent once is counted once: the engine's rule against a brute-force count of who has received what."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewfed import tree
from fewfed.engine.holdings import Holdings
from fewfed.engine.loop import RoundView
from fewfed.phase import Cohort
from fewfed.tree import Tree
from support import digits_federation, job_of, run


@dataclass
class ByHand:
    """Every client remembers the last content it got under each name, as bytes."""

    held: dict[tuple[int, str], bytes] = field(default_factory=dict)
    down: list[int] = field(default_factory=list)

    def after_round(self, view: RoundView) -> None:
        sent = 0
        for result in view.phases:
            if result.phase.cohort in (Cohort.SERVER, Cohort.UNION):
                continue
            members = range(len(view.job.federation)) if result.phase.cohort is Cohort.ALL else view.cohort
            for client in members:
                for name, content in result.shared.items():
                    now = written({name: content})
                    sent += 0 if self.held.get((client, name)) == now else tree.nbytes({name: content})
                    self.held[client, name] = now
        self.down.append(sent)


def written(content: Tree) -> bytes:
    return b"".join(f"{path} {leaf.dtype} {leaf.shape}".encode() + bytes(leaf.numpy().tobytes())
                    for path, leaf in tree.leaves(content))  # fmt: skip


@pytest.mark.parametrize(
    "method", ["fedavg", "fedmix", "feddata", "fedbr", "flea", "fedharmo", "fedgen-latent", "ccvr"]
)
def test_the_rule_is_that_of_clients_who_remember_what_they_got(method: str) -> None:
    """Of these methods nobody gets anything of its own but in FedBR's first phase, where it is one number a client."""
    by_hand = ByHand()
    recorder = run(job_of(method, digits_federation(6, 14)), rounds=5, cohort=3, observers=[by_hand])
    found = [metrics["bytes"]["down"] for metrics in recorder.metrics]
    found[0] -= 6 * 8 if method == "fedbr" else 0
    assert found == by_hand.down


def test_a_pool_is_sent_to_each_client_once() -> None:
    recorder = run(job_of("fedmix", digits_federation(6, 20)), rounds=4, cohort=3)
    met: set[int] = set()
    for view in recorder.views:
        shared = view.phases[-1].shared
        model = tree.nbytes({"model": shared["model"]})
        pool = tree.nbytes({name: shared[name] for name in ("mean_x", "mean_y")})
        new = len(set(view.cohort) - met)
        met |= set(view.cohort)
        assert view.metrics["bytes"]["down"] == 3 * model + new * pool
        assert view.metrics["bytes"]["down_if_sent_every_time"] == 3 * (model + pool)
        phase = view.metrics["phases"]["train"]
        assert phase["bytes_down"] == 3 * model + new * pool
        assert phase["bytes_down_if_sent_every_time"] == 3 * (model + pool)


def test_a_model_that_was_received_in_one_phase_is_not_sent_for_the_next() -> None:
    """FLea's second phase hands out the average; whoever trains in the next round as well holds it already."""
    recorder = run(job_of("flea", digits_federation(3, 20)), rounds=2, cohort=3)
    model = tree.nbytes({"model": recorder.views[0].phases[0].shared["model"]})
    second = recorder.views[1].phases[0]
    assert second.record.traffic.down == 3 * (tree.nbytes(second.shared) - model)


contents = st.sampled_from([0.0, 1.0, 2.0])
broadcasts = st.dictionaries(st.sampled_from(["model", "pool", "labels"]), contents, min_size=1)
phases = st.lists(st.tuples(broadcasts, st.sets(st.integers(0, 4))), max_size=12)


@given(phases, st.integers(0, 12))
def test_any_sequence_of_broadcasts_with_a_restart_in_it(
    steps: list[tuple[dict[str, float], set[int]]], cut: int
) -> None:
    """A content that comes back after another was sent counts as new: nobody keeps what was replaced."""
    holdings = Holdings()
    current: dict[str, float] = {}
    held: dict[tuple[int, str], bool] = {}
    for number, (broadcast, members) in enumerate(steps):
        if number == cut:
            holdings = Holdings.from_json(holdings.as_json())
        shared = {name: {"leaf": torch.full((3,), value)} for name, value in broadcast.items()}
        holdings.announce(shared)
        for name, value in broadcast.items():
            if current.get(name) != value:
                held = {key: has for key, has in held.items() if key[1] != name}
            current[name] = value
        for client in sorted(members):
            expected = [name for name in broadcast if not held.get((client, name))]
            assert holdings.missing(client) == expected
            assert holdings.deliver(client) == 12 * len(expected)
            held |= {(client, name): True for name in broadcast}


def test_content_counts_not_the_object_nor_its_name() -> None:
    holdings = Holdings()
    holdings.announce({"pool": torch.ones(4)})
    assert holdings.deliver(1) == 16
    holdings.announce({"pool": torch.ones(4)})
    assert holdings.deliver(1) == 0
    for other in (torch.ones(4, dtype=torch.float64), torch.ones(5), torch.tensor([1.0, 1.0, 1.0, 2.0])):
        holdings.announce({"pool": other})
        assert holdings.deliver(1) == tree.nbytes({"pool": other})
