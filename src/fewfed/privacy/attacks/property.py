"""Which site a row came from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed.privacy.attacks import intervals, ridge
from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.case import Case, Exchanged
from fewfed.privacy.attacks.finding import Finding, Measure, Threat
from fewfed.privacy.attacks.pairs import flat
from fewfed.privacy.attacks.rebuilders import seen
from fewfed.privacy.shared_rows import SharedRows

_LEAST = 4
"""Rows of a site that it takes: two to learn from and two to be tested on."""
_FOLDS = 2
_MOST_ROWS = 2000

THREAT = Threat(
    "the server, or who has learnt the senders of some rows and reads others without names",
    "rows that sites sent, half of them with the sender's name, as every packet has it",
    "nothing beside",
)


@dataclass(frozen=True)
class Property:
    """A classifier of senders learns from half of the rows and says whose the other half are."""

    name: str = "property"
    title: str = "the site that a row came from"

    def why_not(self, case: Case) -> str:
        if not case.with_rows():
            return "in no recorded round did a site send rows, or features of rows, one by one"
        if not any(_enough(case, one) for one in case.with_rows()):
            return f"in no recorded round did two sites send at least {_LEAST} rows each that are not all of one origin"
        return ""

    def findings(self, case: Case, tell: Tell) -> list[Finding]:
        found = []
        for exchanged in case.with_rows():
            if _enough(case, exchanged):
                tell(f"round {exchanged.round}, phase '{exchanged.phase}'")
                found += self._of(case, exchanged)
        return found

    def _of(self, case: Case, exchanged: Exchanged) -> list[Finding]:
        sites = _sites(case, exchanged)
        rows = _Rows.of(case, sites)
        chance = rows.largest / len(rows.site)
        labels = [] if rows.labels is None else [rows.labels]
        beside = [] if rows.labels is None else [torch.cat([rows.sent, rows.labels], 1)]
        raw = [] if rows.labels is None else [torch.cat([rows.inputs, rows.labels], 1)]
        variants = {
            "rows": (
                [rows.sent, *beside, *labels],
                [rows.inputs, *raw, *labels],
                "what was sent, the labels that came with it, or both: what is best on rows left out",
            )
        }
        if labels:
            variants["labels"] = (labels, labels, "the labels alone, as far as classes differ between sites")
        found = []
        for variant, (sent, undefended_views, what) in variants.items():
            right, undefended = (_recognised(case, rows, each) for each in (sent, undefended_views))
            interval = intervals.of_share(int(right.sum()), len(right))
            value, without = float(right.double().mean()), float(undefended.double().mean())
            words = f"sender recognised among {len(sites)} sites"
            measure = Measure(words, value, *interval, len(right), chance, without)
            note = f"from {what}; each half is tested after learning from the other"
            found.append(Finding(self.name, variant, THREAT, exchanged.round, exchanged.phase, (measure,), note))
        return found


def _enough(case: Case, exchanged: Exchanged) -> bool:
    return len(_sites(case, exchanged)) >= 2


def _sites(case: Case, exchanged: Exchanged) -> list[SharedRows]:
    """The rows of each site that sent enough of them, not all of one origin."""
    found = case.of_sites(exchanged).values()
    return [one for one in found if len(one) >= _LEAST and len(set(_groups(one.origins).tolist())) >= _FOLDS]


@dataclass(frozen=True)
class _Rows:
    sent: Tensor
    inputs: Tensor
    labels: Tensor | None
    site: Tensor
    source: Tensor
    """A number that rows of the same origin share: they must not be learnt from and tested on at once."""
    largest: int
    """Rows of the site with the most."""

    @classmethod
    def of(cls, case: Case, sites: list[SharedRows]) -> _Rows:
        most = max(_LEAST, _MOST_ROWS // len(sites))
        sites = [one.part(torch.arange(min(len(one), most))) for one in sites]
        device = case.device
        labels = [None if one.labels is None else one.labels.to(device) for one in sites]
        blank = [torch.zeros(len(one), 0, device=device) for one in sites]
        alone = [seen(rows, each) for rows, each in zip(blank, labels, strict=True)]
        sizes = [len(one) for one in sites]
        firsts = torch.tensor([0, *sizes]).cumsum(0).tolist()
        return cls(
            torch.cat([flat(one.sent, device) for one in sites]),
            torch.cat([flat(one.sources, device) for one in sites]),
            torch.cat(alone) if alone[0].shape[1] else None,
            torch.arange(len(sites)).repeat_interleave(torch.tensor(sizes)),
            torch.cat([first + _groups(one.origins) for one, first in zip(sites, firsts, strict=False)]),
            max(sizes),
        )


def _groups(origins: Tensor) -> Tensor:
    """Rows that share a source get the same number."""
    origins, found = origins.cpu(), torch.arange(len(origins))
    for row in torch.unique(origins).tolist():
        if row >= 0:
            together = (origins == row).any(1)
            joined = torch.isin(found, found[together])
            found[joined] = found[joined].min()
    return found


def _recognised(case: Case, rows: _Rows, views: list[Tensor]) -> Tensor:
    """Of each row whether its sender was recognised, each fold after learning from the others."""
    wanted = torch.nn.functional.one_hot(rows.site).to(views[0])
    right = torch.zeros(len(rows.site), dtype=torch.bool)
    fold = _folds(rows, case.seed)
    for number in range(_FOLDS):
        tested = (fold == number).to(wanted.device)
        view, model = ridge.best_view([each[~tested] for each in views], wanted[~tested], case.seed)
        right[tested.cpu()] = model(views[view][tested]).argmax(1).cpu() == rows.site[tested.cpu()]
    return right


def _folds(rows: _Rows, seed: int) -> Tensor:
    """A fold for each row: those of one source in one, and of each site as many as possible in every one."""
    random = torch.Generator().manual_seed(seed)
    found = torch.zeros(len(rows.site), dtype=torch.long)
    for site in torch.unique(rows.site).tolist():
        mine = (rows.site == site).nonzero().flatten()
        groups = torch.unique(rows.source[mine])
        groups = groups[torch.randperm(len(groups), generator=random)]
        for number, group in enumerate(groups.tolist()):
            found[mine[rows.source[mine] == group]] = number % _FOLDS
    return found
