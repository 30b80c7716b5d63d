"""`fewfed certs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli.printing import say
from fewfed.errors import ConfigError, RunError


def make_certs(
    folder: Annotated[Path, typer.Argument(help="The folder of keys; for --own, a new folder at the site.")],
    server: Annotated[
        list[str] | None, typer.Option("--server", help="Names or addresses that sites reach the server by, A,B...")
    ] = None,
    sites: Annotated[list[str] | None, typer.Option("--sites", help="Sites to make keys for, A,B...")] = None,
    public: Annotated[
        list[Path] | None, typer.Option("--public", help="Public part of keys that a site made with --own.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="Sites to take off the roster, A,B...")] = None,
    own: Annotated[str, typer.Option("--own", help="At a site: make the keys of the site of this name.")] = "",
    days: Annotated[int, typer.Option("--days", help="How long a server certificate is valid.")] = 825,
    renew: Annotated[bool, typer.Option("--renew", help="Make a new server certificate.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="New keys for sites that have some.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say what is there and when it expires.")] = False,
) -> None:
    """Make, extend or check the keys and certificates of a federation.

    Example: fewfed certs keys --server fl.example.org --sites north,south,west
    """
    asked = bool(server or sites or public or remove or renew or replace)
    if check and (asked or own):
        raise ConfigError("--check changes nothing: expected it alone, as in fewfed certs --check FOLDER")
    if check:
        _show(folder)
    elif own:
        if asked:
            raise ConfigError("--own makes the keys of one site, at the site: expected it alone")
        _make_own(folder, own)
    else:
        _make(folder, _listed(server), _listed(sites), public or [], _listed(remove), days, renew, replace)


def _make(
    folder: Path,
    server: list[str],
    sites: list[str],
    public: list[Path],
    remove: list[str],
    days: int,
    renew: bool,
    replace: bool,
) -> None:
    from fewfed.deploy.security.key_folder import KeyFolder, Wanted

    wanted = Wanted.parsed(server, sites, public, remove, days, renew=renew, replace=replace)
    told = KeyFolder(folder).update(wanted)
    for line in told:
        say(line)
    if not told:
        say(f"'{folder}' has all of this already; 'fewfed certs --check {folder}' says what is there")


def _make_own(folder: Path, name: str) -> None:
    from fewfed.deploy.security.key_folder import make_own_keys

    public, mark = make_own_keys(folder, name)
    say(f"made keys of site '{name}': {mark}")
    say(
        f"hand {public} to the coordinator, and tell the fingerprint by telephone; it sends back ca.crt and roster.toml"
    )


def _show(folder: Path) -> None:
    from fewfed.deploy.security.key_check import check

    found = check(folder)
    for finding in found:
        say(
            f"{'bad ' if finding.problem else 'good'}  {finding.what}{': ' if finding.problem else ''}{finding.problem}"
        )
    bad = [finding for finding in found if finding.problem]
    if bad:
        raise RunError(f"{len(bad)} of {len(found)} things in '{folder}' are wrong: {bad[0].what}: {bad[0].problem}")


def _listed(texts: list[str] | None) -> list[str]:
    """What stands between commas; an empty name is left in, to be refused."""
    return [part.strip(" ") for text in texts or [] for part in text.split(",")]
