"""Peak memory of methods that keep a model for every client: states spill to disk, memory stays bounded.

python benchmarks/memory.py moon 1000 mobilenetv2      # 1 000 clients of MOON with MobileNetV2
python benchmarks/memory.py flair 100 resnet18         # 100 clients of FLAIR with ResNet-18
python benchmarks/memory.py flea 1000 mobilenetv2 100  # FLea, 100 of 1 000 clients a round
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from fewfed import networks
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.engine.store import ClientStore
from fewfed.engine.workers import Workers
from fewfed.methods.registry import choose
from fewfed.plan import Plan
from fewfed.task import Classification
from fewfed.training import Training

ROWS, CLASSES, SHAPE = 4, 10, (3, 32, 32)


class Committing:
    """Writes states to disk after every round, as a run folder's checkpoint does."""

    def after_round(self, view: RoundView) -> None:
        view.store.commit()
        view.store.forget_obsolete()
        failed = len(view.metrics["failed"])
        print(f"round {view.clock.round + 1}: {len(view.store)} states kept, {failed} left out", flush=True)


def main() -> None:
    method, clients, network = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    cohort = int(sys.argv[4]) if len(sys.argv) > 4 else clients
    chosen = choose(method)

    def client(k: int) -> Examples:
        generator = torch.Generator().manual_seed(k)
        return Examples(torch.randn(ROWS, *SHAPE, generator=generator), torch.arange(ROWS) % CLASSES)

    federation = GeneratedFederation(clients, client, client(-1), CLASSES)
    training = Training(**{**chosen.training, "epochs": 1, "batch": ROWS})
    net = networks.build(network, SHAPE, CLASSES, 0)
    job = Job(chosen.method, net, Classification(CLASSES), federation, training, Plan(0, ROWS))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        executor = Workers(job)
        try:
            run_rounds(job, executor, [Committing()], rounds=2, cohort=cohort, store=ClientStore(Path(folder)))
        finally:
            executor.close()
    usage = [resource.getrusage(who).ru_maxrss / 2**20 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(
        f"{method}, {cohort} of {clients} clients, {network}: peak {usage[0]:.2f} GiB in the main process, "
        f"at most {usage[1]:.2f} GiB in a worker, {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
