"""A study on digits that runs in a second, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

STUDY = """
name = "small"
what = "two methods on digits"
paper = "none"
seeds = 2
terms = ["correlation"]
note = "a trial study"

[common]
network = "mlp"
cohort = 3
rounds = 2
epochs = 1
batch = 16
executor = "sequential"

[method."flea, half"]
use = "flea"
cut = "hidden1"
beta = inf

[[block]]
data = "digits"
split = ["qua:2", "iid"]
clients = 6
methods = ["fedavg", "flea, half"]

[[set]]
when = { split = "iid", method = "flea, half" }
share = 0.5

[published]
table = "small.csv"
sd = "std"

[published.match]
where = "split"
method = "method"

[published.spelling.split]
"qua:2" = "Quantity(2)"

[published.spelling.method]
"flea, half" = "FLea*"
"""

TABLE = """where,method,mean,std
Quantity(2),FedAvg,20.0,1.5
Quantity(2),FLea*,NA,NA
IID,FedAvg,30,
"""


def write_study(folder: Path, text: str = STUDY, table: str = TABLE, name: str = "small") -> Path:
    """The folder of studies with this one in it."""
    (folder / "published").mkdir(parents=True, exist_ok=True)
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "published" / "small.csv").write_text(table)
    (folder / "mine" / f"{name}.toml").write_text(text)
    return folder
