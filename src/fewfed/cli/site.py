"""`fewfed site`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.errors import ConfigError


@opt.of_experiments("data", "label", "ignore", "missing", "test_data", "test_column", "size")
def run_site(
    given: opt.Given,
    name: Annotated[str, typer.Option("--name", help="The site's name, as it is on the roster.")],
    key: Annotated[Path, typer.Option("--key", help="The folder of keys that this site was given.")],
    state: Annotated[Path, typer.Option("--state", help="Folder for what this site must not forget.")],
    server: Annotated[str, typer.Option("--server", help="The coordinator, HOST:PORT.")] = "",
    relay: Annotated[
        bool, typer.Option("--relay", help="Do not connect: a SuperNode of Flower's on this machine does.")
    ] = False,
    policy: Annotated[Path | None, typer.Option("--policy", help="A TOML file of what may leave this site.")] = None,
    threads: Annotated[int, typer.Option("--threads", help="Threads to compute with; 0 = all cores.")] = 0,
    most_mb: Annotated[float, typer.Option("--most-mb", help="The largest message, in megabytes.")] = 2047.0,
    least_threshold: Annotated[
        int,
        typer.Option(
            "--least-threshold", help="Sums under masks: no part in one that fewer sites could unmask.", min=0
        ),
    ] = 0,
) -> None:
    """Take part in a federation with the data of this site, until stopped.

    Example: fewfed site --data rows.npz --name north --key north --server fl.example.org:9092 --state state
    """
    from fewfed.deploy.flower.installed import require_flower

    require_flower()  # Before what it brings along is imported.
    from fewfed.deploy.site.start import start

    if threads < 0 or not 0 < most_mb <= 2047:
        raise ConfigError("--threads is expected to be 0 or more, and --most-mb above 0 and at most 2047")
    if bool(server) == relay:
        raise ConfigError("how is the coordinator reached? Expected --server HOST:PORT or --relay, one of them")
    start(
        given.values,
        name=name,
        keys=key,
        server=server or None,
        state=state,
        policy=policy,
        threads=threads,
        most_bytes=int(most_mb * 1e6),
        least_threshold=least_threshold,
    )
