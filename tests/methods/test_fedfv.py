"""FedFV: projections of the specification's example, and what they must never change."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quadratics import parabolas, weight

from fewfed import tree
from fewfed.method import Combined
from fewfed.methods.fedfv import FedFV, fair_update
from fewfed.methods.registry import choose
from fewfed.tree import Tree
from support import digits_federation, digits_network, job_of, run


def vector(*values: float) -> Tree:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def close(found: Tree, *expected: float) -> None:
    torch.testing.assert_close(found["w"], torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_two_conflicting_updates() -> None:
    """(1,0) and (−1,1) become (.5,.5) and (0,1); their mean (.25,.75) is rescaled to 0.5, the plain mean's length."""
    close(fair_update([vector(1, 0), vector(-1, 1)], [0, 1], 0.0, []), 0.158114, 0.474342)


def test_the_client_with_the_largest_loss_is_left_alone() -> None:
    """Only the first is projected: mean of (.5,.5) and (−1,1) is (−.25,.75), again of length 0.5."""
    scale = 0.5 / math.hypot(0.25, 0.75)
    close(fair_update([vector(1, 0), vector(-1, 1)], [0, 1], 0.5, []), -0.25 * scale, 0.75 * scale)


def test_the_length_is_taken_over_all_tensors_together() -> None:
    update = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1.0, 2.0, 2.0])}
    found = fair_update([update, update], [0, 1], 0.0, [])
    assert float(tree.dot(found, found).sqrt()) == pytest.approx(math.sqrt(34), rel=1e-6)


@given(
    st.lists(st.tuples(*[st.integers(-5, 5)] * 3), min_size=1, max_size=5),
    st.floats(0, 1),
    st.randoms(use_true_random=False),
)
def test_the_length_is_that_of_the_plain_mean(rows: list[tuple[int, ...]], alpha: float, random: Random) -> None:
    """Unless the projections left nothing, up to rounding, whose direction could be kept."""
    updates = [vector(*row) for row in rows]
    order = random.sample(range(len(rows)), len(rows))
    mean = torch.stack([update["w"] for update in updates]).mean(0)
    found = fair_update(updates, order, alpha, [])["w"]
    assert torch.isfinite(found).all()
    assert float(found.norm()) in (0.0, pytest.approx(float(mean.norm()), abs=1e-9))


def test_an_update_too_small_to_square_is_no_direction() -> None:
    close(fair_update([vector(0, 5e-324), vector(0, -1)], [0, 1], 1.0, [[vector(0, 5e-324)]]), 0.0, -0.5)


@given(st.lists(st.tuples(*[st.floats(0, 5)] * 3), min_size=1, max_size=5))
def test_updates_that_agree_are_averaged(rows: list[tuple[float, ...]]) -> None:
    updates = [vector(*row) for row in rows]
    mean = torch.stack([update["w"] for update in updates]).mean(0)
    torch.testing.assert_close(fair_update(updates, range(len(rows)), 0.0, [])["w"], mean)


def test_the_mean_gives_way_to_absent_clients() -> None:
    """(1,1) against the absent (−2,0) keeps (0,1), rescaled to √2; an absent client that agrees changes nothing."""
    close(fair_update([vector(1, 1)], [0], 0.0, [[vector(-2, 0), vector(5, 1)]]), 0.0, math.sqrt(2))
    close(fair_update([vector(1, 1)], [0], 0.0, [[vector(2, 0)]]), 1.0, 1.0)


def absorbed(method: FedFV, server: Tree, client: int, w: float) -> Tree:
    """A round in which one client reports a model one step further along its direction."""
    model = {"params": {"w": server["model"]["params"]["w"] - w}, "buffers": {}}
    values = {"model": {str(client): model}, "start_loss": {str(client): torch.tensor(1.0)}}
    return method.absorb(server, Combined(values, (client,), (1.0,)))


def test_history_holds_the_last_update_of_clients_absent_for_less_than_tau_rounds() -> None:
    method = FedFV(tau=2)
    server: Tree = {
        "model": {"params": {"w": torch.zeros(2)}, "buffers": {}},
        "round": torch.tensor(0),
        "past": {},
    }
    seen = []
    for client in (0, 1, 0, 2, 2):
        server = absorbed(method, server, client, 1.0)
        seen.append({round: set(kept) for round, kept in server["past"].items()})
    assert seen == [
        {"0": {"0"}},
        {"0": {"0"}, "1": {"1"}},
        {"1": {"1"}, "2": {"0"}},
        {"2": {"0"}, "3": {"2"}},
        {"4": {"2"}},
    ]
    assert absorbed(FedFV(tau=0), {**server, "past": {}}, 0, 1.0)["past"] == {}


def test_the_loss_is_that_of_the_received_model_on_the_clients_own_rows() -> None:
    federation = digits_federation(3, [5, 12, 9])
    job = job_of("fedfv", federation)
    sent = run(job, rounds=1, cohort=3).views[0].phases[0].combined.values["start_loss"]
    net = digits_network()
    for client in range(3):
        data = federation.examples(client)
        expected = torch.nn.functional.cross_entropy(net.apply(net.model(), data.x, train=False), data.y)
        torch.testing.assert_close(sent[str(client)], expected)


def test_one_round_without_conflict_is_the_uniform_mean() -> None:
    done = run(parabolas("fedfv", (1.0, 3.0), sizes=(1, 9), lr=0.5, epochs=1), rounds=1, cohort=2)
    assert weight(done.server["model"]) == pytest.approx(1.0)


def test_batch_norm_statistics_are_averaged_uniformly() -> None:
    done = run(job_of("fedfv", digits_federation(3, [4, 12, 8])), rounds=1, cohort=3)
    models = done.views[0].phases[0].combined.values["model"]
    for name, value in done.server["model"]["buffers"].items():
        expected = torch.stack([models[str(client)]["buffers"][name] for client in range(3)]).mean(0)
        torch.testing.assert_close(value, expected)


def test_the_preset_of_sems_tables() -> None:
    assert choose("fedfv:sem").method == FedFV(alpha=0.5, tau=0)


def test_trap_21_the_norm_of_a_model_runs_over_all_its_tensors() -> None:
    model = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1.0, 2.0, 2.0])}
    assert float(tree.dot(model, model).sqrt()) == pytest.approx(math.sqrt(34), abs=1e-6)
