"""The commands and their names."""

from __future__ import annotations

from typing import Annotated

import typer

from fewfed.cli.advise import advise
from fewfed.cli.attack import attack
from fewfed.cli.certs import make_certs
from fewfed.cli.check import check
from fewfed.cli.compare import compare
from fewfed.cli.completion import show_completion
from fewfed.cli.data import data_app
from fewfed.cli.diagnose import diagnose_app
from fewfed.cli.doctor import show_health
from fewfed.cli.explain import explain
from fewfed.cli.export import export_model
from fewfed.cli.frontier import show_frontier
from fewfed.cli.methods import show_methods
from fewfed.cli.new import new_method
from fewfed.cli.predict import show_predictions
from fewfed.cli.report import write as write_report
from fewfed.cli.reproduce import reproduce
from fewfed.cli.run import resume, run
from fewfed.cli.serve import serve
from fewfed.cli.show import show
from fewfed.cli.site import run_site
from fewfed.cli.split import show_split
from fewfed.cli.status import show_status
from fewfed.cli.tune import tune
from fewfed.cli.verify import show_verdict
from fewfed.cli.watch import watch
from fewfed.version import __version__

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated learning for sites that each hold few and skewed samples.\n\n"
    "Example: fewfed compare fedavg flea --data digits --split qua:2",
)
app.command()(run)
app.command()(compare)
app.command()(tune)
app.command()(advise)
app.command()(resume)
app.command("frontier")(show_frontier)
app.command()(reproduce)
app.command()(explain)
app.command()(show)
app.command()(watch)
app.command("report")(write_report)
app.command("predict")(show_predictions)
app.command("export")(export_model)
app.command("verify")(show_verdict)
app.command()(attack)
app.command("methods")(show_methods)
app.command()(check)
app.command("new")(new_method)
app.command("split")(show_split)
app.command()(serve)
app.command("site")(run_site)
app.command("status")(show_status)
app.command("certs")(make_certs)
app.command("doctor")(show_health)
app.command("completion")(show_completion)
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
