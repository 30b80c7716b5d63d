"""A live page from its first look to Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fewfed.report.live.follower import Follower
from fewfed.report.live.report import LiveReport
from fewfed.report.live.server import PORT, PageServer
from fewfed.report.live.watcher import Watcher


@contextmanager
def following(folders: Sequence[Path], port: int = PORT, baseline: str = "") -> Iterator[PageServer]:
    """A server that is ready to answer, for `serve_forever`. Looking has begun."""
    report = LiveReport(baseline)
    follower = Follower(Watcher(folders, report.compose))
    with PageServer(port, report.page, follower.answer) as server:
        follower.start()
        try:
            yield server
        finally:
            follower.close()
