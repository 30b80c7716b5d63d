"""What was run, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fewfed.errors import FewfedError
from fewfed.metric import metric_of
from fewfed.report.overview import text_of
from fewfed.report.page.detail import Detail, known
from fewfed.report.page.setting import Labelled, Setting
from fewfed.report.survey import Found

_RULES: Mapping[str, str] = {
    "iid": "rows dealt out at random",
    "qua": "each client holds {} classes",
    "dir": "class shares of clients drawn from a Dirichlet distribution, concentration {}",
    "dir-released": "class shares as the released FLea code draws them, concentration {}",
    "dirm": "each client's classes drawn from a Dirichlet distribution, concentration {}",
    "exact": "each client holds {} rows of {} classes",
    "size": "clients of different sizes, concentration {}",
    "site": "the sites of the data",
    "domain": "the domains of the data",
    "subject": "the people of the data",
    "client": "the clients of the data",
    "file": "as a file says",
}
_MOST_NAMES = 6


def title(settings: Sequence[Setting], found: Sequence[Found]) -> str:
    """What the page is about."""
    if not settings:
        return count(len(found), "run")
    names = list(dict.fromkeys(row.group.first.method for setting in settings for row in setting.rows))
    data = list(dict.fromkeys(row.group.first.data for setting in settings for row in setting.rows))
    return f"{listed(names)} on {listed(data)}"


def lead(settings: Sequence[Setting], found: Sequence[Found], repeated: int) -> list[str]:
    """Sentences about all that was run."""
    states = {state: sum(run.state == state for run in found) for state in ("finished", "unfinished", "damaged")}
    methods = {row.group.first.method for setting in settings for row in setting.rows}
    parts = [f"{states[state]} {state}" for state in states if states[state]]
    all_done = states["finished"] == len(found)
    said = [
        f"{count(len(found), 'run')} of {count(len(methods), 'method')}, "
        + ("all finished" if all_done and len(found) > 1 else ", ".join(parts))
        + "."
    ]
    if len(settings) > 1:
        said.append(f"They are of {len(settings)} different tasks, which are shown one after another.")
    if repeated:
        left = "is" if repeated == 1 else "are"
        said.append(f"{count(repeated, 'folder')} held the same settings and seed as another and {left} left out.")
    return said


def described(setting: Setting) -> list[str]:
    """Sentences about one task: data, clients, training, what it is judged by."""
    row = setting.rows[0]
    run, detail = row.group.first, row.details[0]
    experiment = _part(detail, "experiment")
    clients = f"{row.group.clients or '?'} client{'' if row.group.clients == '1' else 's'}"
    rounds = "? rounds" if run.rounds is None else count(run.rounds, "round")
    return [
        f"Data {run.data}, split {run.split}: {_rule(run.split)}{_sizes(setting.rows)}.",
        f"{clients}{_cohort(experiment)}, {rounds}{_training(setting.rows)}.",
        f"Judged by {_metric(run.metric)} on the test part; {_seeds(setting.rows)}.",
        *_notes(setting.rows),
    ]


def attackers(rows: Sequence[Labelled]) -> list[str]:
    """Settings of simulated attackers and of what was done against them, where there were any."""
    usual = {"robust": "none", "norm_bound": "", "row_filter": None}
    found = []
    for row in rows:
        own = row.group.first.settings
        attack = f"{text_of(own, 'attackers')} of the clients attack by {text_of(own, 'attack')}"
        attack = attack if own.get("attackers") else ""
        against = [
            f"{name.replace('_', ' ')} {text_of(own, name)}"
            for name, none in usual.items()
            if own.get(name, none) != none
        ]
        if attack or against:
            found.append(f"{row.label}: " + "; ".join(filter(None, (attack or "nobody attacks", ", ".join(against)))))
    return found


def count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def listed(names: Iterable[str]) -> str:
    """Names with commas and an "and"; of many, the first."""
    found = list(names)
    if len(found) > _MOST_NAMES:
        return f"{', '.join(found[: _MOST_NAMES - 1])} and {len(found) - _MOST_NAMES + 1} more"
    return " and ".join(filter(None, (", ".join(found[:-1]), *found[-1:])))


def _rule(split: str) -> str:
    name, *values = split.split(":")
    told = _RULES.get(name, "")
    if told.count("{}") > len(values):
        return split
    return told.format(*values).replace("holds 1 classes", "holds 1 class").replace("of 1 classes", "of 1 class")


def _sizes(rows: Sequence[Labelled]) -> str:
    """How many rows clients have, of the first run that says it; with its seed, where another seed has others."""
    found = [
        (run.seed, *(sizes.get(name) for name in ("smallest", "median", "largest")))
        for row in rows
        for run, detail in zip(row.group.runs, row.details, strict=True)
        if isinstance(sizes := detail.split.get("sizes"), dict) and known(sizes.get("median")) is not None
    ]
    if not found:
        return ""
    seed, low, middle, high = found[0]
    whose = "" if all(one[1:] == found[0][1:] for one in found) else f" with seed {seed}"
    if low == high:
        return f", {count(low, 'row') if isinstance(low, int) else low} a client{whose}"
    return f", {middle:g} rows a client in the median ({low} to {high}){whose}"


def _cohort(experiment: Mapping[str, Any]) -> str:
    cohort = known(experiment.get("cohort"))
    if cohort is None:
        return ""
    return f", {100 * cohort:g} % of them a round" if cohort < 1 else f", {cohort:g} a round"


def _training(rows: Sequence[Labelled]) -> str:
    """Local training, as far as all rows agree."""
    found = [_part(detail, "training") for row in rows for detail in row.details if detail.config]
    same = {
        name: value
        for name, value in (found[0] if found else {}).items()
        if all(one.get(name) == value for one in found)
    }
    parts = [
        f"{same['epochs']} local epochs" if same.get("epochs") != 1 and "epochs" in same else "",
        "1 local epoch" if same.get("epochs") == 1 else "",
        f"batches of {same['batch']}" if "batch" in same else "",
        f"{same['optimizer']}" if "optimizer" in same else "",
        f"learning rate {same['lr']:g}" if known(same.get("lr")) is not None else "",
    ]
    told = ", ".join(filter(None, parts))
    return f"; {told}" if told else ""


def _metric(name: str) -> str:
    try:
        metric = metric_of(name)
    except FewfedError:
        return name
    return f"{metric.title}{' (lower is better)' if metric.lower_is_better else ''}"


def _seeds(rows: Sequence[Labelled]) -> str:
    counts = sorted({len(row.group.runs) for row in rows})
    if counts == [1]:
        return "one seed each" if len(rows) > 1 else "one seed"
    return f"{counts[0]} seeds each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds each"


def _notes(rows: Sequence[Labelled]) -> list[str]:
    """What runs say about their data and splits, everything once."""
    notes = (detail.note for row in rows for detail in row.details)
    parts = dict.fromkeys(part for note in notes for part in note.split("; ") if part)
    return [f"{part[:1].upper()}{part[1:]}." for part in list(parts)[:5]]


def _part(detail: Detail, name: str) -> Mapping[str, Any]:
    found = detail.config.get(name)
    return found if isinstance(found, dict) else {}
