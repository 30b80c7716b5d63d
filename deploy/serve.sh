#!/bin/sh
# Begin a run, or go on with the one that the folder holds: for services, which start the same command every time.
#   serve.sh CONFIG OUT
set -eu
config=$1
out=$2
if [ -e "$out/federation.json" ]; then
    exec fewfed serve "$config" --out "$out" --resume
fi
exec fewfed serve "$config" --out "$out"
