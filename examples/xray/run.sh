#!/bin/sh
# Forty clinics with twenty labelled chest X-rays each. README.md beside this file says more.
set -eu
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"
OUT=${OUT:-runs/examples/xray} ROUNDS=${ROUNDS:-30} SEEDS=${SEEDS:-3}
mkdir -p "$OUT" && trap 'times >> "$OUT/times"' EXIT

# The data, and which images are whose.
place=$(fewfed data get pneumonia)
python examples/xray/prepare.py "${place#pneumonia: }" --out "$OUT"

# What would leave a clinic, before anything does.
fewfed explain flea --data pneumonia --split "file:$OUT/clinics.json" --clients 0 --cohort 10 --network lenet5 \
  --rounds "$ROUNDS" --out "$OUT/statement.md" --force

# The comparison. Stopped, the same command goes on.
fewfed compare local fedavg fedprox fedmix flea "grouped(flea)" single --data pneumonia \
  --split "file:$OUT/clinics.json" --clients 0 --cohort 10 --rounds "$ROUNDS" --epochs 3 --batch 10 \
  --network lenet5 --metric auc --seeds "$SEEDS" --out "$OUT/compare"

# The model in hand: X-rays that nobody trained on or was tested on, and a file for use without fewfed.
fewfed predict "$OUT/compare/fedavg-seed0" --data "$OUT/new.npz" --out "$OUT/predictions.csv" --force
fewfed export "$OUT/compare/fedavg-seed0" --to torchscript --out "$OUT/model" --force

fewfed report "$OUT/compare" --out "$OUT/report.html"
