"""Potluck is its parts and nothing else: the composition, FLea and FedAvg bit for bit; one step by hand."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from packets import sent
from torch.nn.functional import cross_entropy, kl_div

from fewfed import Experiment, Training, load, resume, tree
from fewfed import run as run_experiment
from fewfed.engine.job import Job
from fewfed.engine.turn import Member, context_of
from fewfed.method import Batch
from fewfed.methods.parts.codes import decode
from fewfed.methods.potluck import Potluck
from fewfed.methods.registry import choose
from fewfed.phase import Clock, Combine, Role
from support import digits_federation, job_of, run, same

COMPOSED = "averaged(recalibrated(rationed(quantised(blurred(grouped(slimmed(flea)))))))"
FLEA_INSIDE = {"raw": 1.0, "decorrelate": 0.0, "history": 10, "cut": "middle"}
CUT = 2
"""The middle of the network for digits: behind conv2."""


def job_with(spec: str, values: dict[str, Any] | None = None, rows: int = 40) -> Job:
    return job_of(choose(spec, values).method, digits_federation(6, rows))


def test_it_is_the_composition_that_its_docstring_names() -> None:
    assert COMPOSED in (Potluck.__doc__ or "")
    values = {"inner." * 7 + name: value for name, value in FLEA_INSIDE.items()}
    values |= {
        "inner." * 4 + "noise": 1.0,
        "inner." * 4 + "fresh": 0.5,
        "inner." * 3 + "bits": 4,
        "inner." * 2 + "bits": 4,
    }
    ours, parts = job_with("potluck"), job_with(COMPOSED, values)
    a, b = run(ours, rounds=3), run(parts, rounds=3)
    assert same(a.server, b.server)
    assert [metrics["bytes"] for metrics in a.metrics] == [metrics["bytes"] for metrics in b.metrics]
    assert [layer.name for layer in ours.method.layers] == ["potluck", *(layer.name for layer in parts.method.layers)]


@pytest.mark.parametrize(
    ("ours", "values", "plain"),
    [("potluck:flea", {}, "flea"), ("potluck", dict(Potluck.neutral or {}), "fedavg")],
)
def test_with_every_part_off_it_is_flea_and_without_sharing_fedavg(
    ours: str, values: dict[str, Any], plain: str
) -> None:
    a, b = job_with(ours, values), job_with(plain)
    first, second = run(a, rounds=4), run(b, rounds=4)
    assert same(a.method.predictor(first.server, {}), b.method.predictor(second.server, {}))
    assert [one["bytes"] for one in first.metrics] == [one["bytes"] for one in second.metrics] or plain == "fedavg"


def test_one_step_is_the_written_loss() -> None:
    """Mixed cross-entropy + KL(global ‖ local) on the mixture + cross-entropy on unmixed rows, from served codes."""
    job = job_with("potluck", {"k": 3})
    server = run(job, rounds=2).server
    clock = Clock(2, 5, 2)
    phase = job.method.phases(clock)[0]
    shared, personal = phase.does.broadcast(server), phase.does.personal(server, 1)
    state = job.method.client_init(job.setup)
    ctx = context_of(job, phase, clock, shared, Member(1, personal, state))
    data = ctx.data.rows(torch.arange(8))
    drawn = phase.does.draw(ctx.plan.random(2, phase.name, 1), ctx, 8)
    terms = phase.does.loss(phase.does.begin(ctx), ctx, Batch(data.x, data.y, drawn))

    net, teacher = job.net, shared["model"]
    served, labels = decode(personal["ration"]["features"], 4), personal["ration"]["labels"]
    work = tree.clone(teacher)
    lam, row, eye = drawn["lam"], drawn["row"], torch.eye(10)
    own = net.apply(work, data.x, stop=CUT)
    weight = lam.reshape(-1, 1, 1, 1)
    mixed = weight * own + (1 - weight) * served[row]
    target = lam[:, None] * eye[data.y] + (1 - lam[:, None]) * eye[labels[row]]
    student = net.apply(work, mixed, start=CUT)
    answer = net.apply(teacher, mixed, start=CUT, train=False)
    expected = {
        "task": cross_entropy(student, target),
        "distil": kl_div(student.log_softmax(1), answer.softmax(1), reduction="batchmean"),
        "raw": cross_entropy(net.apply(work, own, start=CUT), data.y),
        "decorrelate": torch.tensor(0.0),
    }
    assert set(terms) == {*expected, "correlation"}
    for name, value in expected.items():
        assert float(terms[name].detach()) == pytest.approx(float(value.detach()), rel=1e-5, abs=1e-7)


def test_what_leaves_a_client_is_codes_of_noisy_averages_of_fixed_groups() -> None:
    job = job_with("potluck", {"k": 5}, rows=60)
    packets, done = sent(job, rounds=3)
    assert packets
    numbers = done.server["inner"]["own"]["features"][0].numel()
    for phase, _, packet in packets:
        assert {name: (each.combine, each.role) for name, each in phase.uploads.items()} == {
            "features": (Combine.CONCAT, Role.FEATURES),
            "labels": (Combine.CONCAT, Role.LABELS),
        }
        rows = len(packet.arrays["labels"])
        assert packet.arrays["features"]["codes"].shape == (rows, numbers // 2), "two numbers a byte"
        assert packet.arrays["features"]["codes"].dtype == torch.uint8
        assert tree.nbytes(packet.arrays) == rows * (numbers // 2 + 4 + 4 + 8)
        ctx = context_of(job, phase, Clock(packet.round, 3, 2), {}, Member(packet.sender, {}, _state(job)))
        assert phase.does.origins(ctx).shape == (rows, 5)


def _state(job: Job) -> Any:
    return job.method.client_init(job.setup)


def test_it_sends_down_less_than_half_of_what_flea_does() -> None:
    down, rows = {}, {}
    for spec in ("potluck", "flea"):
        job = job_with(spec, {"k": 2} if spec == "potluck" else {})
        done, whole = run(job, rounds=6), job.net.model()
        early = job.net.keys_of(job.net.stages[: CUT if spec == "potluck" else len(job.net.stages)])
        sharing = sum(
            tree.nbytes({"": value}) for part in whole.values() for key, value in part.items() if key in early
        )
        down[spec] = done.metrics[-1]["bytes"]["down_if_sent_every_time"]
        rows[spec] = down[spec] - 3 * (tree.nbytes(whole) + sharing)
    assert 0 < rows["potluck"] < 0.15 * rows["flea"]
    assert down["potluck"] < 0.5 * down["flea"]


def test_after_a_kill_it_goes_on_to_the_same_bits_and_what_is_loaded_is_the_average(tmp_path: Path) -> None:
    few = Experiment(clients=5, cohort=3, rounds=4, volume=0.3, executor="sequential", evaluate_every=1)
    training = Training(epochs=1, batch=16)

    class Stop(Exception):
        pass

    class Stopping:
        def after_round(self, view: Any) -> None:
            if view.clock.round == 2:
                raise Stop

    whole = run_experiment("potluck", few, training, values={"k": 2}, out=tmp_path / "whole", progress=False)
    with pytest.raises(Stop):
        run_experiment("potluck", few, training, values={"k": 2}, out=tmp_path / "cut", observers=[Stopping()],
                       progress=False)  # fmt: skip
    again = resume(tmp_path / "cut", progress=False)
    assert again.accuracy == whole.accuracy
    a, b = load(tmp_path / "whole"), load(tmp_path / "cut")
    data = torch.rand(9, 1, 8, 8)
    assert (a.predict_proba(data) == b.predict_proba(data)).all()


@pytest.mark.parametrize("name", ["averaged", "blurred", "recalibrated", "rationed", "slimmed", "veiled", "potluck"])
def test_each_file_has_fewer_than_sixty_statements(name: str) -> None:
    root = Path(__file__).parents[2]
    count = runpy.run_path(str(root / "tools" / "method_lines.py"))["count"]
    assert count(root / "src" / "fewfed" / "methods" / f"{name}.py") < 60


def test_off_means_off() -> None:
    assert Potluck.presets["flea"].method["part"] == math.inf
    assert {layer.name for layer in choose("potluck", {"share": 0.0}).method.layers} == {"potluck", "averaged", "flea"}
