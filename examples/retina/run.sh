#!/bin/sh
# Vessels of the retina, between two hospitals. README.md beside this file says more.
set -eu
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"
OUT=${OUT:-runs/examples/retina} ROUNDS=${ROUNDS:-15} SEEDS=${SEEDS:-2}
mkdir -p "$OUT" && trap 'times >> "$OUT/times"' EXIT

# The data. DRIVE and CHASE name the folders as they are published; without them `retina` must be on this machine.
if [ -n "${DRIVE:-}${CHASE:-}" ]; then
  both="name both folders as they are published, DRIVE and CHASE"
  python examples/retina/prepare.py --drive "${DRIVE:?$both}" --chase "${CHASE:?$both}" --to "$OUT/data"
  export FEWFED_DATA="$OUT/data"
fi
place=$(fewfed data get retina)

# What would leave a hospital, before anything does.
fewfed explain fedbn --data retina --split domain --clients 0 --cohort 2 --network unet-small \
  --rounds "$ROUNDS" --out "$OUT/statement.md" --force

# The comparison. Stopped, the same command goes on.
fewfed compare local fedavg fedbn fedfa --data retina --split domain --clients 0 --cohort 2 --size 128 \
  --rounds "$ROUNDS" --epochs 2 --batch 4 --network unet-small --metric dice --seeds "$SEEDS" \
  --out "$OUT/compare"

# The model in hand: masks for images of the first hospital, and a file for use without fewfed.
fewfed predict "$OUT/compare/fedavg-seed0" --data "${place#retina: }/drive/testing/images" \
  --out "$OUT/masks.npz" --force
fewfed export "$OUT/compare/fedavg-seed0" --to torchscript --out "$OUT/model" --force

fewfed report "$OUT/compare" --out "$OUT/report.html"
