"""`fewfed attack`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fewfed.cli import options as opt
from fewfed.cli.printing import out, progress, say
from fewfed.privacy.attacks.applicable import ATTACKS
from fewfed.privacy.attacks.finding import Finding, Measure
from fewfed.runs.own import Own

if TYPE_CHECKING:  # The attacks themselves are loaded when one is made.
    from fewfed.privacy.attacks.running import Attacked

_KINDS = ", ".join(ATTACKS)


def attack(
    run: Annotated[Path, typer.Argument(help="A run folder, of a run with --record packets.")],
    kinds: Annotated[list[str] | None, typer.Argument(help=f"{_KINDS}; none = all.")] = None,
    effort: Annotated[float, typer.Option(help="Rows and steps of an attack grow with it; 1 is the usual.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of everything random in an attack.")] = 0,
    rounds: Annotated[list[int] | None, typer.Option("--round", help="A recorded round, from 1. Repeatable.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; by default the GPU if there is one.")] = "",
    network: Annotated[str, typer.Option(help="The run's network file again, if you have not run it yet.")] = "",
    method: opt.MethodFile = "",
    as_json: opt.AsJson = False,
) -> None:
    """Attack what a run sent, and say what could be had from it.

    Example: fewfed attack runs/recorded reconstruct membership
    """
    from fewfed.privacy.attacks.opening import Effort, open_case
    from fewfed.privacy.attacks.registry import chosen
    from fewfed.privacy.attacks.running import attacked, write

    asked = chosen(kinds or [])
    case = open_case(run, Effort(effort, seed, tuple(rounds or ()), device), Own(), method=method, network=network)
    with progress("attacks", len(asked)) as display:
        found = attacked(run, case, asked, display.show)
    place = write(found)
    if any(one.measures for one in found.findings):
        out.print(_table(found))
    _tell(found, place)
    if as_json:
        sys.stdout.flush()
        print(json.dumps(found.as_json()))


def _table(found: Attacked) -> Table:
    table = Table("attack", "variant", "round", "phase", "what")
    for name in ("value", "95 % interval", "chance", "raw rows"):
        table.add_column(name, justify="right")
    for one in found.findings:
        for number, measure in enumerate(one.measures):
            names = (one.attack, one.variant, str(one.round), one.phase) if not number else ("", "", "", "")
            table.add_row(*(escape(name) for name in names), escape(measure.what), *_numbers(measure))
        if one.measures:
            table.add_section()
    return table


def _numbers(measure: Measure) -> tuple[str, ...]:
    shown = f"[{_number(measure.low)}, {_number(measure.high)}]"
    beside = (_number(value) for value in (measure.chance, measure.raw))
    return (_number(measure.value), escape(shown), *beside)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _tell(found: Attacked, place: Path) -> None:
    """What the table stands for: who could do this, what was not tried, and where it is written."""
    for threat in dict.fromkeys(one.threat for one in found.findings if one.measures):
        whose = dict.fromkeys(_name(one) for one in found.findings if one.threat == threat and one.measures)
        say(f"{', '.join(whose)}: {threat.who}; sees {threat.sees}; holds {threat.holds}")
    told = [one for one in found.findings if one.measures and one.note]
    for one in told:
        say(f"{_name(one)}: {one.note.splitlines()[0]}")
    for line in dict.fromkeys(line for one in told for line in one.note.splitlines()[1:]):
        say(line)
    for one in found.findings:
        if not one.measures:
            say(f"{_name(one)}, round {one.round}, phase '{one.phase}': {one.note or 'nothing was measured'}")
    for idle in found.does_not_apply:
        say(f"{idle.attack}: does not apply: {idle.why}")
    say("chance: what guessing gives; raw rows: what the same attack gets from rows sent as they are")
    say(f"findings{' and pictures' if found.pictures() else ''}: {place}")


def _name(one: Finding) -> str:
    return f"{one.attack} ({one.variant})" if one.variant else one.attack
