"""A feed: the batches and draws of all steps of one size, at fixed addresses, and the step recorded for that size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fewfed.engine.executors.cuda.ready import ReadyTurn, Steps
from fewfed.method import Batch


class Feed:
    """Hands out one step after another; a counter on the device says which, so that a recorded step can ask."""

    def __init__(
        self, turn: ReadyTurn, part: Steps, *, width: int, capacity: int, masked: bool, channels_last: bool
    ) -> None:
        """Room for `capacity` steps of `width` clients, each step like those of `part`."""
        self._width, self._masked, self._device = width, masked, turn.x.device
        self._places = part.drawn.places
        lead = (capacity, part.rows.shape[1]) if width == 1 else (capacity, width, part.rows.shape[1])
        self._x = torch.zeros((*lead, *turn.x.shape[1:]), dtype=turn.x.dtype, device=self._device)
        if channels_last and self._x.dim() == len(lead) + 3 and width == 1:
            flat = self._x.flatten(0, 1).contiguous(memory_format=torch.channels_last)
            self._x = flat.view(*lead, *flat.shape[1:])
        self._y = torch.zeros((*lead, *turn.y.shape[1:]), dtype=turn.y.dtype, device=self._device)
        self._drawn = self._places.blank((capacity,) if width == 1 else (capacity, width), self._device)
        self._active = torch.ones((capacity, width), dtype=torch.bool, device=self._device)
        self._counter = torch.zeros(1, dtype=torch.long, device=self._device)
        self.terms: tuple[str, ...] = ()
        """The loss terms of its steps."""
        self.graph: torch.cuda.CUDAGraph | None = None
        """The recorded step."""

    def load(self, turns: Sequence[ReadyTurn], part: int) -> None:
        """Copy in that part of every turn."""
        self._counter.zero_()
        loaded = [turn.parts[part] for turn in turns]
        steps = max(len(each) for each in loaded)
        rows = [_padded(each.rows, steps) for each in loaded]
        rows += [rows[0]] * (self._width - len(rows))
        numbers = _to_device(rows[0] if self._width == 1 else torch.stack(rows, 1), self._device)
        table_x, table_y = turns[0].x, turns[0].y
        if any(turn.x is not table_x for turn in turns):
            # Clients with tables of their own: put them one after another and shift the numbers.
            all_of_them = [*turns, *[turns[0]] * (self._width - len(turns))]
            table_x, table_y = torch.cat([t.x for t in all_of_them]), torch.cat([t.y for t in all_of_them])
            offsets = torch.tensor([0, *(len(t.x) for t in all_of_them[:-1])]).cumsum(0)
            numbers = numbers + _to_device(offsets.reshape(1, -1, 1), self._device)
        self._x[:steps].copy_(table_x[numbers])
        self._y[:steps].copy_(table_y[numbers])
        for kind, static in self._drawn.items():
            for position, each in enumerate([*loaded, *[loaded[0]] * (self._width - len(loaded))]):
                target = static if self._width == 1 else static[:, position]
                target[: len(each)].copy_(each.drawn.matrices[kind], non_blocking=True)
                if len(each) < steps:  # A finished client computes on without effect, but its inputs must be numbers.
                    target[len(each) : steps].copy_(each.drawn.matrices[kind][:1], non_blocking=True)
        if self._masked:
            lengths = torch.tensor([len(each) for each in loaded] + [0] * (self._width - len(loaded)))
            self._active[:steps].copy_(_to_device(torch.arange(steps).unsqueeze(1) < lengths, self._device))

    def now(self) -> tuple[Batch, Tensor | None]:
        """The current step's batch, and if clients differ in steps, which of them still take it."""
        pick = self._counter
        batch = Batch(
            self._x.index_select(0, pick).squeeze(0),
            self._y.index_select(0, pick).squeeze(0),
            self._places.unpack({kind: d.index_select(0, pick).squeeze(0) for kind, d in self._drawn.items()}),
        )
        return batch, self._active.index_select(0, pick).squeeze(0) if self._masked else None

    def advance(self) -> None:
        self._counter.add_(1)


def _padded(value: Tensor, steps: int) -> Tensor:
    return value if len(value) == steps else torch.cat([value, value[:1].expand(steps - len(value), *value.shape[1:])])


def _to_device(value: Tensor, device: torch.device) -> Tensor:
    return value.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else value
