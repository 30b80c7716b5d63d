"""A statement in plain words: for a terminal, and as a Markdown page that somebody can sign."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fewfed.phase import Role
from fewfed.privacy.flows import HORIZON
from fewfed.privacy.statement import (
    About,
    Exchange,
    Form,
    Header,
    Sent,
    Spans,
    Statement,
    count,
    reported_in,
    terms_in,
)

_ROLES: dict[Role, str] = {
    Role.MODEL: "weights of the network that predicts, or of a part of it, after training on the site's rows",
    Role.UPDATE: "a change of the network's weights, or a gradient, computed from the site's rows",
    Role.CONTROL: "numbers that correct the direction of training, computed from the site's gradients",
    Role.FEATURES: "features of single rows: what a part of the network makes of each of them",
    Role.INPUTS: "inputs: rows of data as they are, averages of a few of them, or what is left of them",
    Role.LABELS: "labels of rows: classes, shares of classes, or masks",
    Role.STATISTICS: "statistics of many rows: means, deviations, amplitudes and the like",
    Role.PROTOTYPES: "one vector for each class: a mean of features of the site's rows of that class",
    Role.COUNTS: "counts: how many rows, of which classes, or which classes there are at all",
    Role.GENERATOR: "weights of an auxiliary network that learnt to make up rows, or features, like the site's",
    Role.SCORE: "how well the site's own rows are predicted",
}
_NEVER: dict[Role, str] = {
    Role.INPUTS: "inputs: no row of data, as it is, averaged or in parts",
    Role.LABELS: "labels of rows",
    Role.FEATURES: "features of single rows",
    Role.PROTOTYPES: "vectors of single classes",
    Role.STATISTICS: "statistics of inputs or features",
    Role.COUNTS: "counts of classes",
    Role.GENERATOR: "weights of a network that makes up rows",
    Role.SCORE: "how well the site's own rows are predicted",
    Role.MODEL: "weights of the network that predicts, nor changes of them",
}
"""In the order in which they are told: what is nearest to the data first."""
_SCALING = {
    "none": "Inputs are not scaled by anything that was measured on sites.",
    "fixed": "Inputs are scaled with published constants, or such that were given: nothing is measured for it.",
    "pooled": "Inputs are scaled with means and deviations of all training rows together, as in simulations of a "
    "benchmark. Between real sites nobody has these: there, choose normalise = federated, site or fixed.",
    "federated": "Inputs are scaled with means and deviations that sites measure together before the first round.",
    "site": "Every site scales its inputs for itself: nothing is sent for it.",
}


@dataclass(frozen=True)
class _Point:
    text: str
    below: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Section:
    title: str
    paragraphs: tuple[str, ...] = ()
    points: tuple[_Point, ...] = ()
    end: str = ""


def plain(statement: Statement) -> str:
    """The statement as text for a terminal."""
    lines = []
    for section in _sections(statement):
        lines += [section.title, "-" * len(section.title), *section.paragraphs]
        for point in section.points:
            lines += [f"- {point.text}", *(f"  - {text}" for text in point.below)]
        lines += [section.end] if section.end else []
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def page(statement: Statement) -> str:
    """The statement as a Markdown page, with lines for whoever signs it."""
    about = statement.about
    lines = [f"# What leaves a site: {_escaped(about.method)} on {_escaped(about.data)}", ""]
    for section in _sections(statement):
        lines += [f"## {_escaped(section.title)}", ""]
        for paragraph in section.paragraphs:
            lines += [_escaped(paragraph), ""]
        for point in section.points:
            lines += [f"- {_escaped(point.text)}", *(f"  - {_escaped(text)}" for text in point.below)]
        lines += [""] if section.points else []
        lines += [_escaped(section.end), ""] if section.end else []
    lines += ["## Agreed", ""]
    for what in ("Site", "Responsible person", "Place and date", "Signature"):
        lines += [f"{what}: {'_' * 50}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _sections(statement: Statement) -> list[_Section]:
    about = statement.about
    return [
        _run(about),
        *([_pooled()] if statement.pools_rows else []),
        _Section("Before the first round", (_SCALING[statement.scaling],)),
        *(_exchange(each, about, "Before the first round") for each in statement.before),
        *(_exchange(each, about, _when(each.rounds, about.rounds)) for each in statement.exchanges),
        *([] if statement.pools_rows else [_amounts(statement)]),
        _not_sent(statement),
        _protection(statement),
    ]


def _run(about: About) -> _Section:
    drawn_are = "1 is" if about.cohort == 1 else f"{about.cohort} are"
    drawn = (
        f"All {about.sites} sites take part in each of {about.rounds} rounds"
        if about.cohort == about.sites
        else f"Of {about.sites} sites, {drawn_are} drawn for each of {about.rounds} rounds: a site takes part "
        f"in a round with a chance of {_percent(about.chance)}"
    )
    return _Section(
        "The run",
        (
            f"Method {about.method} (preset {about.preset}), network {about.network}, data {about.data}, split "
            f"{about.split}. {drawn}. A site of usual size has {about.usual_rows} rows, the largest "
            f"{about.largest_rows}.",
            "Nothing but what is listed here crosses between a site and the server. It was derived from what the "
            f"method declares and does, by fewfed {about.fewfed}, without looking at any row. Beforehand everybody "
            "knows the method, the network with its first weights, the shape of an input and the names of the classes.",
        ),
    )


def _pooled() -> _Section:
    return _Section(
        "No federation",
        ("All rows of all sites are trained on in one place: this is a reference to compare with, not for use.",),
    )


def _exchange(each: Exchange, about: About, when: str) -> _Section:
    title = f"{when}: {each.name}"
    if each.members == "union":
        return _Section(title, ("All rows of all sites, inputs and labels, are in one place.",))
    if each.members == "server":
        return _Section(title, ("This runs inside the server, on what it was sent before: nothing leaves a site.",))
    who = "All sites take part." if each.members == "all" or about.cohort == about.sites else (
        f"{about.cohort} of {about.sites} sites take{'s' if about.cohort == 1 else ''} part."
    )  # fmt: skip
    does = "They train on their rows." if each.trains else "They compute what they send from their rows."
    state = (
        " A site remembers something for the next time it takes part; that stays at the site."
        if each.keeps_state
        else ""
    )
    takes_part = about.sites if each.members == "all" else about.cohort
    points = [_sent(sent, about, takes_part) for sent in each.sends]
    sends = "It sends:" if points else "It sends no arrays."
    return _Section(title, (f"{who} {does}{state} {_arrives(each)} {sends}",), tuple(points), _header(each.header))


def _sent(sent: Sent, about: About, takes_part: int) -> _Point:
    server = f"The server: {_server(sent, takes_part)}"
    below = (f"How much: {_shape(sent, about)}", server, f"Other sites: {_others(sent, takes_part)}")
    lasting = _how_long(sent)
    return _Point(f"{sent.name}: {_what(sent)}", (*below, f"How long: {lasting}") if lasting else below)


def _what(sent: Sent) -> str:
    if sent.role == Role.FEATURES.value and sent.made_of > 1:
        return f"features of several rows together: at least {sent.made_of} rows of the site are behind each"
    return _ROLES[Role(sent.role)]


def _shape(sent: Sent, about: About) -> str:
    if not sent.forms:
        return f"What it looks like is known from the first packet only ({sent.unknown})."
    looks = _looks(sent.forms)
    if not sent.rows_per_row:
        return f"{looks}, {_bytes(sent.size(0))}."
    usual, largest = sent.most_rows(about.usual_rows), sent.most_rows(about.largest_rows)
    return (
        f"{looks}, at most {sent.rows_per_row:g} for each row of the site: {_rows(usual)} and "
        f"{_bytes(sent.size(usual))} at most from a site of usual size, {_rows(largest)} and "
        f"{_bytes(sent.size(largest))} from the largest."
    )


def _server(sent: Sent, takes_part: int) -> str:
    if sent.relayed:
        return "receives it as it is, only to hand it on to one other site."
    if sent.combine == "concat":
        return (
            "receives the rows one by one. It puts those of all sites together without their names, but knows from "
            "whom it received them."
        )
    if sent.combine == "keep":
        return "receives and uses the value of every single site."
    what = "mean" if sent.combine == "mean" else "sum"
    if sent.compared:
        return (
            f"receives the value of every single site and compares them with each other before it combines them "
            f"({sent.compared}). Secure aggregation could not hide single values from it."
        )
    one = f" With one site a round the {what} is that site's value." if takes_part == 1 else ""
    return (
        f"receives the value of every single site, but uses only the {what} over them. Secure aggregation could hide "
        f"single values from it: between real sites, 'secure = true' in the federation's file.{one}"
    )


def _others(sent: Sent, takes_part: int) -> str:
    if sent.reaches is None:
        return f"what they are sent of it could not be found out ({sent.unknown}): take it that they are sent it."
    if not sent.reaches:
        return "are sent nothing of it, nor of what the server makes of it, as far as a rehearsal shows."
    mixed = "something that the server makes of it and of what others sent"
    if takes_part == 1:
        mixed = "it, or what the server makes of it alone,"
    groups: dict[tuple[str, str], list[str]] = {}
    for reach in sent.reaches:
        what = "it as it is" if reach.as_it_is else mixed
        to = ", one of them each" if reach.alone else ""
        place = f"'{reach.entry}' of {reach.phase}{to}"
        groups.setdefault((what, _later(reach.first, reach.last)), []).append(place)
    return "are sent " + "; ".join(f"{what} {when}, in {_listed(at)}" for (what, when), at in groups.items()) + "."


def _later(first: int, last: int | None) -> str:
    begin = {0: "in the same round", 1: "in the next round"}.get(first, f"{first} rounds later")
    if last == first:
        return begin
    return f"{begin} and from then on" if last is None else f"{begin} to {last} rounds later"


def _how_long(sent: Sent) -> str:
    if sent.reaches is None:
        return ""
    if sent.kept is None:
        return (
            "it, or what the server made of it, is kept by the server without an end that a rehearsal of "
            f"{HORIZON} rounds would show."
        )
    if sent.kept == 0:
        return "at the end of the round nothing of it is left at the server."
    return f"it, or what the server made of it, is kept by the server until {_rounds_on(sent.kept)}."


def _rounds_on(rounds: int) -> str:
    return "it is replaced in the next round" if rounds == 1 else f"it is replaced {rounds} rounds later"


def _header(header: Header | None) -> str:
    if header is None:
        return ""
    parts = [_weight(header), "the number of steps it took"]
    if terms := terms_in(header):
        parts.append(f"the mean over its steps of {_listed(terms)} (parts of its training loss)")
    if reported := reported_in(header):
        parts.append(f"numbers that the method reports: {_listed(reported)}")
    more = f" There may be more: a turn could not be tried out ({header.unknown})." if header.unknown else ""
    return f"Beside the arrays every packet tells the server: {'; '.join(parts)}.{more}"


def _weight(header: Header) -> str:
    if not header.tells_rows:
        return "the site's weight, which tells nothing about its rows"
    if (header.weight_per_row, header.weight_beside) == (1.0, 0.0):
        return "the site's weight in means, which is the number of its rows unless the method weighs otherwise"
    beside = f" and {header.weight_beside:g} beside" if header.weight_beside else ""
    most = f"at most {header.weight_per_row:g} for each row of the largest site{beside}"
    return f"its weight in means, which grows with the number of rows behind what it sends ({most})"


def _arrives(each: Exchange) -> str:
    if each.receives_unknown:
        return f"What a site receives could not be found out beforehand ({each.receives_unknown})."
    if not each.receives:
        return "A site receives nothing."
    groups: dict[tuple[str, str], list[Form]] = {}
    for form in each.receives:
        kind, entry, *_ = form.path.split("/")
        groups.setdefault((kind, entry), []).append(form)
    told = [
        f"'{entry}' ({_looks(forms)}{', for it alone' if kind == 'personal' else ''})"
        for (kind, entry), forms in groups.items()
    ]
    return f"A site receives {_listed(told)}."


def _amounts(statement: Statement) -> _Section:
    about = statement.about
    points = []
    for whose, rows in (("a site of usual size", about.usual_rows), ("the largest site", about.largest_rows)):
        a_round, in_all = _bytes(statement.once(rows)), _bytes(statement.in_all(rows))
        text = (
            f"{whose} ({_rows(rows)}): at most {a_round} in a round with all exchanges that recur; over the whole run "
        )
        points.append(_Point(f"{text}{in_all} are to be expected"))
    times = about.rounds * about.chance
    return _Section(
        "How much is sent",
        ("Bytes of arrays; a packet's header takes some hundred more.",),
        tuple(points),
        f"A site is drawn {times:.3g} times in the run on average.",
    )


def _not_sent(statement: Statement) -> _Section:
    if statement.pools_rows:
        return _Section("What is not sent", ("Nothing is held back.",))
    tells_rows = any(each.header is not None and each.header.tells_rows for each in statement.exchanges)
    points = [_Point(words) for role, words in _NEVER.items() if role.value in statement.never]
    caution = "That something is not sent does not say that nobody can infer it from what is sent."
    if tells_rows:
        caution += " The number of a site's rows, for one, can be read off its weight."
    never = ("In no exchange does a site send:",) if points else ("A site sends something of every kind there is.",)
    return _Section("What is not sent", never, tuple(points), caution)


def _protection(statement: Statement) -> _Section:
    bound = (
        f"These bounds hold: {'; '.join(statement.bounds)}."
        if statement.bounds
        else "No formal bound holds on what can be learnt from what is sent."
    )
    if statement.partial:
        bound += f" One does on a part of it, read by itself: {'; '.join(statement.partial)}."
    traces = (
        "A model keeps traces of what it was trained with, rows that other sites shared among it. The times above do "
        "not count these: they stay, also in the final model, for whoever gets it."
    )
    if statement.attacks is None:
        known = "This version does not say which attacks apply."
        return _Section("What can be learnt from it", (traces, known, bound))
    points = tuple(_Point(f"{name}: {why}") for name, why in statement.attacks.items())
    lead = "Attacks of this project that apply:" if points else "No attack of this project applies."
    return _Section("What can be learnt from it", (traces, lead), points, bound)


def _when(rounds: Spans, in_all: int) -> str:
    if rounds == ((1, in_all),):
        return "In every round" if in_all > 1 else "In the only round"
    if rounds == ((1, 1),):
        return "In the first round"
    if rounds == ((in_all, in_all),):
        return "In the last round"
    if len(rounds) > 3:
        return f"In {count(rounds)} of {in_all} rounds"
    told = [f"{first}" if first == last else f"{first} to {last}" for first, last in rounds]
    one = len(rounds) == 1 and rounds[0][0] == rounds[0][1]
    return f"In round {told[0]}" if one else f"In rounds {_listed(told)}"


def _looks(forms: Sequence[Form]) -> str:
    types = _listed(sorted({form.dtype.removeprefix("torch.") for form in forms}))
    if len(forms) == 1:
        return f"{_array(forms[0])}, {types}"
    fixed = sum(math.prod(length or 0 for length in form.shape) for form in forms if not form.counts_rows)
    a_row = sum(math.prod(length or 1 for length in form.shape) for form in forms if form.counts_rows)
    told = [f"{_number(fixed)} numbers"] if fixed or not a_row else []
    told += [f"rows of {_number(a_row)} numbers in all"] if a_row else []
    return f"{len(forms)} arrays with {' and '.join(told)}, {types}"


def _array(form: Form) -> str:
    sizes = [length for length in form.shape if length is not None]
    shape = "×".join(map(str, sizes))
    if form.counts_rows:
        return f"rows of {shape} numbers each" if shape else "one number a row"
    return f"{shape} numbers" if shape else "one number"


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{_number(number)} rows"


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} bytes"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _listed(words: Iterable[str]) -> str:
    *most, last = list(words)
    return f"{', '.join(most)} and {last}" if most else last


def _escaped(text: str) -> str:
    """Names of the user's in Markdown: nothing of them is markup."""
    for sign in "\\`*_[]<>#|":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
