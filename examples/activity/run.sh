#!/bin/sh
# Is a phone better off alone or with 29 others? README.md beside this file says more.
set -eu
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"
OUT=${OUT:-runs/examples/activity} ROUNDS=${ROUNDS:-30} SEEDS=${SEEDS:-3}
mkdir -p "$OUT" && trap 'times >> "$OUT/times"' EXIT

# The data: each of the 30 people is a site.
place=$(fewfed data get har)
python examples/activity/prepare.py "${place#har: }" --out "$OUT"

# What would leave a phone, before anything does.
fewfed explain flea --data "$OUT/data.npz" --test-column test --network examples/activity/network.py:build \
  --cohort 10 --rounds "$ROUNDS" --out "$OUT/statement.md" --force

# The comparison. Stopped, the same command goes on.
fewfed compare local fedavg fedprox flea single --data "$OUT/data.npz" --test-column test --cohort 10 \
  --rounds "$ROUNDS" --epochs 3 --batch 16 --network examples/activity/network.py:build --set evaluate_every=2 \
  --set evaluate_clients=0 --seeds "$SEEDS" --out "$OUT/compare"

# The model in hand: one person's later windows, and a file for use without fewfed.
fewfed predict "$OUT/compare/fedavg-seed0" --data "$OUT/person.npz" --out "$OUT/predictions.csv" --force
fewfed export "$OUT/compare/fedavg-seed0" --to torchscript --out "$OUT/model" --force

fewfed report "$OUT/compare" --out "$OUT/report.html"
