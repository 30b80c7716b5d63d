"""What runs and their folders are called unless somebody says otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fewfed.methods.registry import label_of
from fewfed.runs.experiment import Resolved
from fewfed.spelling import spelled

DEFAULT_OUT = Path("runs")
_LONGEST = 100
"""Characters that one part takes of a folder's name."""


def default_folder(resolved: Resolved, root: Path = DEFAULT_OUT) -> Path:
    """A folder named after the run; a number is added where one of that name exists."""
    experiment = resolved.experiment
    unseen = (f"without-{experiment.leave_out}",) if experiment.leave_out else ()
    data = Path(experiment.data).stem
    parts = (label_of(resolved.spec), data, experiment.split, *unseen, f"seed{experiment.seed}")
    name = "-".join(file_name(part) for part in parts)
    path = root / name
    number = 2
    while path.exists():
        path = root / f"{name}-{number}"
        number += 1
    return path


def file_name(text: str) -> str:
    """A text as a part of a file's name, which is neither hidden nor too long."""
    return re.sub(r"[^\w.]+", "-", text).lstrip("-.").rstrip("-")[:_LONGEST] or "unnamed"


def labels_of(specs: Iterable[str]) -> dict[str, str]:
    """What each of several methods is called in a table: methods of the same name, from files, are told apart."""
    wanted = list(dict.fromkeys(specs))
    labels = {spec: label_of(spec) for spec in wanted}
    alike = {label: [spec for spec in wanted if labels[spec] == label] for label in labels.values()}
    for label, group in alike.items():
        if len(group) > 1:
            labels |= {spec: f"{label} ({place})" for spec, place in _places(group).items() if place}
    return labels


def _places(specs: list[str]) -> dict[str, str]:
    """As many of the last parts of the paths in each name as tell them apart; nothing for one without files."""
    paths = {spec: [Path(file).absolute().with_suffix("").parts for file in spelled(spec).files] for spec in specs}
    longest = max(len(parts) for files in paths.values() for parts in (*files, ()))
    found: dict[str, str] = {}
    for count in range(1, longest + 1):
        found = {spec: ", ".join("/".join(parts[-count:]) for parts in files) for spec, files in paths.items()}
        if len(set(found.values())) == len(specs):
            break
    return found
