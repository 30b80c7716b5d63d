"""RMIA on a classifier of ordinary size, beside the published areas under the curve.

    python benchmarks/rmia_cifar.py --data FOLDER --json benchmarks/results/rmia-cifar.json
    python benchmarks/rmia_cifar.py --data digits --network digits-cnn --epochs 20 --batch 32        (a minute on a CPU)

One target and four reference models, each trained on half of the rows: the target on a random half, references in two
pairs, a random half and the other half, so that two of four have seen a row and two have not. Candidates are rows of
the target's half and as many others; the population are rows that are neither. Published, for CIFAR-10 and
WideResNet-28-2 with 92.4 % accuracy after 100 epochs (Zarifzadeh et al., ICML 2024): AUC 68.6 with one reference model,
71.0 with four. In the settings of their released code the one has not seen the row, of four two have; models are asked
about 18 copies of a row, mirrored and moved by a pixel, of which most decide; and a Taylor softmax with a margin stands
for the probability. All of it is measured here with and without.
Training is fewfed's one loop with one client that keeps its momentum, a round an epoch.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
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
from fewfed.privacy.attacks.whole_models import outputs
from fewfed.tasks.classification import Classification
from fewfed.training import Training
from fewfed.tree import Tree

REFERENCES = 4

REFERENCE_SETS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "1 unseen": lambda said, seen: rmia.evidence(said[0], said[1:3], seen[:2]),
    "2 unseen": lambda said, seen: rmia.evidence(said[0], said[1:], seen),
    # With a = 1 the mean over references is taken as it is: right where half of them have seen the row.
    "2 seen, 2 unseen": lambda said, _: rmia.evidence(said[0], said[1:], a=1.0),
}
"""By name: the evidence from how likely a row is (models, rows), and from which references saw it."""


def _of_label(values: Tensor, labels: Tensor) -> Tensor:
    return values.gather(-1, labels.expand(values.shape[:-1])[..., None])


def _taylor(said: Tensor, labels: Tensor) -> Tensor:
    """As the paper has it: a polynomial of order 4, which is positive everywhere, stands for the exponential, at
    temperature 2 and with a margin of 0.6. The released code stops at the third power, which is not positive."""

    def grown(x: Tensor) -> Tensor:
        return sum((x**power / math.factorial(power) for power in range(1, 5)), torch.ones_like(x))

    own, everything = _of_label(said / 2, labels), grown(said / 2).sum(-1, keepdim=True)
    label = grown(own - 0.6)
    return (label / (everything - grown(own) + label)).squeeze(-1)


SIGNALS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": lambda said, labels: _of_label(said.softmax(-1), labels).squeeze(-1),
    "margin": rmia.confidence,
    "Taylor": _taylor,
}
"""By name: how likely a label is, from what models say (..., rows, classes). `fewfed attack` uses the second."""

_AT_ONCE = 200
"""Rows that are compared with the population at once: each comparison is a number for each copy."""

PUBLISHED = {("1 unseen", "Taylor", 18): 68.6, ("2 seen, 2 unseen", "Taylor", 18): 71.0}
"""Areas under the curve, in percent, by references, signal and number of copies."""


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


@dataclass(frozen=True)
class Parted:
    """Numbers of rows: who is trained on which, and which are asked about."""

    halves: tuple[Tensor, ...]
    """The target's rows, then those of each reference model."""
    members: Tensor
    others: Tensor
    population: Tensor

    @classmethod
    def of(cls, rows: int, seed: int) -> Parted:
        random = torch.Generator().manual_seed(seed)
        order, half, fifth = torch.randperm(rows, generator=random), rows // 2, rows // 5
        halves = [order[:half]]
        for _ in range(REFERENCES // 2):
            halves += torch.randperm(rows, generator=random).split(half)[:2]
        return cls(tuple(halves), order[:fifth], order[half : half + fifth], order[half + fifth :][:fifth])

    def seen(self, asked: Tensor) -> Tensor:
        """(references, rows): which reference was trained on which of these rows."""
        return torch.stack([torch.isin(asked, half) for half in self.halves[1:]])


def read(data: str) -> tuple[Examples, Examples, int]:
    """Training and test rows, scaled channel by channel, and the number of classes."""
    if Path(data).is_dir():
        os.environ["FEWFED_DATA"], data = data, "cifar10"
    found = load(data)
    axes = [0, *range(2, found.train.x.dim())]
    mean, deviation = found.train.x.mean(axes, keepdim=True), found.train.x.std(axes, keepdim=True).clamp(min=1e-6)
    parts = [Examples((part.x - mean) / deviation, part.y) for part in (found.train, found.test)]
    return parts[0], parts[1], found.classes


def copies(x: Tensor) -> list[Tensor]:
    """A picture as it is, moved by a pixel in eight directions, and all nine mirrored; anything else as it is."""
    if x.dim() != 4:
        return [x]
    places = [(1, 1), *((down, right) for down in range(3) for right in range(3) if (down, right) != (1, 1))]
    padded = [torch.nn.functional.pad(each, (1, 1, 1, 1), mode="reflect") for each in (x, x.flip(-1))]
    height, width = x.shape[-2:]
    return [each[..., down : down + height, right : right + width] for each in padded for down, right in places]


def voted(rows: Tensor, population: Tensor, gamma: float = rmia.GAMMA) -> Tensor:
    """RMIA's score from several copies of each row (copies, rows): a row stands out against another where most of its
    copies do, each against the same copy of the other."""
    population = population[:, torch.isfinite(population).all(0)]
    shares = [
        (2 * (part[:, :, None] > gamma * population[:, None, :]).sum(0) > len(rows)).double().mean(1)
        for part in torch.split(rows, _AT_ONCE, dim=1)
    ]
    mean = rows.mean(0)
    return torch.cat(shares) + mean / (1 + mean) / (2 * population.shape[1])


def answered(number: int, options: argparse.Namespace) -> tuple[float, list[Tensor]]:
    """Train one model: its accuracy, and what it says (copies, rows, classes) of members, others, population."""
    train, test, classes = read(options.data)
    parts = Parted.of(len(train), options.seed)
    job = job_on(train.rows(parts.halves[number]), test, options, classes, options.seed + number)
    model = trained(job, options, f"reference {number}" if number else "target")
    device = torch.device(options.device)
    accuracy = float((outputs(job, model, test.x, device).argmax(1) == test.y).double().mean())
    asked = (train.rows(rows).x for rows in (parts.members, parts.others, parts.population))
    return accuracy, [torch.stack([outputs(job, model, each, device).float() for each in copies(x)]) for x in asked]


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Train everything, attack, and say what came of it."""
    train, _, _ = read(options.data)
    parts = Parted.of(len(train), options.seed)
    numbers = range(len(parts.halves))
    if options.jobs > 1:
        # Started anew: a process that was forked from one that has used a GPU cannot use it.
        with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            told = list(pool.map(answered, numbers, [options] * len(numbers)))
    else:
        told = [answered(number, options) for number in numbers]
    asked = [parts.members, parts.others, parts.population]
    said = [torch.stack([answers[group] for _, answers in told]).double() for group in range(len(asked))]
    if options.answers:
        numpy.savez_compressed(options.answers, *[each.half().numpy() for each in said])
    found: dict[str, Any] = {"accuracy": [accuracy for accuracy, _ in told]}
    found |= {"members": len(parts.members), "population": len(parts.population), "attacks": []}
    labels, seen = [train.y[rows] for rows in asked], [parts.seen(rows) for rows in asked]
    plain = [SIGNALS["softmax"](each[0, 0], y) for each, y in zip(said, labels, strict=True)]
    found["loss threshold"] = _judged(plain[0], plain[1])
    for name, signal in SIGNALS.items():
        likely = [signal(each, y) for each, y in zip(said, labels, strict=True)]
        for references, evidence in REFERENCE_SETS.items():
            shown = [
                torch.stack([evidence(copy, known) for copy in each.unbind(1)])
                for each, known in zip(likely, seen, strict=True)
            ]
            for count in sorted({1, len(shown[0])}):
                members, others, population = (each[:count].to(options.device) for each in shown)
                scores = voted(members, population).cpu(), voted(others, population).cpu()
                key = (references, name, count)
                found["attacks"].append(
                    {"references": references, "signal": name, "copies": count, **_judged(*scores)}
                    | ({"published auc": PUBLISHED[key]} if key in PUBLISHED else {})
                )
    return found


def _judged(members: Tensor, others: Tensor) -> dict[str, Any]:
    area = roc.area(members, others)
    return {
        "auc": [100 * each for each in area],
        "tpr at 1 % fpr": 100 * roc.hits_at(members, others, 0.01) / len(members),
    }


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
    parser.add_argument("--jobs", type=int, default=1, help="models that are trained at once")
    parser.add_argument("--answers", type=Path, help="where to keep what all models said, as .npz")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    found = measured(options)
    for name, value in found.items():
        for line in value if name == "attacks" else [value]:
            print(f"{name}: {line}")
    if options.json:
        settings = {name: str(value) for name, value in vars(options).items()}
        options.json.write_text(json.dumps({"settings": settings, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
