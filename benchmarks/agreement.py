"""How far the modes of the device executor are from the CPU reference: every method, three rounds, float32, plain SGD.

    python benchmarks/agreement.py [--device cuda] [--methods flea ...] [--json FILE]

Plain SGD, because Adam turns the rounding noise of a zero gradient (a bias before BatchNorm) into a full step.
The figure is the largest difference of any parameter or buffer of the predicting model.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from fewfed import networks, tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.executor import Executor
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.methods.registry import choose, registered
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from fewfed.training import Training

CLASSES, CLIENTS, COHORT, ROUNDS = 10, 20, 6, 3


def federation() -> GeneratedFederation:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, 1, 8, 8, generator=generator)

    def rows(seed: int, labels: torch.Tensor) -> Examples:
        noise = torch.randn(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        return Examples(centres[labels] + noise, labels)

    def client(k: int) -> Examples:
        count = 12 + k % 5
        return rows(k + 1, (torch.arange(count) % 3 + k) % CLASSES)

    return GeneratedFederation(CLIENTS, client, rows(0, torch.arange(200) % CLASSES), CLASSES)


class Events:
    """Keeps what the executor said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def after_round(self, view: RoundView) -> None:
        self.said += [str(event) for event in view.record.events]


def final(spec: str, device: str, mode: str) -> tuple[dict[str, torch.Tensor], list[str]]:
    chosen = choose(spec)
    training = Training(
        **{**chosen.training, "optimizer": "sgd", "lr": 0.02, "epochs": 2, "batch": 8, "reset": "round"}
    )
    net = networks.build("digits-cnn", (1, 8, 8), CLASSES, 0)
    plan = Plan(0, training.batch, training.batch_rule, training.sampling)
    job = Job(chosen.method, net, Classification(CLASSES), federation(), training, plan)
    homes, events = SimulatedHomes(job), Events()
    executor: Executor = Sequential(job, homes)
    if mode != "cpu":
        executor = Device(job, homes, Options(device=device, mode=mode, stack=4))  # type: ignore[arg-type]
    server = run_rounds(job, executor, [events], rounds=ROUNDS, cohort=COHORT)
    client = next((k for k in range(CLIENTS) if homes.remembered(k) is not None), 0)
    model = chosen.method.predictor(server, homes.state(client))
    executor.close()
    return {name: leaf.double().cpu() for name, leaf in tree.leaves(model)}, events.said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--methods", nargs="*", default=[*registered(), "flea:official", "fedmix:taylor", "sem(flea)"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, dict[str, object]] = {}
    for spec in options.methods:
        reference, _ = final(spec, options.device, "cpu")
        table[spec] = {}
        for mode in ("graphs", "stacked"):
            try:
                found, events = final(spec, options.device, mode)
                gap = max(float((found[name] - reference[name]).abs().max()) for name in reference)
                table[spec][mode] = gap
                said = f"  ({'; '.join(events)[:110]})" if events else ""
                print(f"{spec:16} {mode:8} {gap:.1e}{said}", flush=True)
                if events:
                    table[spec][f"{mode}_said"] = events
            except Exception as error:
                table[spec][mode] = f"{type(error).__name__}: {str(error)[:200]}"
                print(f"{spec:16} {mode:8} {table[spec][mode]}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
