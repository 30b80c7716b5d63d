"""The statement of a prepared run: what will leave a site."""

from __future__ import annotations

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
    return statement_of(job, about, scaling.mode, measuring)
