"""The yardstick: federated averaging as a bare PyTorch loop, in the same number of single-threaded processes."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class Work:
    """The same steps for everybody: clients' rows and how they are trained on."""

    name: str
    make: Callable[[], nn.Module]
    client: Callable[[int], tuple[Tensor, Tensor]]
    batch: int
    epochs: int
    lr: float
    optimizer: str


def train_client(work: Work, model: nn.Module, start: dict[str, Tensor], client: int, seed: int) -> int:
    """One client's turn, written the way a tutorial writes it."""
    model.load_state_dict(start)
    model.train()
    parameters = list(model.parameters())
    if work.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=work.lr, fused=True)
    else:
        optimizer = torch.optim.SGD(parameters, lr=work.lr)
    x, y = work.client(client)
    generator = torch.Generator().manual_seed(seed)
    size = min(work.batch, len(y))
    steps = work.epochs * -(-len(y) // size)
    rows = torch.cat([torch.randperm(len(y), generator=generator) for _ in range(steps * size // len(y) + 1)])
    for step in range(steps):
        chosen = rows[step * size : (step + 1) * size]
        optimizer.zero_grad()
        cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    return steps


class BareLoop:
    """Workers that wait for a list of clients, train them from the shared start and leave the sum of their states."""

    def __init__(self, work: Work, processes: int) -> None:
        self._work = work
        self._model = work.make()
        self.state = {name: value.detach().clone().share_memory_() for name, value in self._model.state_dict().items()}
        self._sums = [
            {name: torch.zeros_like(value).share_memory_() for name, value in self.state.items()}
            for _ in range(processes)
        ]
        self._pipes: list[tuple[int, int, int]] = []
        for index in range(processes):
            self._pipes.append(self._start(index))

    def round(self, clients: Sequence[int], seed: int) -> None:
        count = len(self._pipes)
        for index, (_, to, _) in enumerate(self._pipes):
            part = clients[index::count]
            os.write(to, struct.pack(f"<{len(part) + 2}q", len(part), seed, *part))
        for _, _, back in self._pipes:
            os.read(back, 1)
        for name, value in self.state.items():
            total = sum(sums[name] for sums in self._sums)
            value.copy_(total / len(clients) if value.is_floating_point() else value)

    def close(self) -> None:
        for pid, to, back in self._pipes:
            os.close(to)
            os.close(back)
            os.waitpid(pid, 0)

    def _start(self, index: int) -> tuple[int, int, int]:
        to_read, to_write = os.pipe()
        back_read, back_write = os.pipe()
        pid = os.fork()
        if pid:
            os.close(to_read)
            os.close(back_write)
            return pid, to_write, back_read
        os.close(to_write)
        for _, to, _ in self._pipes:  # An earlier worker's pipe ends only when nobody else holds it.
            os.close(to)
        torch.set_num_threads(1)
        while True:
            head = os.read(to_read, 16)
            if not head:
                os._exit(0)
            count, seed = struct.unpack("<2q", head)
            clients = struct.unpack(f"<{count}q", os.read(to_read, 8 * count))
            for value in self._sums[index].values():
                value.zero_()
            for client in clients:
                train_client(self._work, self._model, self.state, client, seed + client)
                for name, value in self._model.state_dict().items():
                    self._sums[index][name] += value
            os.write(back_write, b".")
