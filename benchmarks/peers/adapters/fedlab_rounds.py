"""FedAvg in FedLab's cross-process mode: a server and one process a core, each training its share of the clients."""

from __future__ import annotations

import logging
import multiprocessing
import socket
from collections.abc import Callable

import peers.adapters.torchvision_ops  # noqa: F401  (must come before fedlab)
import torch
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.client.manager import PassiveClientManager
from fedlab.core.network import DistNetwork
from fedlab.core.server.manager import SynchronousServerManager
from peers import contract, workload
from peers.settings import Setting
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Clients(FedDataset):
    """Clients made on demand."""

    def __init__(self, make: Callable[[int], workload.Rows]) -> None:
        self._make = make

    def get_dataloader(self, id: int, batch_size: int, mode: str = "train") -> DataLoader[tuple[Tensor, ...]]:
        rows = TensorDataset(*self._make(id))
        # A batch is indexed at once, which is twice as fast as the loader's default of row by row.
        return DataLoader(rows, sampler=BatchSampler(RandomSampler(rows), batch_size, False), batch_size=None)


class Trainer(FedAvgSerialClientTrainer):
    """FedLab's trainer with the setting's optimiser, made anew for each client."""

    def __init__(self, model: torch.nn.Module, share: int, setting: Setting, steps: contract.StepCounter) -> None:
        super().__init__(model, share)
        self._setting = setting
        self._steps = steps

    def train(self, model_parameters: Tensor, train_loader: DataLoader[tuple[Tensor, ...]]) -> list[Tensor]:
        self.optimizer = self._steps.watch(workload.optimizer(self._setting, self._model.parameters()))
        trained: list[Tensor] = super().train(model_parameters, train_loader)
        return trained


class Handler(FedAvgServerHandler):
    """FedLab's server, noting the end of every round."""

    def __init__(self, model: torch.nn.Module, rounds: int, fraction: float) -> None:
        super().__init__(model, rounds, fraction)
        self.clock = contract.Clock()

    def load(self, payload: list[Tensor]) -> bool:
        ended = bool(super().load(payload))
        if ended:
            self.clock.tick()
        return ended


def main() -> None:
    asked = contract.order()
    setting, processes = asked.setting, asked.processes
    logging.disable(logging.INFO)  # FedLab writes several lines a client.
    model, steps = workload.module(setting), contract.StepCounter()
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = ("localhost", str(probe.getsockname()[1]))

    def train_share(rank: int) -> None:
        share = setting.clients // processes + (rank <= setting.clients % processes)
        trainer = Trainer(model, share, setting, steps)
        trainer.setup_dataset(Clients(workload.filled_maker(setting)))
        trainer.setup_optim(setting.epochs, setting.batch, setting.lr)
        PassiveClientManager(DistNetwork(address, processes + 1, rank), trainer).run()

    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=train_share, args=(rank,), daemon=True) for rank in range(1, processes + 1)]
    for worker in workers:
        worker.start()
    # A hair more than the fraction: FedLab rounds the product down.
    handler = Handler(model, asked.rounds, (setting.cohort + 0.5) / setting.clients)
    SynchronousServerManager(DistNetwork(address, processes + 1, 0), handler, mode="GLOBAL").run()
    for worker in workers:
        worker.join()
    # FedLab copies the module it is given, so this one still has its first weights.
    contract.hand_back(asked, handler.clock, steps.total, processes, model.state_dict(), handler.model.state_dict())


if __name__ == "__main__":
    main()
