"""The commands and their names."""

from __future__ import annotations

from typing import Annotated

import typer

from fewfed.cli.attack import attack
from fewfed.cli.check import check
from fewfed.cli.compare import compare
from fewfed.cli.data import data_app
from fewfed.cli.diagnose import diagnose_app
from fewfed.cli.explain import explain
from fewfed.cli.export import export_model
from fewfed.cli.frontier import show_frontier
from fewfed.cli.methods import show_methods
from fewfed.cli.predict import show_predictions
from fewfed.cli.reproduce import reproduce
from fewfed.cli.run import resume, run
from fewfed.cli.show import show
from fewfed.cli.split import show_split
from fewfed.cli.tune import tune
from fewfed.cli.verify import show_verdict
from fewfed.version import __version__

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated learning for sites that each hold few and skewed samples.",
)
app.command()(run)
app.command()(compare)
app.command()(tune)
app.command()(resume)
app.command("frontier")(show_frontier)
app.command()(reproduce)
app.command()(explain)
app.command()(show)
app.command("predict")(show_predictions)
app.command("export")(export_model)
app.command("verify")(show_verdict)
app.command()(attack)
app.command("methods")(show_methods)
app.command()(check)
app.command("split")(show_split)
app.add_typer(data_app, name="data")
app.add_typer(diagnose_app, name="diagnose")


def _version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    pass
