from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from fewfed import losses, tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.combine import Combiner
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.outcomes import Finished
from fewfed.engine.packet import Packet
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import ConfigError
from fewfed.method import Batch, Context
from fewfed.methods.flea import FLea, Share
from fewfed.methods.parts.buffer import mixed_with_buffer
from fewfed.network import Network
from fewfed.phase import Clock, Phase
from fewfed.plan import Plan, Random
from fewfed.tasks.classification import Classification
from fewfed.tasks.regression import Regression
from fewfed.tree import Tree
from support import (
    batch_of,
    context,
    digits,
    digits_federation,
    digits_network,
    gradients,
    job_of,
    run,
    same,
    total,
    trainable,
)

SHARE = FLea().phases(Clock(1, 10, 1))[1]
STEM = "conv1."


def step(rows: int = 8, buffer: int = 11, lam: float | None = None) -> tuple[Context, Tree, Batch]:
    """A client in round 2: its context with a buffer of other rows' features, its model and a drawn batch."""
    net, (train, _) = digits_network(), digits()
    data, others = train.rows(torch.arange(rows)), train.rows(torch.arange(100, 100 + buffer))
    teacher = tree.scale(net.model(), 1.1)
    features = net.apply(teacher, others.x, stop=1, train=False)
    ctx = context(net, data, {"model": teacher, "features": features, "labels": others.y}, round=1)
    draw = FLea().draw(Random(0, "step"), ctx, rows)
    if lam is not None:
        draw["lam"] = torch.full((rows,), lam)
    return ctx, trainable(net.model()), batch_of(data, draw)


def counting_federation(sizes: list[int], width: int = 3) -> GeneratedFederation:
    """Inputs that say whose they are: (client, row, 0, ...)."""

    def make(client: int) -> Examples:
        x = torch.zeros(sizes[client], width)
        x[:, 0], x[:, 1] = client, torch.arange(sizes[client])
        return Examples(x, torch.arange(sizes[client]) % 3)

    return GeneratedFederation(len(sizes), make, make(0), 3)


def open_network() -> Network:
    """Its features are the inputs themselves, so that a buffer can be read."""
    return Network("open", {"flat": nn.Flatten(), "head": nn.Linear(3, 10)}, cut="flat")


def test_the_loss_is_the_sum_of_the_published_terms() -> None:
    ctx, work, batch = step()
    net, row, lam = ctx.net, batch.drawn["row"], batch.drawn["lam"]
    method = FLea(distil=1.5, decorrelate=2.5)
    terms = method.loss(work, ctx, batch)

    model = net.model()
    own = net.apply(model, batch.x, stop=1)
    weight = lam.reshape(-1, 1, 1, 1)
    mixed = weight * own + (1 - weight) * ctx.shared["features"][row]
    eye = torch.eye(10)
    target = lam[:, None] * eye[batch.y] + (1 - lam[:, None]) * eye[ctx.shared["labels"][row]]
    student = net.apply(model, mixed, start=1)
    teacher = net.apply(ctx.shared["model"], mixed, start=1, train=False)
    divergence = kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")
    expected = {
        "task": cross_entropy(student, target),
        "distil": 1.5 * divergence,
        "decorrelate": 2.5 * losses.distance_correlation(batch.x, own),
        "correlation": losses.distance_correlation(batch.x, own),
    }
    assert set(terms) == set(expected)
    for name, value in expected.items():
        assert float(terms[name].detach()) == pytest.approx(float(value), rel=1e-5)
    minimised = expected["task"] + expected["distil"] + expected["decorrelate"]
    assert float(total(method, terms).detach()) == pytest.approx(float(minimised), rel=1e-5)
    assert not terms["correlation"].requires_grad


def test_unmixed_rows_have_a_term_of_their_own_where_it_is_asked_for() -> None:
    ctx, work, batch = step()
    plain, ours = FLea().loss(work, ctx, batch), FLea(raw=0.7).loss(trainable(ctx.net.model()), ctx, batch)
    model = ctx.net.model()
    own = ctx.net.apply(model, batch.x, stop=1)
    expected = 0.7 * cross_entropy(ctx.net.apply(model, own, start=1), batch.y)
    assert set(ours) == {*plain, "raw"}
    assert float(ours["raw"].detach()) == pytest.approx(float(expected), rel=1e-6)
    assert all(torch.equal(ours[name], plain[name]) for name in plain)
    first = FLea(raw=0.7).loss(work, context(ctx.net, ctx.data, {"model": ctx.shared["model"]}), batch_of(ctx.data))
    assert "raw" not in first, "where nothing is mixed, the task's term is that of unmixed rows"


def test_the_first_round_has_no_mixture_and_a_teacher_on_the_inputs() -> None:
    ctx, work, batch = step()
    shared = {"model": ctx.shared["model"]}
    ctx = context(ctx.net, ctx.data, shared)
    assert FLea().draw(Random(0, "x"), ctx, 8) == {}
    terms = FLea().loss(work, ctx, batch._replace(drawn={}))
    student = ctx.net.apply(ctx.net.model(), batch.x)
    teacher = ctx.net.apply(shared["model"], batch.x, train=False)
    divergence = kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")
    assert float(terms["task"].detach()) == pytest.approx(float(cross_entropy(student, batch.y)), rel=1e-5)
    assert float(terms["distil"].detach()) == pytest.approx(float(divergence), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        ({}, losses.distance_correlation),
        ({"power": 2}, lambda x, f: losses.distance_correlation(x, f, 2)),
        ({"decorrelation": "trace"}, lambda x, f: losses.trace_correlation(x, f, "trace")),
        ({"decorrelation": "rv"}, lambda x, f: losses.trace_correlation(x, f, "rv")),
    ],
)
def test_the_decorrelation_is_the_form_asked_for(settings: dict[str, Any], form: Any) -> None:
    ctx, work, batch = step()
    expected = form(batch.x, ctx.net.apply(ctx.net.model(), batch.x, stop=1))
    assert float(FLea(**settings).loss(work, ctx, batch)["correlation"]) == pytest.approx(float(expected), rel=1e-5)


def test_trap_07_the_direction_of_the_distillation_is_a_flag(flea_values: dict[str, Any]) -> None:
    """Inputs hold both models' logits side by side; the student's head picks one half, the teacher's the other."""
    values = flea_values["kl"]
    local, teacher = torch.tensor(values["logits_local"]), torch.tensor(values["logits_global"])
    layer = nn.Linear(6, 3, bias=False)
    layer.weight.data = torch.cat([torch.eye(3), torch.zeros(3, 3)], 1)
    net = Network("halves", {"flat": nn.Flatten(), "head": layer}, cut="flat")
    shared = net.model()
    shared["params"]["head.weight"] = torch.cat([torch.zeros(3, 3), torch.eye(3)], 1)
    data = Examples(torch.cat([local, teacher], 1), torch.tensor([0, 2]))
    ctx = context(net, data, {"model": shared}, task=Classification(3))
    for kl, name in (
        ("global-local", "KL(global||local) as coded, batch mean"),
        ("local-global", "KL(local||global) as printed in Eq.4, batch mean"),
    ):
        terms = FLea(kl=kl).loss(trainable(net.model()), ctx, batch_of(data))  # type: ignore[arg-type]
        assert float(terms["distil"].detach()) == pytest.approx(values[name], abs=1e-6)


def test_trap_08_features_and_labels_are_mixed_with_the_same_weight_on_the_local_side() -> None:
    ctx, work, batch = step()
    own, target = ctx.net.apply(work, batch.x, stop=1), losses.one_hot(batch.y, 10)
    row = batch.drawn["row"]
    theirs = ctx.shared["features"][row], losses.one_hot(ctx.shared["labels"][row], 10)
    for lam, expected in ((1.0, (own, target)), (0.0, theirs)):
        _, _, fixed = step(lam=lam)
        mixed = mixed_with_buffer(own, target, ctx, fixed)
        assert torch.equal(mixed[0], expected[0])
        assert torch.equal(mixed[1], expected[1])
    half = mixed_with_buffer(own, target, ctx, step(lam=0.25)[2])
    assert torch.allclose(half[0], 0.25 * own + 0.75 * theirs[0])
    assert torch.allclose(half[1], 0.25 * target + 0.75 * theirs[1])


def test_trap_09_every_row_has_a_weight_of_its_own() -> None:
    ctx, _, _ = step()
    drawn = FLea().draw(Random(0, "x"), ctx, 1000)["lam"]
    assert drawn.shape == (1000,)
    assert float(drawn.var()) == pytest.approx(0.05, abs=0.005)
    assert FLea(beta=math.inf).draw(Random(0, "x"), ctx, 4)["lam"].tolist() == [0.5] * 4


def test_trap_10_the_buffer_is_a_constant() -> None:
    job = job_of("flea")
    clock = Clock(1, 3, 2)
    phase = job.method.phases(clock)[0]
    first = run(job, rounds=1)
    shared = phase.does.broadcast(first.server)
    before = tree.clone(shared)
    assert not any(leaf.requires_grad for _, leaf in tree.leaves(shared))
    outcome = run_turn(job, phase, clock, shared, Member(0))
    assert isinstance(outcome, Finished)
    assert outcome.packet.terms["task"] > 0
    assert same(shared, before)


def test_trap_11_the_mixture_trains_the_layers_before_the_cut() -> None:
    for lam, reaches in ((0.5, True), (0.0, False)):
        ctx, work, batch = step(lam=lam)
        slopes = gradients(FLea().loss(work, ctx, batch)["task"], work)
        stem = [bool(slope.any()) for name, slope in slopes.items() if name.startswith(STEM)]
        rest = [bool(slope.any()) for name, slope in slopes.items() if not name.startswith(STEM)]
        assert any(stem) is reaches
        assert any(rest)


def test_trap_11_local_rows_reach_the_stem_in_proportion_to_their_weight() -> None:
    """Without normalisation after the cut and a linear head, the slope of each local feature scales with its weight."""
    torch.manual_seed(0)
    net = Network("linear", {"stem": nn.Linear(3, 4, bias=False), "head": nn.Linear(4, 10)}, cut="stem")
    data = Examples(torch.randn(2, 3), torch.tensor([0, 1]))
    shared = {"model": net.model(), "features": torch.zeros(1, 4), "labels": torch.tensor([2])}
    ctx = context(net, data, shared, round=1)
    features = torch.randn(2, 4, requires_grad=True)
    draw = {"row": torch.tensor([0, 0]), "lam": torch.tensor([0.2, 0.8])}
    mixed, _ = mixed_with_buffer(features, losses.one_hot(data.y, 10), ctx, batch_of(data, draw))
    (slope,) = torch.autograd.grad(mixed.sum(), features)
    assert torch.allclose(slope, torch.tensor([[0.2], [0.8]]).expand(2, 4))


def test_trap_12_decorrelation_touches_nothing_after_the_cut() -> None:
    ctx, work, batch = step()
    slopes = gradients(FLea().loss(work, ctx, batch)["decorrelate"], work)
    assert any(bool(slope.any()) for name, slope in slopes.items() if name.startswith(STEM))
    assert not any(bool(slope.any()) for name, slope in slopes.items() if not name.startswith(STEM))


def test_distillation_trains_the_student_path_only() -> None:
    ctx, work, batch = step()
    for leaf in ctx.shared["model"]["params"].values():
        leaf.requires_grad_(True)
    term = FLea().loss(work, ctx, batch)["distil"]
    through_stem = gradients(term, work)["conv1.conv.weight"]
    assert bool(through_stem.any())
    # The same slope when teacher logits are numbers: nothing flows back through the teacher's input.
    net, row, lam = ctx.net, batch.drawn["row"], batch.drawn["lam"]
    again = trainable(net.model())
    mixed = losses.mix(lam, net.apply(again, batch.x, stop=1), ctx.shared["features"][row])
    with torch.no_grad():
        teacher = net.apply(ctx.shared["model"], mixed, start=1, train=False)
    reference = kl_div(net.apply(again, mixed, start=1).log_softmax(1), teacher.softmax(1), reduction="batchmean")
    expected = gradients(reference, again)["conv1.conv.weight"]
    assert torch.allclose(through_stem, expected, rtol=1e-4, atol=1e-7)


def test_trap_13_the_teacher_is_frozen_and_looks_at_rows_alone() -> None:
    ctx, work, batch = step()
    before = tree.clone(ctx.shared["model"])
    FLea().loss(work, ctx, batch)
    assert same(ctx.shared["model"], before)
    net, features = ctx.net, ctx.shared["features"]
    whole = net.apply(ctx.shared["model"], features, start=1, train=False)
    alone = torch.cat([net.apply(ctx.shared["model"], row[None], start=1, train=False) for row in features])
    assert torch.allclose(whole, alone, atol=1e-5)
    assert same(ctx.shared["model"], before)


def test_trap_13_a_whole_round_leaves_the_teacher_as_it_was() -> None:
    job = job_of("flea")
    clock = Clock(0, 3, 2)
    phase = job.method.phases(clock)[0]
    shared = {"model": job.net.model()}
    assert isinstance(run_turn(job, phase, clock, shared, Member(0)), Finished)
    assert same(shared["model"], job.net.model())


def test_trap_14_features_are_those_of_the_averaged_model_in_eval_mode() -> None:
    job = job_of(FLea(share=0.4))
    recorder = run(job, rounds=2, cohort=3)
    for view in recorder.views:
        expected, labels = [], []
        for client in sorted(view.cohort):
            data = job.federation.examples(client)
            rows = Share(FLea(share=0.4)).origins(context(job.net, data, client=client, plan=job.plan)).flatten()
            # One row at a time: a feature must not depend on the batch it was computed in.
            for row in rows:
                expected.append(job.net.apply(view.server["model"], data.x[row][None], stop=1, train=False))
            labels.append(data.y[rows])
        assert torch.allclose(view.server["features"], torch.cat(expected), atol=1e-6)
        assert torch.equal(view.server["labels"], torch.cat(labels))


def test_extraction_changes_no_running_statistics() -> None:
    net, (train, _) = digits_network(), digits()
    ctx = context(net, train.rows(torch.arange(20)), phase=SHARE)
    work = SHARE.does.begin(ctx)
    assert set(SHARE.does.end(work, ctx).upload) == {"features", "labels"}
    assert same(work, net.model())


def test_trap_15_running_statistics_are_averaged_by_sample_count() -> None:
    combiner = Combiner(Phase("train", FLea(), 1), clients=2)
    for client, (size, mean, count) in enumerate(((100, 1.0, 7), (300, 3.0, 5))):
        buffers = {"bn.running_mean": torch.tensor([mean]), "bn.num_batches_tracked": torch.tensor(count)}
        model = {"params": {"w": torch.tensor([mean])}, "buffers": buffers}
        combiner.add(Packet(0, "train", client, float(size), {"model": model}))
    model = combiner.finish().values["model"]
    assert model["buffers"]["bn.running_mean"].tolist() == [2.5]
    assert model["params"]["w"].tolist() == [2.5]
    assert model["buffers"]["bn.num_batches_tracked"].dtype == torch.int64
    assert int(model["buffers"]["bn.num_batches_tracked"]) in (5, 7)


def test_trap_16_a_refresh_pass_adds_unmixed_statistics_and_no_gradient() -> None:
    def after(refresh: bool) -> tuple[Tree, dict[str, Tensor]]:
        ctx, work, batch = step()
        method = FLea(bn_refresh=refresh)
        return work["buffers"], gradients(total(method, method.loss(work, ctx, batch)), work)

    ctx, _, batch = step()
    model = ctx.net.model()
    seen = {}

    def keep(stage: str, value: Tensor) -> Tensor:
        seen[stage] = value
        return value

    ctx.net.apply(model, batch.x, tap=keep)
    weight = model["params"]["conv2.conv.weight"]
    inner = nn.functional.conv2d(seen["conv1"], weight, model["params"].get("conv2.conv.bias"), padding=1)
    unmixed = inner.var((0, 2, 3))
    (plain, slopes), (refreshed, same_slopes) = after(False), after(True)
    assert all(torch.equal(slopes[name], same_slopes[name]) for name in slopes)
    assert torch.equal(plain["conv1.norm.running_mean"], refreshed["conv1.norm.running_mean"])
    mixed = (plain["conv2.norm.running_var"] - 0.9) / 0.1
    expected = 0.9 * (0.9 + 0.1 * unmixed) + 0.1 * mixed
    assert torch.allclose(refreshed["conv2.norm.running_var"], expected, atol=1e-5)


def test_trap_21_every_local_row_gets_a_partner_when_the_buffer_is_cycled() -> None:
    ctx, _, _ = step(buffer=70)
    ctx = context(ctx.net, ctx.data, ctx.shared, round=1, plan=Plan(0, 64))
    cycled, cut = Random(0, "a"), Random(0, "b")
    assert [len(FLea().draw(cycled, ctx, 64)["row"]) for _ in range(4)] == [64] * 4
    assert [len(FLea(pairing="truncate").draw(cut, ctx, 64)["row"]) for _ in range(4)] == [64, 6, 64, 6]


def test_trap_22_the_buffer_holds_this_rounds_clients_and_nobody_else() -> None:
    sizes = [3, 10, 14, 20, 29, 31, 45, 50]
    job = job_of("flea", counting_federation(sizes), net=open_network(), rows_public=True)
    recorder = run(job, rounds=4, cohort=3)
    for view in recorder.views:
        senders = view.server["features"][:, 0].long().tolist()
        assert set(senders) == set(view.cohort)
        assert len(senders) == sum(max(1, math.floor(0.1 * sizes[client])) for client in view.cohort)
        assert view.metrics["phases"]["share"]["rows"] == {"features": len(senders), "labels": len(senders)}
        rows = view.server["features"][:, 1].long()
        assert torch.equal(view.server["labels"], rows % 3)
    for earlier, later in zip(recorder.views, recorder.views[1:], strict=False):
        assert torch.equal(later.phases[0].shared["features"], earlier.server["features"])
    assert "features" not in recorder.views[0].phases[0].shared


def test_trap_24_a_client_shares_the_same_rows_in_every_round() -> None:
    sizes = [5, 20, 33]
    job = job_of(FLea(share=0.2), counting_federation(sizes), net=open_network(), rows_public=True)
    shared: dict[int, set[int]] = {client: set() for client in range(3)}
    for view in run(job, rounds=8, cohort=3).views:
        for client, row, _ in view.server["features"].tolist():
            shared[int(client)].add(int(row))
    assert {client: len(rows) for client, rows in shared.items()} == {0: 1, 1: 4, 2: 6}


def test_what_is_uploaded_is_what_the_specification_counts() -> None:
    recorder = run(job_of("flea", digits_federation(4, 20)), rounds=2, cohort=2)
    model = tree.nbytes(recorder.server["model"])
    feature = 16 * 8 * 8 * 4
    first, second = (metrics["bytes"] for metrics in recorder.metrics)
    both = len(set(recorder.views[0].cohort) & set(recorder.views[1].cohort))
    assert first["up"] == second["up"] == 2 * (model + 2 * (feature + 8))
    assert first["down"] == 2 * 2 * model
    assert second["down_if_sent_every_time"] == 2 * (2 * model + 4 * (feature + 8))
    assert second["down"] == second["down_if_sent_every_time"] - both * model, "they hold the average already"


def test_trap_32_every_round_is_kept() -> None:
    recorder = run(job_of("flea"), rounds=4, observers=[Evaluate()])
    curve = [metrics["accuracy"] for metrics in recorder.metrics]
    assert [metrics["round"] for metrics in recorder.metrics] == [1, 2, 3, 4]
    assert all(0 <= accuracy <= 1 for accuracy in curve)
    assert max(curve) >= curve[-1]
    correct = (job_of("flea").net.apply(recorder.server["model"], digits()[1].x, train=False).argmax(1)).eq(
        digits()[1].y
    )
    assert curve[-1] == pytest.approx(float(correct.float().mean()), abs=1e-6)


def test_with_every_weight_at_zero_it_is_fedavg() -> None:
    neutral = FLea(share=0.0, distil=0.0, decorrelate=0.0)
    left, right = run(job_of(neutral), rounds=2).server["model"], run(job_of("fedavg"), rounds=2).server["model"]
    for (_, a), (_, b) in zip(tree.leaves(left), tree.leaves(right), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("spec", ["flea", "flea:official", "fedmix", "fedmix:taylor", "fedavg", "fedprox"])
def test_trap_45_a_thousand_clients_of_one_to_five_rows(spec: str) -> None:
    sizes = [1 + (7 * client) % 5 for client in range(1000)]
    assert set(sizes) == {1, 2, 3, 4, 5}
    cohort = 40
    job = job_of(spec, digits_federation(1000, sizes), training={"epochs": 1})
    recorder = run(job, rounds=2, cohort=cohort)
    for view in recorder.views:
        assert view.metrics["failed"] == []
        assert len(view.phases[-1].combined.clients) == cohort
    assert all(torch.isfinite(leaf).all() for _, leaf in tree.leaves(recorder.server["model"]))


@pytest.mark.parametrize("cut", ["conv1", "conv2", "fc1", "1", "3"])
def test_features_may_be_shared_after_any_stage(cut: str) -> None:
    recorder = run(job_of(FLea(cut=cut)), rounds=2)
    assert all(metrics["failed"] == [] for metrics in recorder.metrics)
    net = digits_network()
    one = net.apply(net.model(), digits()[0].x[:1], stop=net.position(cut), train=False)
    assert recorder.server["features"].shape[1:] == one.shape[1:]


def test_a_cut_or_task_that_does_not_fit_is_refused_before_the_first_round() -> None:
    with pytest.raises(ConfigError, match="did you mean 'conv2'"):
        run(job_of(FLea(cut="conv3x")))
    with pytest.raises(ConfigError, match="cut 9 is outside"):
        run(job_of(FLea(cut="9")))
    with pytest.raises(ConfigError, match="expected a classification task"):
        job_of(FLea(), task=Regression()).check()
