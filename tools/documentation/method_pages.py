"""A page for every method: from its docstring, declarations and statement, and from docs/methods/when.toml."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import fewfed
from documentation.compositions import around
from documentation.navigation import DOCS, DocumentationError
from documentation.tables import escaped, table
from fewfed.method import Method
from fewfed.methods.registry import choose, presets_of, registered, wrapped_field
from fewfed.phase import Combine
from fewfed.privacy.statement_text import page as statement_page
from fewfed.report.catalogue import entry, fields_of
from fewfed.runs.experiment import Experiment

_EXAMPLE = {"data": "digits", "split": "qua:2", "clients": 20, "cohort": 5, "rounds": 50}
_AROUND = {"bottlenecked": "flea", "decorrelated": "flea", "grouped": "flea", "noised": "flea", "quantised": "flea"}
"""What a wrapper is shown around, where it would have nothing to do around FedAvg."""
_SEEN = {
    Combine.MEAN.value: "uses the mean; masks may hide single sites",
    Combine.SUM.value: "uses the sum; masks may hide single sites",
    Combine.CONCAT.value: "sees every row",
    Combine.KEEP.value: "sees every site's value",
}
_WHO = {"round": "the round's sites", "all": "all sites", "server": "the server", "union": "all rows in one place"}


def groups() -> dict[str, str]:
    """The family of every page, by its place."""
    return {_place(name): _titled(cls.family) for name, cls in registered().items()}


@functools.cache
def pages() -> dict[str, str]:
    """The text of every page, by its place."""
    said = tomllib.loads((DOCS / "methods" / "when.toml").read_text())
    missing, unknown = sorted(set(registered()) - set(said)), sorted(set(said) - set(registered()))
    if missing or unknown:
        raise DocumentationError(f"docs/methods/when.toml: missing {missing}, no such method {unknown}")
    return {_place(name): _page(name, said[name]) for name in registered()}


def linked(overview: str) -> str:
    """The table of all methods with a link to the page of each."""
    return re.sub(
        r"^\| `([a-z0-9-]+)(\(METHOD\))?` \|",
        lambda row: f"| [`{row[1]}{row[2] or ''}`]({_place(row[1])}) |",
        overview,
        flags=re.M,
    )


def _place(name: str) -> str:
    return f"methods/{name}.md"


def _titled(family: str) -> str:
    return family[0].upper() + family[1:]


def _page(name: str, said: Mapping[str, str]) -> str:
    cls, about = registered()[name], entry(registered()[name])
    parts = [
        f"# {name}",
        escaped(cls.paper) + ".",
        "## When to use it",
        said["when"].strip(),
        f"```\n{command_of(name)}\n```",
        "## What it does",
        _prose(cls.__doc__ or ""),
        "## What leaves a site",
        *_leaves(about),
        "## Parameters",
        _parameters(about["parameters"]),
        "## Presets",
        *_presets(name),
        "## With other methods",
        *_composition(name, cls),
        "## What can be learnt from what is sent",
        *_leakage(name),
    ]
    return "\n\n".join(parts) + "\n"


def _shown(name: str) -> str:
    """A method as a user would write it to try it."""
    return f"{name}({_AROUND[name]})" if name in _AROUND else name


def command_of(name: str) -> str:
    """What a reader types to try a method."""
    network = " --network mlp" if registered()[name]().no_batchnorm else ""
    spec = f'"{_shown(name)}"' if "(" in _shown(name) else name
    return f"fewfed run {spec}{network} --data digits --split qua:2"


def _prose(docstring: str) -> str:
    """Its paragraphs, and its lists, whose points begin a line each."""
    paragraphs = re.split(r"\n\s*\n", docstring.strip())
    points = (re.split(r"\n(?=\s*- )", paragraph) if paragraph.startswith("- ") else [paragraph]
              for paragraph in map(str.strip, paragraphs))  # fmt: skip
    return "\n\n".join("\n".join(escaped(" ".join(point.split())) for point in each) for each in points)


def _leaves(about: Mapping[str, Any]) -> list[str]:
    rows = []
    for phase in about["phases"]:
        who = f"`{phase['name']}`", phase["when"], _WHO[phase["cohort"]]
        if not phase["uploads"]:
            sent = "all raw data" if phase["cohort"] == "union" else "nothing"
            rows.append([*who, sent, "", ""])
        for upload, declared in phase["uploads"].items():
            share = declared["rows_per_row"]
            many = f", {share:g} a row" if share else ""
            rows.append([*who, f"`{upload}`", declared["role"] + many, _SEEN[declared["combine"]]])
            who = "", "", ""
    kept = any(phase["state"] for phase in about["phases"])
    masks = (
        "Masks are [secure aggregation](../trust.md#sums-under-masks) between real sites. `0.1 a row` means a tenth as "
        "many rows as the site has."
    )
    state = "A site keeps state of its own between its turns." if kept else "A site keeps nothing between its turns."
    return [table(["phase", "in", "who sends", "what", "which is", "the server"], rows), f"{state} {masks}"]


def _parameters(parameters: Sequence[Mapping[str, Any]]) -> str:
    if not parameters:
        return "It has none of its own; those of local training are [common to all methods](../training.md)."
    rows = [
        [f"`{each['name']}`", each["type"], f"`{_value(each['default'])}`", each["range"], escaped(each["help"])]
        for each in parameters
    ]
    return table(["name", "type", "default", "range", "meaning, and the authors' values"], rows)


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_value, value)) or "empty"
    return "empty" if value == "" else str(value)


def _presets(name: str) -> list[str]:
    usual = choose(name)
    rows = [["`paper`", "the defaults above", ""]]
    for preset in presets_of(name)[1:]:
        chosen = choose(f"{name}:{preset}")
        own, before = fields_of(chosen.method), fields_of(usual.method)
        changed = {field: value for field, value in own.items() if before.get(field, value) != value}
        words = [f"`{field}={_value(value)}`" for field, value in changed.items()]
        words += [f"`training.{field}={_value(value)}`" for field, value in chosen.training.items()]
        variant = type(chosen.method) is not type(usual.method)
        rows.append([f"`{preset}`", ", ".join(words) or "code of its own", _APART if variant else _note(name, preset)])
    notes = [_prose(type(choose(f"{name}:{row[0][1:-1]}").method).__doc__ or "") for row in rows if row[2] == _APART]
    return [table(["preset", "sets", "note"], rows), *notes]


_APART = "a method file of its own, below"


def _note(name: str, preset: str) -> str:
    return escaped(registered()[name].presets[preset].note)


def _composition(name: str, cls: type[Method]) -> list[str]:
    method, lines = choose(_shown(name)).method, []
    if wrapped_field(cls):
        lines.append(
            f"It goes around any other method, written `{name}(METHOD)`; fields of the inner one are set as "
            "`--set METHOD.FIELD=VALUE`. What it cannot go around is refused before a run begins, with the reason."
        )
    needs = [
        (method.needs_classes, "labels that are classes"),
        (method.needs_stages, "a network whose [stages are known](../networks.md#stages)"),
        (bool(method.no_batchnorm), "a network without BatchNorm"),
    ]
    wanted = [words for needed, words in needs if needed]
    if wanted:
        lines.append("It needs " + " and ".join(wanted) + ".")
    if method.personal_model:
        lines.append("Every site ends with [a model of its own](../model.md#whose-model).")
    fits, refused = around(_shown(name))
    lines.append("Goes inside: " + ", ".join(f"[`{each}`]({each}.md)" for each in fits) + "." if fits else "")
    if refused:
        rows = [[f"[`{each}`]({each}.md)", escaped(why)] for each, why in refused.items()]
        lines += ["Refused inside:", table(["wrapper", "why"], rows)]
    return [line for line in lines if line]


def _leakage(name: str) -> list[str]:
    network = "mlp" if registered()[name]().no_batchnorm else "auto"
    statement = fewfed.explain(_shown(name), Experiment(**_EXAMPLE, network=network))  # type: ignore[arg-type]
    told = statement_page(statement).partition("## Agreed")[0].partition("\n")[2].strip()
    told = re.sub(r"^  - ", "    - ", told, flags=re.M)
    told = re.sub(r"^## (.*)$", r"### \1 { data-search-exclude }", told, flags=re.M)  # They are alike on all pages.
    told = re.sub(r"^(?!- |    - |#)(.+)\n(- )", r"\1\n\n\2", told, flags=re.M)
    command = f"fewfed explain {command_of(name).removeprefix('fewfed run ')} --clients 20 --cohort 5 --rounds 50"
    return [f"What `{command}` says. For your own settings, run it with these.", told]
