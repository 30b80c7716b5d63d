"""The report of runs that are watched: made again where one of them has changed, from what was read of the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fewfed.engine.storage import digest_of
from fewfed.report.live.watched_run import WatchedRun
from fewfed.report.page.contents import Contents, contents
from fewfed.report.page.detail import Detail, detail_of
from fewfed.report.page.render import render, update
from fewfed.report.page.sheets import Sheet
from fewfed.report.rendering import printable
from fewfed.report.survey import Found


class LiveReport:
    """The report as it is now."""

    def __init__(self, baseline: str = "") -> None:
        self._baseline = baseline
        self._details: dict[Path, tuple[int, Detail]] = {}
        self._contents = _nothing()

    def page(self) -> str:
        """The whole page."""
        return render(self._contents, live=True)

    def compose(self, runs: Sequence[WatchedRun]) -> str:
        """What of the page changes, as a JSON object."""
        watched = {run.folder: run for run in runs}

        def read(found: Found) -> Detail:
            run = watched[found.folder]
            known = self._details.get(run.folder)
            if known is None or known[0] != run.revision:
                known = self._details[run.folder] = (run.revision, detail_of(found, run.records))
            return known[1]

        self._details = {folder: known for folder, known in self._details.items() if folder in watched}
        shown = [run.found for run in runs if run.is_shown]
        # What others are compared with may not have begun.
        baseline = self._baseline if any(found.method == self._baseline for found in shown) else ""
        self._contents = contents(shown, baseline=baseline, read=read) if shown else _nothing()
        if self._baseline and not baseline:  # Or it may never do so, having been spelled wrongly.
            missing = f"No run of {printable(self._baseline)} is here yet, which others are to be compared with."
            self._contents = replace(self._contents, lead=(*self._contents.lead, missing))
        made = update(self._contents)
        return json.dumps({"report": digest_of(json.dumps(made).encode()), **made})


def _nothing() -> Contents:
    columns = ("folder", "method", "seed", "rounds", "state")
    return Contents(
        "No runs yet", ("Runs are shown here as soon as there are any.",), (), Sheet("runs", "Every run", columns, ())
    )
