"""The observer that lets sites score the model after a round, and the scores of the last model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fewfed.data.federation import HeldOut
from fewfed.deploy.coordinator.executor import SitesExecutor
from fewfed.deploy.coordinator.scores import of_sites
from fewfed.engine import asking
from fewfed.engine.evaluation import mean
from fewfed.engine.loop import RoundView
from fewfed.errors import RunError
from fewfed.task import Score
from fewfed.tree import Tree

_NOTE = "scored at the sites, on their own rows: what is no sum over rows (AUC, confusion matrix) is not known"
_PERSONAL = "each site's own model on its own rows"


@dataclass
class ScoreAtSites:
    """Adds what the sites find: accuracy and loss over all their rows, and by site. Where each site has a model of its
    own, the mean over sites of what it does at home."""

    executor: SitesExecutor
    every: int = 1
    by_site: dict[str, float] = field(default_factory=dict)
    """The last accuracy at each site, for whoever watches."""

    def after_round(self, view: RoundView) -> None:
        if (view.clock.round + 1) % self.every and not view.clock.last:
            return
        found = self._scored(view.server, "test")
        if found:
            self.by_site |= found["per_group"]
            view.record.add(found)
        if len(view.job.federation.validation):
            held_back = self._scored(view.server, "validation")
            if held_back:
                view.record.add({"validation": held_back})

    def _scored(self, server: Tree, on: HeldOut) -> dict[str, Any]:
        scores = site_scores(self.executor, server, on)
        if not scores:
            return {}
        if not self.executor.job.method.personal_model:
            return of_sites(scores).metrics()
        found: dict[str, Any] = mean([score.metrics() for score in scores.values()])
        compared = mean([score.compared for score in scores.values()])
        found["per_group"] = {name: score.accuracy for name, score in scores.items()}
        found |= {f"{name}_own_group": value for name, value in compared.items()}
        return found | {"evaluated_clients": len(scores)}


def site_scores(executor: SitesExecutor, server: Tree, on: HeldOut = "test") -> dict[str, Score]:
    """Of every site that answers: what the model, or its own, does on its rows."""
    job = executor.job
    if job.method.personal_model:
        return executor.own_scores(server, on)
    return executor.scores(asking.predictor(job, server, {}), on)


def final_scores(executor: SitesExecutor, server: Tree, classes: Sequence[str]) -> dict[str, Any]:
    """What `scores.json` says of the last model; no metrics where every site that answers keeps them to itself."""
    scores = site_scores(executor, server)
    if not scores and not executor.unscored:
        raise RunError(
            "no site answered when the last model was to be scored: see that they run, then go on with "
            "'fewfed serve --resume'"
        )
    if not scores:
        rows = [{"site": name, "accuracy": None, "test_rows": 0} for name in executor.names]
        return {
            "test_rows": 0, "metrics": {}, "per_class": [], "per_site": rows, "notes": [no_scores(executor.unscored)]
        }  # fmt: skip
    personal = bool(executor.job.method.personal_model)
    total = of_sites(scores)
    metrics: dict[str, Any] = mean([each.overall() for each in scores.values()]) if personal else total.overall()
    return {
        "test_rows": int(total.total.sum()),
        "metrics": metrics,
        "per_class": [
            {"class": name, **row} for name, row in zip(classes, total.each_class(), strict=False)
        ],
        "per_site": list(_by_site(executor, scores)),
        **total.tables(),
        "notes": [_NOTE, *([_PERSONAL] if personal else [])],
    }  # fmt: skip


def no_scores(reasons: Mapping[str, str]) -> str:
    """Said of a run that no site has scored."""
    return "no scores: " + "; ".join(f"{site}: {reason}" for site, reason in sorted(reasons.items())[:20])


def _by_site(executor: SitesExecutor, scores: Mapping[str, Score]) -> Iterator[dict[str, Any]]:
    blank = dict.fromkeys(next(iter(scores.values())).overall())
    for number, name in enumerate(executor.names):
        score = scores.get(name)
        tested = 0 if score is None else int(score.total.sum())
        row = {"site": name, "train_rows": executor.job.federation.size(number), "test_rows": tested}
        yield row | (blank if score is None else score.overall())
