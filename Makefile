PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test lint types bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/fewfed compare fedavg fedmix feddata flea --seeds 3 --data digits --split qua:2 --clients 40 \
	  --cohort 8 --rounds 30 --epochs 2 --batch 16 --out runs/demo --plot

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

test: lint types
	$(BIN)/python -m pytest -n 2

bench: setup
	$(BIN)/python benchmarks/overhead.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
