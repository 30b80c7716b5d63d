"""Peak memory of methods that keep a model for every client: states spill to disk, memory stays bounded.

python benchmarks/memory.py moon 1000 mobilenetv2      # 1 000 clients of MOON with MobileNetV2
python benchmarks/memory.py flair 100 resnet18         # 100 clients of FLAIR with ResNet-18
python benchmarks/memory.py flea 1000 mobilenetv2 100  # FLea, 100 of 1 000 clients a round
"""

from __future__ import annotations

import argparse
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
from fewfed.engine.client_store import ClientStore
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.methods.registry import choose
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from fewfed.training import Training

ROWS, CLASSES, SHAPE = 4, 10, (3, 32, 32)


class Committing:
    """Writes states to disk after every round, as a run folder's checkpoint does."""

    def __init__(self, store: ClientStore) -> None:
        self._store = store

    def after_round(self, view: RoundView) -> None:
        view.executor.homes.commit()
        view.executor.homes.settle()
        failed = len(view.record.failed)
        print(f"round {view.clock.round + 1}: {len(self._store)} states kept, {failed} left out", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method")
    parser.add_argument("clients", type=int)
    parser.add_argument("network")
    parser.add_argument("cohort", type=int, nargs="?", help="clients a round; all unless given")
    given = parser.parse_args()
    method, clients, network = given.method, given.clients, given.network
    cohort = given.cohort or clients
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
        store = ClientStore(Path(folder))
        executor = Workers(job, SimulatedHomes(job, store))
        try:
            run_rounds(job, executor, [Committing(store)], rounds=2, cohort=cohort)
        finally:
            executor.close()
    usage = [resource.getrusage(who).ru_maxrss / 2**20 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(
        f"{method}, {cohort} of {clients} clients, {network}: peak {usage[0]:.2f} GiB in the main process, "
        f"at most {usage[1]:.2f} GiB in a worker, {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
