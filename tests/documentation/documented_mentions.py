"""Commands within sentences: what stands for the words in capitals."""

from __future__ import annotations

from collections.abc import Mapping

import documented_files as files
from documented_commands import CELL, FROM_TABLE, RECORDED, RUN, Case

STANDS_FOR = {
    "[KIND ...]": "labels",
    "--vary ...": "--vary share=0.1,0.2",
    "FOLDER...": "runs/one runs/two",
    "FOLDER": "runs/one",
    "RUN": "runs/one",
    "METHODS": "fedavg fedprox",
    "METHOD": "flea",
    "--executor NAME": "--executor sequential",
    "methods NAME": "methods flea",
    "get NAME": "get har",
    "reproduce NAME": f"reproduce flea-table1 --cells {CELL}",
}
"""Looked for in this order."""
INSTEAD: Mapping[str, str] = {
    "fewfed new METHOD": "fewfed new begun",
    "fewfed check METHOD": "fewfed check fedprox",
    "fewfed predict RUN --data new.csv": "fewfed predict runs/hospitals --data new.csv",
    "fewfed resume RUN --epsilon 12": "fewfed resume runs/private --epsilon 12",
    "fewfed resume RUN --method their/method.py": "fewfed resume runs/theirs --method their/method.py",
    "fewfed resume RUN --network their/net.py:build": "fewfed resume runs/theirs --network their/net.py:build",
}
"""Commands that mean another folder or method than most."""
MENTIONS = Case(
    (
        files.own_method,
        files.own_network,
        files.own_arrays,
        files.other_policy,
        files.new_patients,
        files.har,
        files.studies,
    ),
    before=(
        RECORDED + "runs/one",
        RUN + "runs/two",
        FROM_TABLE + "runs/hospitals",
        'fewfed run "dp(fedavg)" --network mlp --set sigma=2 --set epsilon=8 --out runs/private',
        "fewfed run their/method.py --network their/net.py:build --out runs/theirs",
        "fewfed certs keys --server fl.example.org --sites north,south,west",
    ),
    short={"lr=0.001,0.01,epochs=1,5": "lr=0.001,0.01"},
    between={"fewfed new anchored": files.begun_method},
    again=("fewfed advise flea my_method.py",),
    slow=True,
)


def spelled_out(line: str) -> str:
    """The command that a reader would type."""
    if line in INSTEAD:
        return INSTEAD[line]
    for words, meant in STANDS_FOR.items():
        line = line.replace(words, meant)
    return line
