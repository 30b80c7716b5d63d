"""FedAvg in fluke, which trains clients one after another in one process (its parallel server needs GPUs)."""

from __future__ import annotations

from typing import Any

import peers.adapters.torchvision_ops  # noqa: F401  (must come before fluke)
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver
from peers import contract, workload
from peers.settings import Setting


class OnDemand(Client):
    """fluke's client, but its rows are made for its turn and not kept, as for everybody else here."""

    def __init__(self, setting: Setting, **named: Any) -> None:
        super().__init__(train_set=None, test_set=None, **named)
        self._setting = setting
        self._make = workload.filled_maker(setting)

    def fit(self, override_local_epochs: int = 0) -> float:
        setting = self._setting
        self.train_set = FastDataLoader(
            *self._make(self.index), num_labels=setting.classes, batch_size=setting.batch, shuffle=True
        )
        try:
            return float(super().fit(override_local_epochs))
        finally:
            self.train_set = None


class Ticks(FederationObserver):
    def __init__(self) -> None:
        self.clock = contract.Clock()

    def end_round(self, round: int) -> None:
        self.clock.tick()


def main() -> None:
    asked = contract.order()
    setting = asked.setting
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    steps, ticks = contract.StepCounter().watch_all(), Ticks()
    named = {"name": "Adam", "fused": True} if setting.optimizer == "adam" else {"name": "SGD"}
    optimizers = OptimizerConfigurator(DDict(**named, lr=setting.lr), DDict(name="StepLR", step_size=1, gamma=1))
    clients = [
        OnDemand(
            setting,
            index=index,
            optimizer_cfg=optimizers,
            loss_fn=torch.nn.CrossEntropyLoss(),
            local_epochs=setting.epochs,
            # Clients keep neither model nor optimiser between rounds: plain FedAvg.
            persistency=False,
        )
        for index in range(setting.clients)
    ]
    model = workload.module(setting)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    server = Server(model, None, clients)
    federation = FedAVG(setting.clients, None, DDict(), clients=clients, server=server)
    federation.set_callbacks([ticks])
    # A hair more than the fraction: fluke rounds the product down.
    federation.run(asked.rounds, (setting.cohort + 0.5) / setting.clients)
    contract.hand_back(asked, ticks.clock, steps.total, 1, first, server.model.state_dict())


if __name__ == "__main__":
    main()
