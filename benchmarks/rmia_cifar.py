"""RMIA on a classifier of ordinary size, beside the published areas under the curve.

    python benchmarks/rmia_cifar.py --data FOLDER --json benchmarks/results/rmia-cifar.json
    python benchmarks/rmia_cifar.py --data digits --network digits-cnn --epochs 20 --batch 32        (a minute on a CPU)

One target and four reference models, each on half as many rows as there are. Rows are parted once: candidates, of which
the target is trained on half; all others, from which the target's remaining rows and every reference model's are drawn.
So every reference model has seen no candidate, and the test part is the population. Published, for CIFAR-10 and
WideResNet-28-2 with 92.4 % accuracy (Zarifzadeh et al., ICML 2024): AUC 68.6 with one reference model, 71.0 with four.
Training is fewfed's one loop with one client that keeps its momentum, a round an epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from fewfed import networks
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.data.sources import load
from fewfed.data.variation import NONE, Variation
from fewfed.engine.choices import Choices
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.cuda.plugin import has_gpu
from fewfed.engine.executors.registry import plugin
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.methods.fedavg import FedAvg
from fewfed.plan import Plan
from fewfed.privacy.attacks import rmia, roc
from fewfed.privacy.attacks.whole_models import losses, outputs
from fewfed.tasks.classification import Classification
from fewfed.training import Training
from fewfed.tree import Tree

PUBLISHED = {1: 68.6, 4: 71.0}


class Told:
    """Says every tenth round."""

    def __init__(self, what: str) -> None:
        self._what, self._began = what, time.perf_counter()

    def after_round(self, view: RoundView) -> None:
        done = view.clock.round + 1
        if done % max(1, view.clock.rounds // 10) == 0:
            loss = view.record.phases["train"].terms["task"]
            print(f"{self._what}: epoch {done}, loss {loss:.3f}, {time.perf_counter() - self._began:.0f} s", flush=True)


def job_on(rows: Examples, test: Examples, options: argparse.Namespace, classes: int, seed: int) -> Job:
    """One client with these rows."""
    shape = tuple(rows.x.shape[1:])
    varied = options.augment and len(shape) == 3 and min(shape[1:]) >= 16
    variation = Variation(flip="horizontal", crop=4).on(rows.x) if varied else NONE
    training = Training(
        epochs=1, batch=options.batch, optimizer="sgd", momentum=0.9, weight_decay=5e-4, reset="never", lr=options.lr,
        lr_rule="linear", lr_decay=1 / options.epochs, lr_floor=0.0,
    )  # fmt: skip
    alone = GeneratedFederation(1, lambda _: rows, test, classes, len(rows), variation=variation)
    net = networks.build(options.network, shape, classes, seed)
    return Job(FedAvg(), net, Classification(classes), alone, training, Plan(seed, training.batch))


def trained(job: Job, options: argparse.Namespace, what: str) -> Tree:
    """Its model after all epochs."""
    chosen = plugin("cuda" if options.device == "cuda" else "sequential")
    how: Any = Options(precision=options.precision) if options.device == "cuda" else chosen.options()
    executor = chosen.make(job, SimulatedHomes(job), how, Choices())
    try:
        model: Tree = run_rounds(job, executor, [Told(what)], rounds=options.epochs, cohort=1)["model"]
    finally:
        executor.close()
    return model


def parted(rows: Examples, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of members and of as many non-members, a fifth of all rows each, and of all others."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    fifth = len(rows) // 5
    return order[:fifth], order[fifth : 2 * fifth], order[2 * fifth :]


def read(data: str) -> tuple[Examples, Examples, int]:
    """Training and test rows, scaled channel by channel, and the number of classes."""
    if Path(data).is_dir():
        os.environ["FEWFED_DATA"], data = data, "cifar10"
    found = load(data)
    axes = [0, *range(2, found.train.x.dim())]
    mean, deviation = found.train.x.mean(axes, keepdim=True), found.train.x.std(axes, keepdim=True).clamp(min=1e-6)
    parts = [Examples((part.x - mean) / deviation, part.y) for part in (found.train, found.test)]
    return parts[0], parts[1], found.classes


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Train everything, attack, and say what came of it."""
    train, test, classes = read(options.data)
    members, others, rest = parted(train, options.seed)
    half = len(train) // 2
    device = torch.device(options.device)
    models, jobs = [], []
    for number in range(1 + max(PUBLISHED)):
        drawn = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(1000 + options.seed + number))]
        chosen = torch.cat([members, drawn[: half - len(members)]]) if number == 0 else drawn[:half]
        job = job_on(train.rows(chosen), test, options, classes, options.seed + number)
        models.append(trained(job, options, f"reference {number}" if number else "target"))
        jobs.append(job)
    accuracy = [
        float((outputs(job, model, test.x, device).argmax(1) == test.y).double().mean())
        for job, model in zip(jobs, models, strict=True)
    ]
    asked = [train.rows(members), train.rows(others), test]
    said = [torch.stack([losses(jobs[0], model, rows, device) for model in models]) for rows in asked]
    found: dict[str, Any] = {"accuracy": accuracy, "members": len(members), "population": len(test)}
    area = roc.area(-said[0][0], -said[1][0])
    found["loss threshold"] = {"auc": [100 * each for each in area]}
    for count, published in PUBLISHED.items():
        evidence = [rmia.evidence(each[0], each[1 : 1 + count]) for each in said]
        scores = [rmia.scores(each, evidence[2]) for each in evidence[:2]]
        area = roc.area(*scores)
        hits = roc.hits_at(*scores, 0.01) / len(members)
        found[f"RMIA, {count}"] = {
            "auc": [100 * each for each in area],
            "tpr at 1 % fpr": 100 * hits,
            "published auc": published,
        }
    return found


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", required=True, help="folder that holds cifar-10-batches-py, or the name of a data set"
    )
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="bf16", choices=["float32", "tf32", "bf16"])
    parser.add_argument("--device", default="cuda" if has_gpu() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--augment", action=argparse.BooleanOptionalAction, default=True, help="crops and flips")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    found = measured(options)
    for name, value in found.items():
        print(f"{name}: {value}")
    if options.json:
        settings = {name: str(value) for name, value in vars(options).items()}
        options.json.write_text(json.dumps({"settings": settings, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
