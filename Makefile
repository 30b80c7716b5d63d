PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test test-cpus lint types bench bench-gpu clean

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

# Kernels of torch and oneDNN for other processors than this one, and the tests whose numbers could depend on them.
CPUS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=AVX2
NUMERICAL := tests/engine tests/methods tests/conformance tests/networks tests/diagnostics tests/test_losses.py \
  tests/test_optim.py tests/test_network.py tests/test_statistics.py tests/test_segmentation.py tests/test_resume.py

test-cpus: setup
	for cpu in $(CPUS); do echo "== $$cpu" && env $$cpu $(BIN)/python -m pytest -n 2 -q $(NUMERICAL) || exit 1; done

# On a machine that does nothing else: twenty minutes for the first two, three quarters of an hour for the last, which also makes an
# environment for each of the other simulators.
bench: setup
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/scaling.py --json runs/scaling.json --plot runs/scaling.png
	$(BIN)/python benchmarks/peers/run.py --out runs/peers.json

FIVE := fedavg flea fedntd fedfa scaffold

# Needs only a Python with torch (2.9 or later, CUDA), numpy and safetensors: the GPU machine may lack everything else. The last
# line needs CIFAR-10 in a folder of FEWFED_DATA.
bench-gpu:
	$(PYTHON) benchmarks/steps.py --networks lenet5 --methods $(FIVE) --clients 128 --width 64
	$(PYTHON) benchmarks/steps.py --networks harnet audionet --methods $(FIVE) --plans graphs \
	  --precisions tf32 float32 --clients 32
	$(PYTHON) benchmarks/steps.py --networks mobilenetv2 resnet18 --methods $(FIVE) --plans graphs \
	  --precisions bf16 float32 --compiled parts --clients 24
	$(PYTHON) benchmarks/steps.py --networks mobilenetv2 --methods $(FIVE) --plans graphs --layout channels_last --clients 24
	$(PYTHON) benchmarks/steps.py --plans eager stacked --precisions tf32 float32 --clients 16 --width 16
	$(PYTHON) benchmarks/agreement.py
	$(PYTHON) benchmarks/curves.py --data cifar10 --split qua:3 --clients 500 --rounds 100 --methods fedavg flea \
	  --precisions bf16 --augment static

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
