"""What rows would be sent as, each by itself and without the noise that protects it: a candidate's mark, by which who
has the row can look for it in what was sent."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.privacy.attacks.case import Case, Exchanged
from fewfed.privacy.noiseless import without_noise
from fewfed.privacy.stand_in import Exchanged as Played
from fewfed.privacy.stand_in import StandIn, groups_of, stand_ins

_AT_ONCE = 500
"""Rows that are sent in one go: a client that sends so many averages has many more rows."""


def sent_alone(case: Case, exchanged: Exchanged, rows: Examples, most: int) -> Tensor | str:
    """A row of numbers for each; or why there are none. Averages are taken of copies of the one row. Of more than
    `most` numbers so many random combinations, in which what is far apart stays so."""
    device = case.device
    job = without_noise(case.job)
    phase, clock = case.phase(exchanged.round, exchanged.phase), case.clock(exchanged.round)
    personal = tree.to(next(iter(exchanged.personal.values()), {}), device)
    played = Played(job, phase, clock, tree.to(exchanged.broadcast, device), personal)
    rows, found = rows.to(device), torch.zeros(0)
    for which in _by_class(case, rows.y):
        for part in torch.split(which, _AT_ONCE):
            sent = _of_one_class(played, rows.rows(part))
            if sent is None:
                return "sites that hold nothing but the candidates would send nothing"
            sent = combined(sent, most)
            found = found if len(found) else sent.new_zeros(len(rows), sent.shape[1])
            found[part] = sent
    return found


def combined(values: Tensor, most: int) -> Tensor:
    """The same few random combinations of columns each time, where there are more than `most`."""
    width = values.shape[1]
    if width <= most:
        return values
    random = torch.Generator().manual_seed(width)
    found: Tensor = values @ (torch.randn(width, most, generator=random) / most**0.5).to(values)
    return found


def _by_class(case: Case, y: Tensor) -> list[Tensor]:
    """Rows of one class together, since averages are of such; all, where there are none."""
    if not is_class(case, y):
        return [torch.arange(len(y), device=y.device)]
    return [(y == label).nonzero().flatten() for label in torch.unique(y).tolist()]


def is_class(case: Case, y: Tensor | None) -> bool:
    """Whether labels are one class a row."""
    return y is not None and bool(case.job.task.classes) and y.dim() == 1 and not y.is_floating_point()


def _of_one_class(played: Played, rows: Examples) -> Tensor | None:
    one = next(stand_ins(played, rows, len(rows)), None)
    if one is None:
        return None
    function, count = groups_of(one) or (partial(_copies, one), 1)
    found: list[Tensor] = []
    with torch.no_grad():
        for first in range(0, len(rows), count):
            which = torch.arange(first, first + count, device=rows.x.device) % len(rows)
            found.append(function(rows.x[which]).float())
    return torch.cat(found)[: len(rows)]


def _copies(one: StandIn, x: Tensor) -> Tensor:
    """What is sent where the same rows are behind several of the rows sent: one candidate in all places."""
    return one(x.expand(len(one.slots), *x.shape[1:]))[:1]
