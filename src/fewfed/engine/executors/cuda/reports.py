"""Calls `end` for the clients of a lane: once for a whole stack where the method allows it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewfed import tree
from fewfed.engine.executors.cuda.lane import Trained
from fewfed.engine.executors.cuda.ready import ReadyTurn
from fewfed.engine.executors.cuda.rows import table_of
from fewfed.engine.executors.cuda.watch import CannotCapture, of_many
from fewfed.engine.lending import Glance
from fewfed.method import Report
from fewfed.tree import Tree


class Reports:
    """Makes reports, and remembers the phases in which `end` must be called for each client."""

    def __init__(self) -> None:
        self._apart: set[str] = set()

    def of(self, trained: Trained) -> tuple[Report | Exception, ...]:
        """A report, or an error, for every turn. The error is used only if the training itself gave finite numbers."""
        phase = trained.turns[0].ctx.phase.name
        if trained.width > 1 and phase not in self._apart and _alike(trained.turns):
            try:
                return self._together(trained)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception:  # Called for each client, `end` shows which one is the cause.
                self._apart.add(phase)
        return tuple(self._one(turn, work) for turn, work in trained.works())

    def _together(self, trained: Trained) -> tuple[Report, ...]:
        ctx, count = trained.turns[0].ctx, len(trained.turns)
        beside: list[tuple[object, object]] = []

        def one(work: Tree, own: Tree) -> Tree:
            report = ctx.phase.does.end(work, of_many(ctx, *table_of(ctx.data), own))
            beside.append((report.weight, report.metrics))
            return {"upload": report.upload, "state": report.state}

        glance = Glance(trained.own)
        with torch.no_grad():
            stack: Tree = torch.func.vmap(one)(_first(trained.work, count), _first(trained.own, count))
        if not glance.unchanged():
            raise CannotCapture("its reports change what clients were given")
        ((weight, metrics),) = beside
        if not isinstance(weight, float) or metrics:
            raise CannotCapture("its reports hold numbers that were computed for one client")
        return tuple(Report(each["upload"], each["state"], weight) for each in tree.unstack(stack, count))

    def _one(self, turn: ReadyTurn, work: Tree) -> Report | Exception:
        try:
            with torch.no_grad():
                return turn.ctx.phase.does.end(work, turn.ctx)
        except torch.cuda.OutOfMemoryError:
            raise  # The device is to blame, not the client.
        except Exception as error:
            return error


def _alike(turns: Sequence[ReadyTurn]) -> bool:
    """Whether the numbers a report may contain beside tensors are the same for all."""
    first = turns[0]
    return all(turn.steps == first.steps and turn.ctx.size == first.ctx.size for turn in turns)


def _first(stack: Tree, count: int) -> Tree:
    return tree.map(lambda leaf: leaf[:count], stack)
