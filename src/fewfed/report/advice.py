"""What a bake-off came to: the evidence, what is recommended and why, in a table and in plain sentences."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewfed.engine import storage
from fewfed.errors import RunError
from fewfed.metric import Metric, metric_of
from fewfed.report import advice_words as words
from fewfed.report.leak import cell
from fewfed.report.look import sentences as looked
from fewfed.report.recommended import Choice, Evidence, choose
from fewfed.report.rendering import as_html, as_text
from fewfed.report.table import mean_of_known
from fewfed.runs.advice import Baked
from fewfed.runs.cells import LoadedData
from fewfed.runs.considered import Considered, NotTried, Tried
from fewfed.runs.experiment import Experiment
from fewfed.runs.folder import RunFolder
from fewfed.runs.guessing import guesses
from fewfed.runs.judged import curve_of, measures_sites, score, still_rises
from fewfed.runs.question import Asked
from fewfed.runs.results import Result

if TYPE_CHECKING:
    from rich.table import Table

ADVICE = "advice.json"
_TELLING = 30
"""Rounds of a bake-off that are no reason to train longer."""


@dataclass(frozen=True)
class Advice:
    """A recommendation with its evidence. Prints as text, in a notebook too."""

    asked: Asked
    considered: Considered
    baked: Baked
    evidence: tuple[Evidence, ...]
    choice: Choice
    own: bool
    """Whether sites' models were judged on their own rows, and not on those of all."""
    guesses: Mapping[int, float]
    """What looking at no row comes to on the validation rows, by seed; empty where the metric knows no such level."""
    not_tried: tuple[NotTried, ...]

    @property
    def recommended(self) -> str:
        """The method that is recommended, as `fewfed.run` takes it."""
        return self.choice.chosen.spec

    @property
    def settings(self) -> dict[str, Any]:
        """All settings to train it with, as `--set` takes them: what was asked for, and what was found."""
        chosen = self.choice.chosen
        usual = Experiment().rounds
        enough = chosen.rounds >= _TELLING and not chosen.rises
        rounds = self.asked.rounds or (chosen.rounds if enough else max(chosen.rounds, usual))
        alone = {"cohort": self.considered.look.sites} if chosen.is_alone else {}
        rate = {"lr": chosen.lr} if self.baked.is_searched else {}
        found = {"rounds": rounds, **alone, **rate}
        # A setting may have been asked for by its whole name: one in two spellings is had once only.
        replaced = {*found, *(f"experiment.{name}" for name in found)}
        return {**{name: value for name, value in self.asked.values.items() if name not in replaced}, **found}

    @property
    def metric(self) -> Metric:
        return metric_of(self.considered.first.experiment.metric)

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row a method, which pandas takes. Shares are fractions, intervals None where there is one seed."""
        return [self._row(each) for each in self.evidence]

    @property
    def reasons(self) -> list[str]:
        """The recommendation in plain sentences."""
        warned = words.no_better_than_guessing(self.choice.chosen, self.guesses, self.metric, self.own)
        told = words.reasons(self.choice, self.evidence, self.metric)
        return [*told, *warned, *words.one_site(self.considered.look, self.own)]

    @property
    def seeds(self) -> list[int]:
        """Of all methods together."""
        return sorted(set().union(*(each.validation for each in self.evidence)))

    def lines(self) -> list[str]:
        """How it was found, and what was left out."""
        return words.how(self)

    def as_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.asked.root),
            "look": self.considered.look.as_json(),
            "recommended": self.recommended,
            "settings": self.settings,
            "reasons": self.reasons,
            "metric": self.metric.name,
            "judged_on": "own" if self.own else "all",
            "guessing": statistics.fmean(self.guesses.values()) if self.guesses else None,
            "seeds": self.seeds,
            "methods": self.table,
            "not_tried": {each.label: each.why for each in self.not_tried},
            "unfinished": list(self.baked.unfinished),
            "seconds": self.baked.seconds,
        }

    def write(self) -> None:
        """Into the folder, for whoever comes later."""
        storage.write(self.asked.root / ADVICE, (json.dumps(self.as_json(), indent=1) + "\n").encode())

    def __str__(self) -> str:
        above = "\n".join(looked(self.considered.look))
        return f"{above}\n\n{as_text(rich_table(self), [*self.reasons, '', *self.lines()])}"

    def _repr_html_(self) -> str:
        """For notebooks."""
        shown = [{name: value for name, value in row.items() if name != "why"} for row in self.table]
        above = as_html([], "", looked(self.considered.look))
        return f"{above}\n{as_html(shown, words.title(self), [*self.reasons, *self.lines()])}"

    def _row(self, each: Evidence) -> dict[str, Any]:
        difference = self.choice.differences.get(each.spec)
        validation, test = each.interval(each.validation), each.interval(each.test)
        return {
            "method": each.label,
            "recommended": each is self.choice.chosen,
            "reference": each.is_reference,
            "why": each.why,
            "validation": validation[0],
            "validation_interval": validation[1],
            "test": test[0],
            "test_interval": test[1],
            "difference": difference.mean if difference else None,
            "difference_interval": difference.half if difference else None,
            "seeds": len(each.validation),
            "rounds": each.rounds,
            "lr": each.lr,
            "bytes_up_a_round": each.bytes_up,
            "bytes_down_a_round": each.bytes_down,
            "leak_r2": each.leak_r2,
            "leak_reidentified": each.leak_reidentified,
            "share": each.leaves.share.word,
            "leaves": each.leaves.told,
            "seconds": each.seconds,
        }


def advised(asked: Asked, considered: Considered, baked: Baked, own: bool, data: LoadedData) -> Advice:
    """What a bake-off came to, over the seeds that the methods which must be there have finished."""
    finished = {spec: runs for spec, runs in baked.results.items() if spec not in baked.failed}
    tried = {each.spec: each for each in considered.tried}
    seeds = set.intersection(*(set(finished.get(spec, {})) for spec, each in tried.items() if each.always))
    common = {spec: [runs[seed] for seed in sorted(seeds & runs.keys())] for spec, runs in finished.items()}
    whole = {spec: results for spec, results in common.items() if results}
    own = own and all(measures_sites(result) for results in whole.values() for result in results)
    found = [_evidence(tried[spec], results, baked, own) for spec, results in whole.items()]
    evidence = [each for each in found if len(each.validation) == len(each.test) == len(whole[each.spec])]
    known = {each.spec for each in evidence}
    if missing := [each for each in considered.tried if each.always and each.spec not in known]:
        why = baked.failed.get(missing[0].spec) or (
            "its scores are no numbers; expected a smaller --lr or another --metric"
            if missing[0].spec in whole
            else "it was not finished in time; expected more --minutes; the same command goes on"
        )
        raise RunError(f"nothing can be said without '{missing[0].label}': {why}")
    metric = metric_of(considered.first.experiment.metric)
    left_out = [NotTried(tried[spec].label, why) for spec, why in _missing(considered, baked, known, set(whole))]
    not_tried = (*considered.not_tried, *left_out)
    guessed = guesses(considered.first, data, sorted(seeds), own)
    advice = Advice(asked, considered, baked, tuple(evidence), choose(evidence, metric), own, guessed, not_tried)
    advice.write()
    return advice


def rich_table(advice: Advice) -> Table:
    """The evidence, what is recommended in bold."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    made = Table(
        title=escape(words.title(advice)), caption=words.caption(advice), box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )  # fmt: skip
    made.add_column("method", overflow="fold", min_width=8)
    for column in ("validation", "test", "seeds", "kB up", "down", "leak", "s"):
        made.add_column(column, justify="right", no_wrap=True)
    made.add_column("leaves a site", overflow="fold")
    for each in advice.evidence:
        made.add_row(
            escape(each.label) + (" *" if each.is_reference else ""),
            words.with_interval(*each.interval(each.validation), advice.metric),
            words.with_interval(*each.interval(each.test), advice.metric),
            str(len(each.validation)),
            f"{each.bytes_up / 1e3:.0f}",
            f"{each.bytes_down / 1e3:.0f}",
            cell(each.leak_r2, each.leak_reidentified),
            f"{each.seconds:.0f}",
            each.leaves.told,
            style="bold" if each is advice.choice.chosen else "",
        )
    return made


def _missing(considered: Considered, baked: Baked, known: set[str], finished: set[str]) -> list[tuple[str, str]]:
    """Methods that were to be tried and are not compared, and why."""
    found = []
    for spec in (each.spec for each in considered.tried if each.spec not in known):
        if spec in baked.failed:
            why = f"a run failed: {' '.join(baked.failed[spec].split())}"
        elif spec in baked.plan.given_up:
            why = "no time for it: more --minutes"
        elif spec in finished:
            why = "its scores are no numbers"
        elif spec in baked.plan.rounds:
            why = "not finished in time: the same command goes on"
        else:
            why = "its first rounds failed: 'fewfed run' says why"
        found.append((spec, why))
    return found


def _evidence(tried: Tried, results: Sequence[Result], baked: Baked, own: bool) -> Evidence:
    metric = metric_of(results[0].metric)
    curves = [
        curve_of(RunFolder(Path(result.folder)).metrics(), result.metric, "validation", own) for result in results
    ]
    mean_curve = [statistics.fmean(values) for values in zip(*curves, strict=True)]
    return Evidence(
        spec=tried.spec,
        label=tried.label,
        why=tried.why,
        leaves=tried.leaves,
        is_reference=tried.is_reference,
        is_alone=tried.is_alone,
        lr=baked.rates[tried.spec],
        rounds=results[0].rounds,
        validation=_scores(results, "validation", own),
        test=_scores(results, "test", own),
        bytes_up=statistics.fmean(result.bytes["up"] / result.rounds for result in results),
        bytes_down=statistics.fmean(result.bytes["down"] / result.rounds for result in results),
        leak_r2=mean_of_known([result.leak.r2 if result.leak else None for result in results]),
        leak_reidentified=mean_of_known([result.leak.reidentified if result.leak else None for result in results]),
        seconds=statistics.fmean(result.seconds for result in results),
        rises=still_rises(mean_curve, metric.lower_is_better),
    )


def _scores(results: Sequence[Result], on: Any, own: bool) -> dict[int, float]:
    found = {result.seed: score(result, on, own) for result in results}
    return {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}
