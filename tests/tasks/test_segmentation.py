"""Segmentation: the loss and the Dice against scikit-learn and by hand, and which methods take it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, log_loss
from torch import Tensor, nn
from torch.func import vmap

from fewfed import Dataset, Examples, Experiment, Training
from fewfed import run as run_experiment
from fewfed.conformance.differences import differences
from fewfed.data.federation import GeneratedFederation
from fewfed.engine import storage
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.job import Job
from fewfed.engine.scoring import evaluation_rows
from fewfed.errors import ConfigError
from fewfed.losses import mix, one_hot
from fewfed.method import Batch
from fewfed.methods.parts.augmentation import MixedLabels
from fewfed.methods.registry import choose, registered
from fewfed.network import Network
from fewfed.networks import build
from fewfed.task import Score
from fewfed.tasks.segmentation import DiceScore, Segmentation, soft_dice_loss
from support import context, job_of, run, same, trainable

TAKES_MASKS = ("fedavg", "fedprox", "fedbn", "fedfa", "fedsam", "fedmix", "fedmix:taylor", "mixup", "mixup(fedmix)")


def logits_and_masks(images: int = 5, classes: int = 2, side: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    y = torch.randint(0, classes, (images, side, side), generator=generator)
    noise = torch.randn(images, classes, side, side, generator=generator)
    return noise + 1.5 * torch.eye(classes)[y].permute(0, 3, 1, 2), y


def squares(images: int, seed: int, side: int = 16) -> Examples:
    """Bright squares on a dark noisy ground; the mask is the square."""
    rng = np.random.default_rng(seed)
    y = torch.zeros(images, side, side, dtype=torch.long)
    for mask in y:
        top, left = (int(rng.integers(0, side - 8)) for _ in range(2))
        mask[top : top + 7, left : left + 7] = 1
    noise = torch.from_numpy(rng.standard_normal((images, 1, side, side), np.float32))
    return Examples(y.unsqueeze(1) + 0.3 * noise, y)


def small_network(seed: int = 0) -> Network:
    torch.manual_seed(seed)
    layers = {
        "conv1": nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        "conv2": nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        "head": nn.Conv2d(8, 2, 1),
    }
    return Network("small", layers)


def squares_job(method: str, net: Network | None = None, rows: int = 12, **training: Any) -> Job:
    federation = GeneratedFederation(3, lambda client: squares(rows, client), squares(20, 9), 0)
    chosen = {"epochs": 2, "batch": 6, "lr": 0.02, "lr_decay": 0.0, **training}
    return job_of(method, federation, net=net or small_network(), task=Segmentation(2), training=chosen)


@pytest.mark.parametrize("classes", [2, 3])
def test_dice_is_the_f1_score_of_every_image_and_class(classes: int) -> None:
    output, y = logits_and_masks(classes=classes)
    score = Segmentation(classes).score(output, y)
    guess = output.argmax(1)
    expected = np.array(
        [f1_score(t.flatten(), g.flatten(), average=None, labels=range(classes)) for t, g in zip(y, guess, strict=True)]
    ).mean(0)
    assert score.per_class == pytest.approx(list(expected))
    assert score.accuracy == pytest.approx(expected[1:].mean())
    assert score.metrics()["dice"] == score.accuracy
    assert score.metrics()["dice_with_background"] == pytest.approx(expected.mean())


def test_predicting_only_background_scores_nothing_unless_the_background_counts() -> None:
    y = torch.zeros(1, 10, 10, dtype=torch.long)
    y[0, 0] = 1
    output = torch.stack([torch.ones(1, 10, 10), torch.zeros(1, 10, 10)], 1)
    metrics = Segmentation().score(output, y).metrics()
    assert metrics["accuracy"] == metrics["dice"] == 0
    assert metrics["dice_with_background"] == pytest.approx(0.4737, abs=5e-5)
    assert metrics["per_class"] == pytest.approx([2 * 90 / 190, 0.0])


def test_a_class_that_is_neither_there_nor_predicted_is_right() -> None:
    y = torch.zeros(1, 4, 4, dtype=torch.long)
    nothing = torch.stack([torch.ones(1, 4, 4), torch.zeros(1, 4, 4)], 1)
    assert Segmentation().score(nothing, y).accuracy == 1
    one_pixel = nothing.clone()
    one_pixel[0, 1, 0, 0] = 2
    assert Segmentation().score(one_pixel, y).accuracy == 0


def test_the_loss_is_the_mean_of_cross_entropy_and_soft_dice_over_the_whole_batch() -> None:
    output, y = logits_and_masks()
    probability = output.double().softmax(1).numpy()
    truth = y.numpy()
    flat = probability.transpose(0, 2, 3, 1).reshape(-1, 2)
    overlap = []
    for c in range(2):
        p, t = probability[:, c], truth == c
        overlap.append((2 * (p * t).sum() + 1e-5) / (p.sum() + t.sum() + 1e-5))
    expected = (log_loss(truth.reshape(-1), flat) + 1 - np.mean(overlap)) / 2
    assert float(Segmentation().loss(output, y)) == pytest.approx(expected, rel=1e-5)


def test_the_soft_dice_of_a_perfect_and_of_an_opposite_mask() -> None:
    _, y = logits_and_masks()
    truth = Segmentation().soft_labels(y)
    assert float(soft_dice_loss(truth, truth)) == pytest.approx(0, abs=1e-6)
    assert float(soft_dice_loss(1 - truth, truth)) == pytest.approx(1, abs=1e-6)


def test_the_loss_runs_under_vmap_and_its_gradient_is_right() -> None:
    output, y = logits_and_masks(images=6)
    pairs, masks = output.reshape(3, 2, 2, 6, 6), y.reshape(3, 2, 6, 6)
    task = Segmentation()
    together = vmap(task.loss)(pairs, masks)
    assert together == pytest.approx([float(task.loss(o, m)) for o, m in zip(pairs, masks, strict=True)], rel=1e-6)
    small, mask = output[:2, :, :2, :2].double().requires_grad_(), y[:2, :2, :2]
    assert torch.autograd.gradcheck(lambda o: task.loss(o, mask), (small,))


def test_parts_add_up_and_survive_json_bit_for_bit() -> None:
    output, y = logits_and_masks(images=9)
    task = Segmentation()
    parts = [task.score(output[rows], y[rows]) for rows in (slice(0, 4), slice(4, 9))]
    whole = task.score(output, y)
    both = parts[0] + parts[1]
    assert isinstance(both, DiceScore)
    assert both.accuracy == pytest.approx(whole.accuracy)
    grouped = DiceScore(both.correct, both.total, both.loss, {"a": parts[0], "b": parts[1]})
    again = DiceScore.from_json(json.loads(json.dumps(grouped.as_json())))
    assert again.metrics() == grouped.metrics()
    assert again.correct.dtype == torch.float64
    assert torch.equal(again.groups["b"].correct, parts[1].correct)


def test_groups_are_added_where_one_part_or_both_have_them() -> None:
    one = Score(torch.tensor([1]), torch.tensor([2]), 0.5)
    first = Score(torch.tensor([2]), torch.tensor([4]), 1.0, {"x": one, "y": one})
    second = Score(torch.tensor([1]), torch.tensor([2]), 0.5, {"y": one, "z": one})
    total = first + second
    assert {name: int(part.total) for name, part in total.groups.items()} == {"x": 2, "y": 4, "z": 2}
    assert total.metrics()["per_group"] == {"x": 0.5, "y": 0.5, "z": 0.5}


@pytest.mark.parametrize("spec", TAKES_MASKS)
def test_methods_that_need_no_class_labels_learn_to_segment(spec: str) -> None:
    metrics = run(squares_job(spec, lr=0.01), rounds=3, observers=[Evaluate()]).metrics
    assert all(one["failed"] == [] for one in metrics)
    assert metrics[-1]["dice"] > 0.75, metrics[-1]
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert set(metrics[-1]) >= {"accuracy", "dice", "dice_with_background", "loss", "per_class"}
    assert metrics[-1]["accuracy"] == metrics[-1]["dice"]


@pytest.mark.parametrize("spec", [name for name, cls in registered().items() if cls.needs_classes is True])
def test_methods_that_need_class_labels_refuse_in_one_sentence(spec: str) -> None:
    with pytest.raises(ConfigError, match=rf"method '{spec}' needs class labels: expected a classification task, not"):
        squares_job(spec).check()
    with pytest.raises(ConfigError, match="needs class labels"):
        run(squares_job(f"sem({spec})" if spec == "flea" else spec), rounds=1)


@pytest.mark.parametrize("spec", ["fedavg", "fedfa", "fedbn"])
def test_workers_agree_with_sequential_bit_for_bit(spec: str) -> None:
    job = squares_job(spec)
    alone = run(job, rounds=2, observers=[Evaluate()])
    executor = Workers(job, options=Options(processes=2, stack=1, layout="plain"))
    try:
        together = run(job, rounds=2, observers=[Evaluate()], executor=executor)
    finally:
        executor.close()
    for one, two in zip(alone.metrics, together.metrics, strict=True):
        names = ("accuracy", "dice", "dice_with_background", "loss", "per_class")
        assert [one[name] for name in names] == [two[name] for name in names]
    assert differences(alone.server, together.server) == []


def test_fedmix_shares_averaged_masks_and_trains_on_mixed_ones() -> None:
    job = squares_job("fedmix", rows=12)
    shared = run(job, rounds=1).server
    assert shared["mean_y"].shape == (3, 2, 16, 16), "one average of ten rows a client"
    assert torch.allclose(shared["mean_y"].sum(1), torch.ones(3, 16, 16))
    rows = job.plan.fixed(1, "averaged rows").permutation(12)[:10]
    foreground = squares(12, 1).y[rows].float().mean(0)
    assert torch.allclose(shared["mean_y"][1, 1], foreground)

    method, data = choose("fedmix").method, squares(4, 5)
    ctx = context(job.net, data, {"model": job.net.model(), **shared}, task=Segmentation())
    lam, row = torch.tensor([0.3]), torch.tensor([0, 1, 2, 0])
    work = trainable(job.net.model())
    loss = method.loss(work, ctx, Batch(data.x, data.y, {"row": row, "lam": lam}))["task"]
    masks = torch.stack([data.y == 0, data.y == 1], 1).float()
    output = job.net.apply(trainable(job.net.model()), mix(lam, data.x, shared["mean_x"][row]))
    assert torch.equal(loss, Segmentation().soft_loss(output, 0.3 * masks + 0.7 * shared["mean_y"][row]))


def test_a_mixed_mask_is_learned_with_the_mixed_loss_of_both_terms() -> None:
    output, y = logits_and_masks(images=4)
    order, weight = torch.tensor([2, 3, 0, 1]), torch.tensor(0.3)
    task = Segmentation()
    mixed = MixedLabels(task, order, weight)
    expected = 0.3 * task.loss(output, y) + 0.7 * task.loss(output, y[order])
    assert float(mixed.loss(output, y)) == pytest.approx(float(expected), rel=1e-6)
    assert torch.allclose(mixed.soft_labels(y)[0], 0.3 * task.soft_labels(y)[0] + 0.7 * task.soft_labels(y)[2])


@pytest.mark.parametrize("zeroed", ["enc1", "enc2", "enc3", "enc4"])
def test_augmentation_never_reaches_the_skips_of_the_unet(zeroed: str) -> None:
    net = build("unet", (3, 32, 32), 2, 0)
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    until = net.position(zeroed)

    def silenced(stage: str, values: Tensor) -> Tensor:
        return torch.zeros_like(values) if stage == zeroed else values

    plain = net.apply(net.model(), x, stop=until, train=False)
    tapped = net.apply(net.model(), x, stop=until, train=False, tap=silenced)
    assert float(tapped[0].abs().sum()) == 0
    assert len(tapped) == until + 1
    assert all(torch.equal(a, b) for a, b in zip(plain[1:], tapped[1:], strict=True))


@pytest.mark.parametrize("spec", ["fedavg", "fedfa"])
def test_the_unet_trains_and_fedfa_exchanges_statistics_of_encoder_and_bottleneck(spec: str) -> None:
    job = squares_job(spec, build("unet", (1, 16, 16), 2, 0), rows=4, epochs=1, batch=4)
    recorder = run(job, rounds=1, observers=[Evaluate()])
    assert recorder.metrics[0]["failed"] == []
    if spec == "fedfa":
        widths = {stage: len(value["mean"]) for stage, value in recorder.server["own"]["gamma"].items()}
        assert widths == {"enc1": 32, "enc2": 64, "enc3": 128, "enc4": 256, "bottleneck": 512}


def test_large_images_are_scored_a_few_at_a_time() -> None:
    small = squares_job("fedavg")
    assert evaluation_rows(small) == 500
    wide = Examples(torch.zeros(1, 3, 384, 384), torch.zeros(1, 384, 384, dtype=torch.long))
    large = job_of("fedavg", GeneratedFederation(1, lambda client: wide, wide, 0), task=Segmentation())
    assert 1 <= evaluation_rows(large) < 20


def dataset(**changes: Any) -> Dataset:
    train, test = squares(24, 0), squares(12, 1)
    ids = np.repeat([0, 1, 2], 8)
    names = {"domain": ("north", "south", "west")}
    given = {"groups": {"domain": ids}, "group_names": names, "test_groups": {"domain": np.repeat([0, 1, 2], 4)}}
    return Dataset("squares", train, test, 2, task="segmentation", **{**given, **changes})


DOMAINS = Experiment(split="domain", clients=0, cohort=3, rounds=2, executor="sequential")


def test_a_run_chooses_task_and_network_from_the_data(tmp_path: Path) -> None:
    run_experiment("fedavg", DOMAINS, Training(epochs=1, batch=4), data=dataset(), out=tmp_path / "run")
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert set(record["per_group"]) == {"north", "south", "west"}
    assert record["accuracy"] == pytest.approx(np.mean(list(record["per_group"].values())), rel=1e-6)
    assert record["dice_with_background"] > record["dice"]


def test_the_same_run_twice_is_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_experiment(
            "fedmix",
            DOMAINS,
            Training(epochs=1, batch=4),
            values={"group": 4},
            data=dataset(),
            network=small_network(),
            out=tmp_path / name,
        )
    models = [storage.load(tmp_path / name / "model.safetensors")[0] for name in ("one", "two")]
    assert same(*models)


@pytest.mark.parametrize("rule", ["qua:2", "dir:0.5", "dirm:0.5", "exact:4:1"])
def test_splits_by_class_refuse_masks(rule: str, tmp_path: Path) -> None:
    experiment = Experiment(split=rule, clients=3)
    with pytest.raises(ConfigError, match=rf"split '{rule}' needs class labels but data 'squares' has masks: expected"):
        run_experiment("fedavg", experiment, data=dataset(), out=tmp_path / "run")


@pytest.mark.parametrize("rule", ["iid", "size:1.0"])
def test_splits_without_classes_take_masks(rule: str, tmp_path: Path) -> None:
    experiment = Experiment(split=rule, clients=4, cohort=4, rounds=1, executor="sequential")
    result = run_experiment(
        "fedavg", experiment, Training(epochs=1), data=dataset(), network=small_network(), out=tmp_path / "run"
    )
    assert result.clients == 4


def test_a_network_without_a_score_a_pixel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected \(1, 2, 16, 16\), a score a pixel and class"):
        run_experiment("fedavg", replace(DOMAINS, network="mlp"), data=dataset(), out=tmp_path / "run")


def test_the_command_refuses_a_method_with_class_labels(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="method 'flea' needs class labels"):
        run_experiment("flea", DOMAINS, data=dataset(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_groups_are_averaged_by_both_dices() -> None:
    """Two sites of two and one images, against the Dice of each image and class by hand."""
    truth = torch.tensor([[[0, 1], [1, 1]], [[0, 0], [0, 1]], [[1, 1], [0, 0]]])
    said = torch.tensor([[[0, 1], [0, 1]], [[0, 0], [1, 1]], [[1, 0], [0, 0]]])
    task = Segmentation(2)

    def score(rows: list[int]) -> Score:
        return task.score(20.0 * one_hot(said[rows], 2).movedim(-1, 1).float(), truth[rows])

    def by_hand(row: int, label: int) -> float:
        a, b = (said[row] == label), (truth[row] == label)
        return float(2 * (a & b).sum() / (a.sum() + b.sum()))

    whole = replace(score([0, 1, 2]), groups={"near": score([0, 1]), "far": score([2])})
    both = {row: (by_hand(row, 0) + by_hand(row, 1)) / 2 for row in range(3)}
    found = whole.metrics()
    assert found["dice_with_background_groups"] == pytest.approx(((both[0] + both[1]) / 2 + both[2]) / 2, abs=1e-4)
    foreground = ((by_hand(0, 1) + by_hand(1, 1)) / 2 + by_hand(2, 1)) / 2
    assert found["accuracy_groups"] == pytest.approx(foreground, abs=1e-4)
    assert found["dice_with_background"] == pytest.approx(sum(both.values()) / 3, abs=1e-4)
