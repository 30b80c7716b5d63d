"""The statement of a prepared run: what will leave a site."""

from __future__ import annotations

import dataclasses
import math

from fewfed.engine.robust.defence import Defence
from fewfed.engine.turn import Member, context_of
from fewfed.phase import Clock, Combine, Role, Upload
from fewfed.privacy.gaussian import epsilon_of
from fewfed.privacy.ledger import RELATION, WHOM, Ledger, of_phase
from fewfed.privacy.statement import Exchange, Sent, Statement, about_of, statement_of
from fewfed.runs.prepare import Prepared
from fewfed.runs.scaling import measuring_job
from fewfed.version import __version__

_MOST_CLIENTS = 200
"""Whose rows are looked at for how often each is sent."""


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
    ledger = prepared.ledger
    partial = _of_parts(prepared, ledger, about.chance) if ledger is not None else ()
    return dataclasses.replace(made, exchanges=exchanges, bounds=_bounds(ledger), partial=partial)


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


def _of_parts(prepared: Prepared, ledger: Ledger, chance: float) -> tuple[str, ...]:
    """What noise on shared rows bounds, where other things are sent without any."""
    if ledger.before or any(not ledger.gaps[view] for view in WHOM):  # What rows are scaled by may tell of all of them.
        return ()
    assumed = f" ({ledger.assumed})" if ledger.assumed else ""
    job, rounds = prepared.job, ledger.rounds
    clock, times, found = Clock(rounds - 1, rounds, ledger.epochs), math.ceil(rounds * chance), []
    for phase in job.method.phases(clock):
        for one in of_phase(job.method, clock, phase):
            if one.each != "row" or not one.noise:
                continue
            state = job.method.client_init(job.setup)
            clients = range(min(len(job.federation), _MOST_CLIENTS))
            turns = (context_of(job, phase, clock, {}, Member(client, {}, state)) for client in clients)
            once = max(ledger.of_rows(one, ctx) for ctx in turns)
            named = " and ".join(f"'{name}'" for name in sorted(one.uploads))
            least, usual = (epsilon_of(count * once, ledger.delta) for count in (1, times))
            found.append(
                f"{named} of phase '{phase.name}', for {RELATION}: epsilon {least:.3g} when a site sends it once, "
                f"{usual:.3g} for the {times} times that are to be expected, at delta {ledger.delta:g}{assumed}"
            )
    return tuple(found)
