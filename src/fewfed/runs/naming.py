"""Where runs go unless somebody says otherwise."""

from __future__ import annotations

import re
from pathlib import Path

from fewfed.runs.experiment import Resolved

DEFAULT_OUT = Path("runs")


def default_folder(resolved: Resolved, root: Path = DEFAULT_OUT) -> Path:
    """A folder named after the run; a number is added where one of that name exists."""
    experiment = resolved.experiment
    unseen = (f"without-{experiment.leave_out}",) if experiment.leave_out else ()
    parts = (resolved.spec, Path(experiment.data).stem, experiment.split, *unseen, f"seed{experiment.seed}")
    name = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)
    path = root / name
    number = 2
    while path.exists():
        path = root / f"{name}-{number}"
        number += 1
    return path
