"""What a local step of each method costs beside FedAvg's, on HARNet: in arithmetic and in time.

    python benchmarks/method_cost.py [--methods flea ...] [--repeats 5] [--markdown]

Arithmetic is counted (multiply-adds of all convolutions and products of one client's turn, forward and backward); time
is the least of several repeats, each beside a repeat of FedAvg, in one process on one thread. The last column is time
over arithmetic: what a method costs beyond the passes it needs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from fewfed import networks
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import PSEUDO_CLIENT, Job
from fewfed.engine.loop import run_rounds
from fewfed.engine.outcomes import Failed, Outcome
from fewfed.engine.turn import Member, run_turn
from fewfed.methods.registry import choose, registered
from fewfed.phase import Clock, Phase
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from fewfed.training import Training
from fewfed.tree import Tree

SHAPE, CLASSES, CLIENTS, ROWS = (1, 128, 3), 6, 4, 96
EARLY = {"fedgen": {"start": 1, "steps": 5}, "fedgen-latent": {"steps": 5}, "ccvr": {"epochs": 1}}
"""Settings that bring a method's own work into the few rounds of this benchmark."""


class Watching(Sequential):
    """Keeps the last training turn of a client."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.turn: tuple[Phase, Clock, Tree, Member] | None = None

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        kept = list(members)
        if briefing.phase.epochs and kept[0].client != PSEUDO_CLIENT:
            self.turn = (briefing.phase, briefing.clock, briefing.shared, next(self.at_home(briefing.phase, kept)))
        yield from super().run(briefing, kept)


def last_turn(spec: str) -> tuple[Job, tuple[Phase, Clock, Tree, Member]]:
    """A method's job and a client's training turn of its third round, when buffers and states exist."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, ROWS, *SHAPE, generator=generator)
    y = torch.randint(CLASSES, (CLIENTS, ROWS), generator=generator)
    federation = GeneratedFederation(CLIENTS, lambda k: Examples(x[k], y[k]), Examples(x[0][:8], y[0][:8]), CLASSES)
    chosen = choose(spec, EARLY.get(spec))
    training = Training(**{**chosen.training, "epochs": 2, "batch": 32})
    net = networks.build("harnet", SHAPE, CLASSES, 0)
    plan = Plan(0, training.batch, training.batch_rule, training.sampling)
    job = Job(chosen.method, net, Classification(CLASSES), federation, training, plan)
    executor = Watching(job)
    run_rounds(job, executor, [], rounds=3, cohort=2)
    assert executor.turn is not None
    return job, executor.turn


def one(job: Job, turn: tuple[Phase, Clock, Tree, Member]) -> int:
    outcome = run_turn(job, *turn)
    if isinstance(outcome, Failed):
        raise SystemExit(f"{job.method.label}: {outcome.reason}")
    return outcome.packet.steps


def arithmetic(job: Job, turn: tuple[Phase, Clock, Tree, Member]) -> float:
    """Multiply-adds a step."""
    counter = FlopCounterMode(display=False)
    with counter:
        steps = one(job, turn)
    return counter.get_total_flops() / steps


def seconds(job: Job, turn: tuple[Phase, Clock, Tree, Member]) -> float:
    began = time.perf_counter()
    steps = one(job, turn)
    return (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", default=[name for name in registered() if name != "single"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    base = last_turn("fedavg")
    least = arithmetic(*base)
    if options.markdown:
        print("| method | arithmetic | time | time / arithmetic |\n|---|---|---|---|")
    for spec in options.methods:
        mine = last_turn(spec)
        work = arithmetic(*mine) / least
        pairs = [(seconds(*base), seconds(*mine)) for _ in range(options.repeats)]
        ratio = min(own for _, own in pairs) / min(other for other, _ in pairs)
        if options.markdown:
            print(f"| {spec} | {work:.2f} | {ratio:.2f} | {ratio / work:.2f} |", flush=True)
        else:
            print(
                f"{spec:16} arithmetic {work:5.2f}  time {ratio:5.2f}  time/arithmetic {ratio / work:5.2f}", flush=True
            )


if __name__ == "__main__":
    main()
