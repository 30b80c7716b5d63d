"""The statement of a prepared run: what will leave a site."""

from __future__ import annotations

import dataclasses

from fewfed.privacy.ledger import RELATION, WHOM, Ledger
from fewfed.privacy.statement import Statement, about_of, statement_of
from fewfed.runs.prepare import Prepared
from fewfed.runs.scaling import measuring_job
from fewfed.version import __version__


def explained(prepared: Prepared) -> Statement:
    """What will leave a site, who sees it, for how long, and what will not."""
    job, resolved = prepared.job, prepared.resolved
    experiment, scaling = resolved.experiment, prepared.scaling
    about = about_of(
        job,
        experiment.rounds,
        prepared.cohort,
        method=job.method.label,
        preset=resolved.chosen.preset,
        network=job.net.name,
        data=experiment.data,
        split=experiment.split,
        fewfed=__version__,
    )
    measuring = measuring_job(job.federation, job.task.outputs) if scaling.exchange else None
    made = statement_of(job, about, scaling.mode, measuring)
    return dataclasses.replace(made, bounds=_bounds(prepared.ledger))


def _bounds(ledger: Ledger | None) -> tuple[str, ...]:
    """What noise bounds, from whom, and what it leaves open."""
    if ledger is None:
        return ()
    budget = f"at most {ledger.budget:g}" if ledger.budget is not None else "added up while the run goes on"
    assumed = f" ({ledger.assumed})" if ledger.assumed else ""
    return tuple(
        f"against {whom}, for {RELATION}: epsilon {budget}, at delta {ledger.delta:g}{assumed}"
        for view, whom in WHOM.items()
        if not ledger.gaps[view]
    )
