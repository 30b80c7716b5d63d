"""FedAvg in pfl-research: one process a core through torch.distributed (gloo), which pfl sets up when imported."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from typing import Any

import torch
from peers import contract, workload
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def start_other_ranks(processes: int) -> list[subprocess.Popen[bytes]]:
    """Become rank 0 of several by pfl's own environment variables; the others run this same command."""
    if processes == 1 or "PFL_WORKER_RANK" in os.environ:
        return []
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    # Only the first address is connected to; the others are counted.
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join([f"localhost:{port}"] * processes)
    command = [sys.executable, *sys.argv]
    ranks = [
        subprocess.Popen(command, env={**os.environ, "PFL_WORKER_RANK": str(rank)}) for rank in range(1, processes)
    ]
    os.environ["PFL_WORKER_RANK"] = "0"
    return ranks


class Trainable(nn.Module):
    """A module with the two functions pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x)
        return output

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        raise RuntimeError("nothing is evaluated here")


def main() -> None:
    asked = contract.order()
    setting = asked.setting
    others = start_other_ranks(asked.processes)

    # Imported only now: the import joins the ranks.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.model.pytorch import PyTorchModel

    class Unevaluated(FederatedAveraging):
        """pfl evaluates in the first round however seldom it is told to."""

        def get_next_central_contexts(self, *arguments: Any, **named: Any) -> Any:
            contexts, model, metrics = super().get_next_central_contexts(*arguments, **named)
            if contexts is not None:
                contexts = tuple(dataclasses.replace(context, do_evaluation=False) for context in contexts)
            return contexts, model, metrics

    class Ticks(TrainingProcessCallback):
        def after_central_iteration(self, *_: Any, **__: Any) -> Any:
            clock.tick()
            from pfl.metrics import Metrics

            return False, Metrics()

    clock, steps = contract.Clock(), contract.StepCounter()
    make = workload.filled_maker(setting)
    inner = workload.module(setting)
    first = {name: value.clone() for name, value in inner.state_dict().items()}
    trainable = Trainable(inner)
    model = PyTorchModel(
        trainable,
        lambda parameters, lr: steps.watch(workload.optimizer(setting, parameters, lr)),
        torch.optim.SGD(trainable.parameters(), lr=1.0),
    )
    users = FederatedDataset(
        lambda user: Dataset(raw_data=list(make(user))), get_user_sampler("random", list(range(setting.clients)))
    )
    # No weights of users are given: all are alike, and pfl then needs no process of its own to balance them.
    backend = SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByUser()])
    Unevaluated().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=asked.rounds,
            evaluation_frequency=asked.rounds + 1,
            train_cohort_size=setting.cohort,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=setting.epochs, local_learning_rate=setting.lr, local_batch_size=setting.batch
        ),
        callbacks=[Ticks()],
        send_metrics_to_platform=False,
    )
    counted = pytorch_ops.distributed.all_reduce([torch.tensor([float(steps.total)])])
    if os.environ.get("PFL_WORKER_RANK", "0") == "0":
        last = inner.state_dict()
        contract.hand_back(asked, clock, int(counted[0].item()), pytorch_ops.distributed.world_size, first, last)
    for process in others:
        if process.wait() != 0:
            raise RuntimeError(f"another rank ended with status {process.returncode}")


if __name__ == "__main__":
    main()
