#!/bin/sh
# A table of 228 patients in 18 institutions. README.md beside this file says more.
set -eu
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"
OUT=${OUT:-runs/examples/lung} ROUNDS=${ROUNDS:-30} SEEDS=${SEEDS:-10}
mkdir -p "$OUT" && trap 'times >> "$OUT/times"' EXIT

# The data. TABLE names a lung.csv that is on this machine already; without it the package is fetched.
python examples/lung/prepare.py --out "$OUT" ${TABLE:+--table "$TABLE"}

# How the table is read, and who holds what.
fewfed split --data "$OUT/patients.csv" --label outcome --site institution --missing mean

# What would leave an institution, before anything does.
fewfed explain fedavg --data "$OUT/patients.csv" --label outcome --site institution --missing mean \
  --network examples/lung/logistic.py:build --rounds "$ROUNDS" --out "$OUT/statement.md" --force

# Two comparisons: the network that fewfed would take by itself, then logistic regression. Each seed holds out
# other patients. Stopped, the same command goes on.
fewfed compare local fedavg fedprox flea single --data "$OUT/patients.csv" --label outcome --site institution \
  --missing mean --metric auc --rounds "$ROUNDS" --epochs 2 --seeds "$SEEDS" --out "$OUT/compare/mlp"
fewfed compare local fedavg single --data "$OUT/patients.csv" --label outcome --site institution \
  --missing mean --metric auc --rounds "$ROUNDS" --epochs 2 --lr 0.01 --seeds "$SEEDS" \
  --network examples/lung/logistic.py:build --out "$OUT/compare/logistic"

# The model in hand: patients who were lost from sight, whose outcome nobody knows; and a file for use elsewhere.
fewfed predict "$OUT/compare/logistic/fedavg-seed0" --data "$OUT/censored.csv" --keep institution,age,ph.ecog \
  --out "$OUT/predictions.csv" --force
fewfed export "$OUT/compare/logistic/fedavg-seed0" --to torchscript --out "$OUT/model" --force

fewfed report "$OUT/compare" --out "$OUT/report.html"
