PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test lint types bench bench-gpu clean

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

# Needs only a Python with torch (2.9 or later, CUDA) and numpy: the GPU machine may lack everything else.
bench-gpu:
	$(PYTHON) benchmarks/steps.py --networks lenet5 --plans graphs stacked --clients 128 --width 64
	$(PYTHON) benchmarks/steps.py --networks harnet audionet --plans graphs stacked --clients 32
	$(PYTHON) benchmarks/steps.py --networks mobilenetv2 resnet18 --plans graphs --precisions float32 bf16 --clients 24
	$(PYTHON) benchmarks/agreement.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
