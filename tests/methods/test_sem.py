"""SEM: the specification's examples through the real engine, and what it must not mix up around other methods."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from quadratics import UNEQUAL, UNEQUAL_OPTIMUM, parabolas, weight

from fewfed import tree
from fewfed.engine.client_store import ClientStore
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.loop import run_rounds
from fewfed.errors import ConfigError, DataError
from fewfed.method import Context
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.fedfv import FedFV
from fewfed.methods.fedprox import FedProx
from fewfed.methods.parts.pairing import pair
from fewfed.methods.registry import choose
from fewfed.methods.sem import Sem
from fewfed.phase import Clock
from fewfed.plan import Random
from fewfed.tree import Tree
from support import Recorder, digits_federation, job_of, run, states

TWO = {"targets": (0.0, 1.0), "sizes": (1, 3)}


def common(server: Tree) -> float:
    """The weight of the model that the wrapped method's server holds."""
    return weight(server["inner"]["model"])


def slots(done: Recorder) -> dict[int, float]:
    """Final models by uploader; the wrapped method must upload them one by one."""
    models = done.views[0].phases[1].combined.values["model"]
    return {int(client): weight(model) for client, model in models.items()}


def test_slots_weigh_as_much_as_both_their_clients() -> None:
    """One step a leg: slots 0.5 (1→2) and 0.25 (2→1), both of weight 4; two steps of FedAvg give 0.5625."""
    done = run(parabolas("sem(fedavg)", **TWO), rounds=1, cohort=2)
    assert common(done.server) == pytest.approx(0.375)
    assert done.views[0].phases[1].combined.weights == (4.0, 4.0)
    assert slots(run(parabolas(Sem(FedFV(tau=0)), **TWO), rounds=1, cohort=2)) == pytest.approx({0: 0.25, 1: 0.5})
    assert weight(run(parabolas("fedavg", **TWO), rounds=1, cohort=2).server["model"]) == pytest.approx(0.5625)


def test_a_ring_of_three() -> None:
    """1→2→3→1: slots 0.5, 2.25 and 1.0 of weights 3, 5 and 4."""
    ring = {0: 1, 1: 2, 2: 0}
    seed = next(seed for seed in range(50) if pair("cycle", (0, 1, 2), Random(seed, "sem", 0)) == ring)
    three = {"targets": (0.0, 1.0, 4.0), "sizes": (1, 2, 3), "seed": seed}
    done = run(parabolas("sem(fedavg)", **three), rounds=1, cohort=3)
    assert common(done.server) == pytest.approx(1.3958333, abs=1e-7)
    assert done.views[0].phases[1].combined.weights == (4.0, 3.0, 5.0)
    finals = slots(run(parabolas(Sem(FedFV(tau=0)), **three), rounds=1, cohort=3))
    assert finals == pytest.approx({1: 0.5, 2: 2.25, 0: 1.0})


@pytest.mark.parametrize(("pairing", "cohort"), [("self", 3), ("cycle", 1), ("derangement", 1), ("swap", 1)])
def test_its_own_partner_is_the_wrapped_method_bit_for_bit(pairing: str, cohort: int) -> None:
    """One row a client, so that every batch is the same; BatchNorm statistics travel with the model."""
    federation, training = digits_federation(5, 1), {"optimizer": "sgd", "lr": 0.05, "epochs": 3}
    plain = run(job_of("fedavg", federation, training=training), cohort=cohort).server["model"]
    method = choose("sem(fedavg)", {"pairing": pairing}).method
    paired = run(job_of(method, federation, training=training), cohort=cohort).server["inner"]["model"]
    for (_, a), (_, b) in zip(tree.leaves(plain), tree.leaves(paired), strict=True):
        assert torch.equal(a, b)


def control(value: float) -> Tree:
    return {"head.weight": torch.full((1, 1), value, dtype=torch.float64)}


def test_scaffolds_controls_stay_with_their_clients() -> None:
    """c = .2, c1 = .1, c2 = .3: mids −.05 and .55, finals .525 (1→2) and .225 (2→1), c+ the mean of own gradients."""
    job = parabolas("sem(scaffold)", **TWO)
    store, seen = ClientStore(), Recorder()
    for client, value in enumerate((0.1, 0.3)):
        store.put(client, {"inner": {"control": control(value)}, "own": {}})
    first = job.method.server_init(job.setup)
    start = {**first, "inner": {**first["inner"], "control": control(0.2)}}
    homes = SimulatedHomes(job, store)
    server = run_rounds(job, Sequential(job, homes), [seen], rounds=1, cohort=2, server=start)
    mids = seen.views[0].phases[0].combined.values["model"]
    assert [weight(mids[str(client)]) for client in (0, 1)] == pytest.approx([-0.05, 0.55])
    after = [state["inner"]["control"]["head.weight"] for state in states(homes, 2).values()]
    assert [float(value) for value in after] == pytest.approx([0.275, -1.025])
    assert common(server) == pytest.approx(0.375)
    assert float(server["inner"]["control"]["head.weight"]) == pytest.approx(0.2 + (0.175 - 1.325) / 2)


def test_scaffold_still_reaches_the_optimum() -> None:
    done = run(parabolas("sem(scaffold)", **UNEQUAL), rounds=200, cohort=2)
    assert common(done.server) == pytest.approx(UNEQUAL_OPTIMUM, abs=1e-6)


def test_scaffold_ignores_sizes() -> None:
    done = run(parabolas("sem(scaffold)", **TWO), rounds=1, cohort=2)
    assert len(set(done.views[0].phases[1].combined.weights)) == 1


@pytest.mark.parametrize(("anchor", "expected"), [("received", 0.375), ("global", 0.25)])
def test_the_anchor_of_the_second_leg(anchor: str, expected: float) -> None:
    """mu = 1: at its first step leg 2 stands on the received model, but client 1's slot is 0.5 from the global one."""
    method = choose("sem(fedprox)", {"anchor": anchor, "inner.mu": 1.0}).method
    assert method == Sem(FedProx(mu=1.0), anchor=anchor)  # type: ignore[arg-type]
    assert common(run(parabolas(method, **TWO), rounds=1, cohort=2).server) == pytest.approx(expected)


def test_fedfv_orders_by_the_uploaders_loss_at_the_global_model() -> None:
    """At w = 0 the losses are a²/2, whatever each client received."""
    done = run(parabolas("sem(fedfv:sem)", (1.0, 2.0, 4.0)), rounds=1, cohort=3)
    losses = done.views[0].phases[1].combined.values["start_loss"]
    assert [float(losses[str(client)]) for client in range(3)] == pytest.approx([0.5, 2.0, 8.0])


def test_fair_weights_count_a_participation_once_a_round() -> None:
    done = run(job_of("sem(fedfa-fair)"), rounds=3, cohort=10)
    assert done.server["inner"]["times"].tolist() == [3.0] * 10


def test_flea_shares_after_the_second_leg_and_mixes_in_both() -> None:
    done = run(job_of("sem(flea)"), rounds=2)
    assert list(done.metrics[1]["phases"]) == ["train-leg1", "train-leg2", "share"]
    for leg in done.views[1].phases[:2]:
        assert len(leg.shared["labels"]) == done.metrics[0]["phases"]["share"]["rows"]["labels"]
        assert leg.record.terms["distil"] != 0


def test_a_method_with_a_first_exchange_of_its_own() -> None:
    done = run(job_of("sem(fedmix)"), rounds=2)
    assert [list(metrics["phases"]) for metrics in done.metrics] == [
        ["setup", "train-leg1", "train-leg2"],
        ["train-leg1", "train-leg2"],
    ]


@pytest.mark.parametrize(("epochs", "legs"), [(2, (1, 1)), (3, (2, 1)), (8, (4, 4))])
def test_epochs_are_halved_with_the_odd_one_first(epochs: int, legs: tuple[int, int]) -> None:
    first, second = Sem(FedAvg()).phases(Clock(0, 1, epochs))
    assert (first.epochs, second.epochs) == legs


def test_a_round_moves_four_models_a_client() -> None:
    plain, paired = (run(job_of(method)).metrics[0]["bytes"] for method in ("fedavg", "sem(fedavg)"))
    weights = 3 * 8
    assert paired["up"] == 2 * plain["up"] + weights
    assert paired["down"] == 2 * plain["down"] + weights


@pytest.mark.parametrize("method", ["sem(fedavg)", "sem(fedfv)", "sem(flea)"])
def test_nothing_of_the_exchange_outlives_the_round(method: str) -> None:
    done = run(job_of(method))
    assert set(done.server["own"]) == {"seed", "drawn"}
    kept = states(done.views[-1].executor, 10)
    assert list(kept.values()) == [{"inner": {}, "own": {}}] * len(kept)


def test_adam_starts_afresh_in_each_leg_of_each_round() -> None:
    """The first step of Adam has length lr whatever the gradient; remembered moments would shorten or lengthen it."""
    job = parabolas("sem(fedavg)", (1.0, 1.0), lr=0.3, optimizer="adam", eps=1e-12)
    done = [common(run(job, rounds=rounds, cohort=2).server) for rounds in (1, 2, 3)]
    assert done == pytest.approx([0.6, 1.2, 1.2 - 0.3 + 0.3], abs=1e-9)


def test_a_client_with_fewer_rows_than_a_batch_trains_in_both_legs() -> None:
    done = run(job_of("sem(fedavg)", digits_federation(3, [2, 5, 9]), training={"batch": 8}), rounds=1)
    assert [leg.record.steps for leg in done.views[0].phases] == [1 + 1 + 2, 1 + 1 + 2]


def test_pairings_change_with_the_round_and_the_seed_and_nothing_else() -> None:
    def finals(seed: int) -> list[float]:
        job = parabolas("sem(fedavg)", (0.0, 1.0, 3.0, 7.0, 9.0), sizes=(1, 2, 3, 4, 5), seed=seed)
        done = run(job, rounds=4, cohort=5)
        return [common(view.server) for view in done.views]

    assert finals(0) == finals(0)
    assert finals(0) != finals(1)
    rings = {tuple(pair("cycle", range(5), Random(0, "sem", round)).values()) for round in range(6)}
    assert len(rings) > 3


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """Client 1 cannot begin."""

    name = "forgetful"

    def begin(self, ctx: Context) -> Tree:
        if ctx.client == 1:
            raise DataError("it lost its rows")
        return super().begin(ctx)


def test_a_client_that_fails_in_the_first_leg_is_left_out_of_the_pairing() -> None:
    """Clients 0 and 2 swap as if they were alone; client 1 is told why it has no second leg."""
    done = run(parabolas(Sem(Forgetful()), (0.0, 5.0, 1.0), sizes=(1, 2, 3)), rounds=1, cohort=3)
    assert common(done.server) == pytest.approx(0.375)
    reasons = {failure["phase"]: failure["reason"] for failure in done.metrics[0]["failed"]}
    assert reasons == {
        "train-leg1": "it lost its rows",
        "train-leg2": "it sent no model in leg 1, so it has no partner in leg 2",
    }


@pytest.mark.parametrize("inner", ["local", "fedbn", "single", "sem(fedavg)"])
def test_methods_without_one_common_training_phase_are_refused(inner: str) -> None:
    with pytest.raises(ConfigError, match="method 'sem'"):
        run(job_of(f"sem({inner})"), rounds=1)


def test_one_epoch_cannot_be_halved() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        run(job_of("sem(fedavg)", training={"epochs": 1}), rounds=1)
