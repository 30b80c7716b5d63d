"""The last model in full: its metrics, and tables by class and by site. Written into the run folder once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fewfed.data.federation import SplitFederation
from fewfed.data.sites import NOBODY, Sites, sites_of
from fewfed.engine import asking
from fewfed.engine.evaluation import evaluated_clients, matched, mean
from fewfed.engine.executor import Executor
from fewfed.engine.job import Job
from fewfed.engine.scoring import Examined, examined
from fewfed.tasks.class_score import MOST_CONFUSED
from fewfed.tree import Tree

MOST_OWN_MODELS = 100
"""So many clients' own models are all scored, so that no site is missing; of more, those that each round scores."""

Row = dict[str, Any]


def final_scores(job: Job, executor: Executor, server: Tree, clients: int) -> dict[str, Any]:
    """What `scores.json` says. `clients`: how many own models each round scores, 0 = all.

    Where each client has a model of its own, numbers are means over these, counts are sums, and a site's row is what
    its own model does there.
    """
    federation = job.federation
    sites = sites_of(federation) if isinstance(federation, SplitFederation) else _no_sites(len(federation.test))
    if not job.method.personal_model:
        answers = executor.answers([asking.predictor(job, server, {})])
        (found,) = examined(job, answers, sites=lambda _: sites.of_tests)
        return _without_nan(_told(job, [found], sites, found.sites))
    scored = evaluated_clients(job, 0 if len(federation) <= MOST_OWN_MODELS else clients)

    def own_rows(model: int) -> Tensor:
        site = sites.of_clients[scored[model]]
        return torch.where(sites.of_tests == site, site, NOBODY)

    each = list(examined(job, executor.answers_personal(server, scored), sites=own_rows))
    at_home = {site: score for one in each for site, score in one.sites.items()}
    told = _told(job, each, sites, at_home)
    of_clients = list(_clients(job, scored, each, sites))
    return _without_nan({**told, "evaluated_clients": len(each), "per_client": of_clients})


def _told(job: Job, models: Sequence[Examined], sites: Sites, at_sites: Mapping[int, Any]) -> dict[str, Any]:
    names = _class_names(job)
    found: dict[str, Any] = {
        "test_rows": len(job.federation.test),
        "metrics": mean([_metrics(one) for one in models]),
        "per_class": _by_class(models, names),
        "per_site": list(_by_site(sites, at_sites, list(models[0].score.overall()))),
    }
    total = sum((one.score for one in models[1:]), start=models[0].score)
    matrices = [one.whole["confusion"] for one in models if one.whole.get("confusion")]
    confusion = {"classes": list(names), "confusion": torch.tensor(matrices).sum(0).tolist()} if matrices else {}
    return {**found, **total.tables(), **confusion, "notes": list(_notes(found["per_class"], bool(matrices)))}


def _metrics(one: Examined) -> dict[str, Any]:
    return one.score.overall() | {name: one.whole[name] for name in one.score.measures if name in one.whole}


def _by_class(models: Sequence[Examined], names: Sequence[str]) -> list[Row]:
    """The table of classes: of several models, the mean of those that have the number."""
    tables = [one.score.each_class() for one in models]
    for table, one in zip(tables, models, strict=True):
        for row, area in zip(table, one.whole.get("auc_per_class", ()), strict=False):
            row["auc"] = area
    return [
        {"class": names[place], **{name: _mean_of_known([row[name] for row in rows]) for name in rows[0]}}
        for place, rows in enumerate(zip(*tables, strict=True))
    ]


def _by_site(sites: Sites, scores: Mapping[int, Any], metrics: Sequence[str]) -> Iterator[Row]:
    """All sites, in their order; blanks where there is nothing to score."""
    tests = torch.bincount(sites.of_tests[sites.of_tests != NOBODY], minlength=len(sites.names)).tolist()
    for site, name in enumerate(sites.names):
        row = {"site": name, "train_rows": sites.train_rows[site], "test_rows": tests[site]}
        yield row | (scores[site].overall() if site in scores else dict.fromkeys(metrics))


def _clients(job: Job, clients: Sequence[int], models: Sequence[Examined], sites: Sites) -> Iterator[Row]:
    """Each client's own model on all test rows."""
    for client, one in zip(clients, models, strict=True):
        site = sites.of_clients[client]
        labels = {"accuracy_matched": matched(job, client, one.score)} if job.task.classes else {}
        name = None if site == NOBODY else sites.names[site]
        yield {"client": client, "site": name, "train_rows": job.federation.size(client), **_metrics(one), **labels}


def _notes(classes: Sequence[Row], confused: bool) -> Iterator[str]:
    """What a reader of the numbers must know."""
    without = [row["class"] for row in classes if row.get("auc", 0) is None]
    if len(without) == len(classes) > 0:
        yield "there is no AUC: the test rows are all of one class"
    elif without:
        yield f"AUC is the mean over the other classes: no test row is of {', '.join(without)}"
    if not confused and len(classes) > MOST_CONFUSED:
        yield f"there is no confusion matrix: {len(classes)} classes are more than {MOST_CONFUSED}"


def _class_names(job: Job) -> Sequence[str]:
    federation = job.federation
    names = federation.dataset.class_names if isinstance(federation, SplitFederation) else ()
    return names or [str(number) for number in range(job.task.outputs)]


def _no_sites(rows: int) -> Sites:
    return Sites((), (), torch.full((rows,), NOBODY), ())


def _mean_of_known(values: Sequence[Any]) -> Any:
    """Whole numbers, such as counts of rows, are the same in all models, and stay whole."""
    known = [value for value in values if value is not None]
    if not known or isinstance(known[0], int):
        return known[0] if known else None
    return sum(known) / len(known)


def _without_nan(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with blanks for what is no number: a model that diverged has no loss."""
    return {name: _blanked(value) for name, value in content.items()}


def _blanked(value: Any) -> Any:
    if isinstance(value, dict):
        return _without_nan(value)
    if isinstance(value, list):
        return [_blanked(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
