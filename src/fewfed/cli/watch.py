"""`fewfed watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli.printing import say, warn
from fewfed.errors import RunError
from fewfed.report.live.server import PORT
from fewfed.report.live.serving import following
from fewfed.runs.naming import DEFAULT_OUT


def watch(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Run folders, or folders with runs below them; none: 'runs'.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where it is served; 0 = any free port.")
    ] = PORT,
    baseline: Annotated[str, typer.Option("--baseline", help="The method that others are compared with.")] = "",
) -> None:
    """Serve the page of `fewfed report` on this machine, changing while runs go on, until Ctrl-C.

    It shows progress and the time left, and the sites of a federation. Folders may come and go.

    Example: fewfed watch runs/compare
    """
    chosen = folders or [DEFAULT_OUT]
    for folder in chosen:
        if folder.exists() and not folder.is_dir():
            raise RunError(f"'{folder}' is no folder: expected a run folder, or one with run folders below it")
        if not folder.exists():
            warn(f"'{folder}' is not there yet: the page shows it once it is")
    with following(chosen, port, baseline) as server:
        say(f"{server.address} shows {', '.join(str(folder) for folder in chosen)}; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return  # The way it ends.
