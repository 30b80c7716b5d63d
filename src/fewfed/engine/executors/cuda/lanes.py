"""The lanes of a run. Each kind of client (phase, shapes, width) has its own, made when first needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from fewfed import tree
from fewfed.engine.events import Chosen, Event, Impossible
from fewfed.engine.executors.cuda import norms
from fewfed.engine.executors.cuda.board import Board
from fewfed.engine.executors.cuda.compiled import Compiler
from fewfed.engine.executors.cuda.lane import Lane, power_of_two
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.cuda.ready import UNEVEN, ReadyTurn
from fewfed.engine.job import Job
from fewfed.errors import in_one_line
from fewfed.fusion import Fusion
from fewfed.phase import Clock, Phase
from fewfed.tree import Tree

_LANES_OF_UNEVEN = 2
"""Lanes for clients whose batches differ in size: each records a step of every size, of which there may be hundreds."""


class Lanes:
    """Lanes by phase, width and shapes. Ways to compute that are not possible for a step are added to `events`."""

    def __init__(self, job: Job, options: Options, device: torch.device, events: list[Event]) -> None:
        self._job, self._options, self._device, self._events = job, options, device, events
        self.precision = options.arithmetic()
        self.fusion = Fusion(on=options.compiled == "parts")
        self._compiler = Compiler() if options.compiled == "steps" else None
        self._norms = self._find_norms()
        self._norms_of_stacks = norms.in_float32(job.net) if self.precision.autocast else None
        self._held: dict[tuple[object, ...], list[Lane]] = {}
        self._boards: dict[str, Board] = {}
        self._exact: set[str] = set()
        self._clocked: set[str] = set()

    def place(self, phase: Phase, shared: Tree) -> Tree:
        """Copy the broadcast to its board: addresses that stay the same from round to round."""
        held = self._boards.get(phase.name)
        if held is None or not held.fits(shared):
            held = Board.for_(shared, held, exact=phase.name in self._exact)
            self._boards[phase.name] = held
            self._held = {key: lanes for key, lanes in self._held.items() if key[0] != phase.name}
        held.write(shared)
        for lane in self._all():
            lane.follow()
        return held.static

    def forget(self, phase: Phase) -> None:
        """Drop the phase's recorded steps and its board."""
        self._boards.pop(phase.name, None)
        self._held = {key: lanes for key, lanes in self._held.items() if key[0] != phase.name}

    def keep_exact(self, phase: Phase) -> None:
        """Give the phase's buffers no spare rows from now on; its steps are recorded again when a length changes."""
        self._exact.add(phase.name)
        self._boards.pop(phase.name)

    def lay_out(self, *, channels_last: bool) -> None:
        """Store kernels of convolutions in another memory order; steps are recorded again."""
        self.clear()
        self.precision = dataclasses.replace(self.precision, channels_last=channels_last)
        self._norms = self._find_norms()

    def clear(self) -> None:
        self._held.clear()

    def drop(self, *, stacks: bool) -> None:
        """Give back the memory of all stacks, or of all that are none: recorded steps may hold tens of gigabytes."""
        self._held = {key: lanes for key, lanes in self._held.items() if (key[1] != 1) != stacks}
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def join(self) -> None:
        """Later work of the current stream waits for all lanes."""
        for lane in self._all():
            lane.join()

    def of(self, clock: Clock, shared: Tree, block: Sequence[ReadyTurn], width: int, masked: bool, number: int) -> Lane:
        """A lane for a block of turns, the `number`th of a group. Blocks are dealt to the lanes in rotation."""
        example = block[0]
        key = (example.ctx.phase.name, width, masked, _signature(block), id(shared))
        lanes = self._held.setdefault(key, [])
        # The recorded step contains the round number it was recorded with: record it again.
        if lanes and lanes[0].seen and lanes[0].round != clock.round:
            lanes.clear()
        wanted = self._options.streams if width == 1 else 2
        if example.batch == UNEVEN:
            wanted = min(wanted, _LANES_OF_UNEVEN)
        position = number % wanted
        known = lanes[position] if position < len(lanes) else None
        lane = self._recorded_somehow(known, shared, block, width, masked)
        if known is None:
            lanes.append(lane)
        if lane.seen:
            self._clocked.add(example.ctx.phase.name)
        return lane

    def _recorded_somehow(
        self, lane: Lane | None, shared: Tree, block: Sequence[ReadyTurn], width: int, masked: bool
    ) -> Lane:
        """A lane; without fused parts, or without fewfed's own kernels, where recording fails with them."""
        while True:
            try:
                return self._recorded(lane, shared, block, width, masked)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:
                if self.fusion.on and self.fusion.met:
                    self.fusion.on = False
                    left_out = "fused parts"
                elif self._norms and width == 1:
                    self._norms = None
                    left_out = "kernels for BatchNorm"
                else:
                    raise
                self._events.append(Impossible(left_out, in_one_line(error), block[0].ctx.phase.name))

    def _recorded(self, lane: Lane | None, shared: Tree, block: Sequence[ReadyTurn], width: int, masked: bool) -> Lane:
        name = block[0].ctx.phase.name
        # A step that reads the clock would have to be compiled in every round, and one of each size: not worth it.
        plain = name in self._clocked or block[0].batch == UNEVEN
        if lane is None:
            lane = Lane(
                self._job,
                block[0],
                shared,
                width=width,
                masked=masked,
                precision=self.precision,
                kind=(name, width, _signature(block), id(shared)),
                compiler=None if plain else self._compiler,
                fusion=self.fusion,
                norms=self._norms if width == 1 else self._norms_of_stacks,
            )
        lane.follow()
        with lane.queue():
            lane.record(block, padded=self._boards[name].padded)
        return lane

    def _all(self) -> Iterator[Lane]:
        for lanes in self._held.values():
            yield from lanes

    def _find_norms(self) -> norms.Norms | None:
        if not (self._options.kernels and self.precision.channels_last and self._options.mode in ("auto", "graphs")):
            return None
        try:
            found = norms.of(self._job.net, self._device, self.precision.autocast or torch.float32)
        except norms.NoKernels as error:
            self._events.append(Impossible("BatchNorm by kernels of fewfed's own", str(error)))
            return None
        if found:
            self._events.append(Chosen("BatchNorm", "kernels of fewfed's own", f"{found.layers} layers, mode 'graphs'"))
        return found


def _signature(block: Sequence[ReadyTurn]) -> tuple[object, ...]:
    """What blocks must have in common to use the same lane."""
    turn = block[0]
    trees = {"work": turn.work, "personal": turn.ctx.personal, "state": turn.ctx.state}
    shapes = tuple((path, leaf.shape, leaf.dtype) for path, leaf in tree.leaves(trees))
    steps = UNEVEN if turn.batch == UNEVEN else (*turn.parts[0].size, power_of_two(max(each.steps for each in block)))
    return (steps, tuple(turn.x.shape[1:]), shapes)
