"""Averages of several rows of one class instead of rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fewfed.errors import ConfigError
from fewfed.method import Context, Report, Setup
from fewfed.methods.parts.protection import Protection, sending
from fewfed.phase import Phase
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Around


@dataclass(frozen=True)
class Groups(Protection):
    """A defence that sends averages of at least k rows of one class of the client."""

    k: int = setting(5, "rows in one average, at the least; 1 = rows as they are", ge=1)
    fresh: bool = setting(False, "draw groups anew in every round")

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if not setup.task.classes:
            raise ConfigError(f"method '{self.name}' averages rows of one class: expected a classification task")
        if together := [phase.name for phase in sending(self.inner) if not phase.does.copies]:
            raise ConfigError(
                f"method '{self.name}' averages what is sent of single rows, but in phase '{together[0]}' "
                f"'{self.inner.label}' does not send rows one by one: expected a method that does, and says so with "
                "'copies' and 'sends'; one that sends averages by itself has a setting for their size"
            )

    @property
    def acts(self) -> bool:
        return self.k > 1

    def protected(self, phase: Phase) -> Phase:
        most = phase.does.copies / self.k
        uploads = {
            name: dataclasses.replace(each, rows=min(each.rows, most)) if each.rows else each
            for name, each in phase.uploads.items()
        }
        return dataclasses.replace(phase, does=Average(self, phase), uploads=uploads)


G = TypeVar("G", bound=Groups)


class Average(Around[G]):
    """Groups leave instead of rows."""

    @property
    def copies(self) -> int:
        return 0

    def end(self, work: Tree, ctx: Context) -> Report:
        report, groups = super().end(work, ctx), self.groups(ctx)
        # Where there is no group, a single row shows what an average would look like.
        rows = groups[groups >= 0] if len(groups) else torch.zeros(1, dtype=torch.long)
        sent = super().sends(work, ctx, rows)
        means = {name: self.mean(name, value, groups) if len(groups) else value[:0] for name, value in sent.items()}
        return report._replace(upload={**report.upload, **means})

    def origins(self, ctx: Context) -> Tensor:
        return self.groups(ctx).repeat_interleave(super().copies, 0)

    def groups(self, ctx: Context) -> Tensor:
        """Which rows of the client are averaged, by class: (groups, rows of the largest), with -1 where fewer are."""
        k, labels = self.wrapper.k, ctx.data.y.cpu()
        wanted = labels[super().origins(ctx)[:: super().copies, 0].cpu()]
        purpose = f"groups of round {ctx.clock.round}" if self.wrapper.fresh else "groups"
        order = ctx.plan.fixed(ctx.client, purpose).permutation(len(labels))
        found: list[Tensor] = []
        for label in sorted(set(wanted.tolist())):
            rows = order[labels[order] == label]
            if count := min(int((wanted == label).sum()), len(rows) // k):
                found += self.parted(rows, count)
        return pad_sequence(found, batch_first=True, padding_value=-1) if found else torch.zeros(0, k, dtype=torch.long)

    def parted(self, rows: Tensor, count: int) -> Sequence[Tensor]:
        """So many groups of these rows of a class."""
        return torch.split(rows[: count * self.wrapper.k], self.wrapper.k)

    def mean(self, name: str, sent: Tensor, groups: Tensor) -> Tensor:
        """Of the rows of each group the mean, copy by copy; of what is no number but a name, the first."""
        each = sent.reshape(-1, self.wrapper.k, super().copies, *sent.shape[1:])
        mean = each.mean(1) if sent.is_floating_point() else each[:, 0]
        return mean.flatten(0, 1)
