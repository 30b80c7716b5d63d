"""What the clients of a lane report: for a whole stack at once, where the method's `end` allows it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewfed import tree
from fewfed.engine.device.lane import Finished, Turn
from fewfed.engine.device.rows import table_of
from fewfed.engine.device.watch import CannotCapture, of_many
from fewfed.method import Method, Report
from fewfed.tree import Tree


class Reports:
    """Asks a method for reports, and remembers the phases in which it must be asked for each client apart."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self._apart: set[str] = set()

    def of(self, finished: Finished) -> tuple[Report | Exception, ...]:
        """A report for every turn; what goes wrong counts only if the client's numbers turn out to be numbers."""
        phase = finished.turns[0].ctx.phase.name
        if finished.width > 1 and phase not in self._apart and _alike(finished.turns):
            try:
                return self._together(finished)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception:  # Whatever it is, asking for each client shows whose fault it is, if anybody's.
                self._apart.add(phase)
        return tuple(self._alone(turn, work) for turn, work in finished.works())

    def _together(self, finished: Finished) -> tuple[Report, ...]:
        ctx, count = finished.turns[0].ctx, len(finished.turns)
        weights: list[object] = []

        def one(work: Tree, own: Tree) -> Tree:
            report = self._method.end(work, of_many(ctx, *table_of(ctx.data), own))
            weights.append(report.weight)
            return {"upload": report.upload, "state": report.state}

        with torch.no_grad():
            stack: Tree = torch.func.vmap(one)(_first(finished.work, count), _first(finished.own, count))
        (weight,) = weights
        if not isinstance(weight, float):
            raise CannotCapture("its reports weigh what was computed for one client")
        return tuple(Report(each["upload"], each["state"], weight) for each in tree.unstack(stack, count))

    def _alone(self, turn: Turn, work: Tree) -> Report | Exception:
        try:
            with torch.no_grad():
                return self._method.end(work, turn.ctx)
        except torch.cuda.OutOfMemoryError:
            raise  # The device is to blame, not the client.
        except Exception as error:
            return error


def _alike(turns: Sequence[Turn]) -> bool:
    """Whether the numbers a report may contain beside tensors are the same for all."""
    first = turns[0]
    return all(turn.steps == first.steps and turn.ctx.size == first.ctx.size for turn in turns)


def _first(stack: Tree, count: int) -> Tree:
    return tree.map(lambda leaf: leaf[:count], stack)
