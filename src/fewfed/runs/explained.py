"""The statement of a prepared run: what will leave a site."""

from __future__ import annotations

import dataclasses

from fewfed.engine.robust.defence import Defence
from fewfed.phase import Combine, Role, Upload
from fewfed.privacy.ledger import RELATION, WHOM, Ledger
from fewfed.privacy.statement import Exchange, Sent, Statement, about_of, statement_of
from fewfed.runs.prepare import Prepared
from fewfed.runs.scaling import measuring_job
from fewfed.version import __version__


def explained(prepared: Prepared) -> Statement:
    """What will leave a site, who sees it, for how long, and what will not."""
    # One site's policy takes out what another's lets through: what is said is what leaves where nothing is forbidden.
    job = dataclasses.replace(prepared.job, defence=None, adversary=None, gates=())
    resolved = prepared.resolved
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
    exchanges = tuple(_defended(each, prepared.job.defence) for each in made.exchanges)
    return dataclasses.replace(made, exchanges=exchanges, bounds=_bounds(prepared.ledger))


def _defended(exchange: Exchange, defence: Defence | None) -> Exchange:
    """The same with what the server does against dishonest sites, which takes it to look at each."""
    if defence is None or not exchange.crosses:
        return exchange
    sends = (dataclasses.replace(sent, compared=_compared(sent, defence)) for sent in exchange.sends)
    return dataclasses.replace(exchange, sends=tuple(sends))


def _compared(sent: Sent, defence: Defence) -> str:
    upload = Upload(Combine(sent.combine), Role(sent.role), sent.rows_per_row)
    rule = defence.rule.told if defence.rule and defence.rule.covers(upload) else ""
    bound = (
        f"changes longer than {defence.bound.bound} refused" if defence.bound and defence.bound.covers(upload) else ""
    )
    return ", ".join(filter(None, (rule, bound)))


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
