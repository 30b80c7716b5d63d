PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
IMAGES := $(VENV)/.ready-images
VERSIONS := 3.11 3.12 3.13
EXAMPLES := $(addprefix example-,activity retina xray lung)

.PHONY: setup setup-dev browser demo docs $(EXAMPLES) federation test test-deploy test-cpus test-pythons fuzz chaos lint types bench bench-gpu clean

# What the program itself needs, which is all that `make demo` waits for; and what tests and documents need beside it.
setup: $(STAMP)
setup-dev: $(DEV)

INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

$(DEV): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev]'
	touch $(STAMP) $(IMAGES) $@

# The photographs of an example need what reads them, which the program itself does without.
$(IMAGES): $(STAMP)
	$(INSTALL) '.[images]'
	touch $@

# Pages are tested in a real browser, Debian's. Where it cannot be installed, those tests say so and are left out.
browser:
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null; } || \
	  echo "no chromium, and it could not be installed: pages are not tested"

demo: setup
	$(BIN)/fewfed compare fedavg fedmix feddata flea potluck --seeds 3 --data digits --split qua:2 --clients 40 \
	  --cohort 8 --rounds 30 --epochs 2 --batch 16 --out runs/demo
	$(BIN)/fewfed report runs/demo

# The documentation site, built strictly: build/docs/site/index.html. The tests build it too.
docs: setup-dev
	$(BIN)/python tools/build_docs.py

# A worked example by its folder's name: make example-lung.
example-retina: $(IMAGES)
$(EXAMPLES): example-%: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/$*/run.sh

# A coordinator and five sites, each a process of its own with its own rows; one of each is killed on the way.
federation: setup-dev
	$(BIN)/python tools/federation.py

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-dev
	$(BIN)/mypy

# With ALL=yes also the tests marked "thorough": presets that only change numbers, more of the slow faults. CI runs them.
TIER := $(if $(ALL),,-m "not thorough")
# Processes that are started and killed: coordinators, sites, machines of a cluster. Part of `make test ALL=yes`.
REAL := tests/deploy/faults tests/deploy/test_deploy_real.py $(addprefix tests/engine/test_engine_ray_,faults.py machines.py)

test: lint types browser
	$(BIN)/python -m pytest -n 2 --dist worksteal $(TIER) $(if $(ALL),,$(addprefix --ignore=,$(REAL))) \
	  $(if $(COVERAGE),--cov --cov-report=term)

test-deploy: setup-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal $(TIER) tests/deploy $(wildcard tests/engine/test_engine_ray*.py)

# Kernels of torch and oneDNN for other processors than this one, and the tests whose numbers could depend on them.
CPUS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=AVX2
NUMERICAL := tests/methods tests/conformance tests/networks tests/losses tests/tasks tests/diagnostics tests/test_network.py \
  $(addprefix tests/engine/test_engine_,bundles.py combine.py device*.py dropout.py evaluation.py layout.py metrics.py norms.py \
  optimizer.py round_loop.py second_derivatives.py turn.py)

test-cpus: setup-dev
	for cpu in $(CPUS); do echo "== $$cpu" && env $$cpu $(BIN)/python -m pytest -n 2 --dist worksteal -q $(TIER) $(NUMERICAL) || exit 1; done

# The whole suite under every supported Python that is installed, each in an environment of its own.
test-pythons:
	for version in $(VERSIONS); do \
	  if ! python$$version -c '' 2> /dev/null; then echo "== Python $$version is not installed"; continue; fi; \
	  echo "== Python $$version"; \
	  $(MAKE) setup-dev PYTHON=python$$version VENV=.venv-$$version || exit 1; \
	  .venv-$$version/bin/mypy --python-version $$version || exit 1; \
	  .venv-$$version/bin/python -m pytest -n 2 --dist worksteal -q || exit 1; \
	done

# What comes from outside: by hypothesis, many more examples than the tests draw, then guided by coverage where atheris
# can be installed. Ten minutes on two cores.
FUZZ := tests/engine/test_engine_packet.py tests/data/test_data_fuzz.py tests/test_settings_fuzz.py \
  tests/deploy/security/test_security_envelope.py
fuzz: setup-dev
	-$(INSTALL) '.[fuzz]'
	FEWFED_FUZZ=10000 $(BIN)/python -m pytest -n 2 --dist worksteal -q --timeout 7200 $(FUZZ)
	$(BIN)/python tools/fuzz.py --seconds 40

# Broken on purpose, at random, for MINUTES: kills, stops, signals, full disks, damaged files. SEED repeats the cases.
MINUTES := 10
SEED := 0
chaos: setup-dev
	$(BIN)/python tools/chaos.py --minutes $(MINUTES) --seed $(SEED)

# On a machine that does nothing else: twenty minutes for the first two, three quarters of an hour for the last, which also makes an
# environment for each of the other simulators.
bench: setup-dev
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/scaling.py --json runs/scaling.json --plot runs/scaling.png
	$(BIN)/python benchmarks/peers/run.py --out runs/peers.json

FIVE := fedavg flea fedntd fedfa scaffold

# Needs only a Python with torch (2.9 or later, CUDA), numpy and safetensors: the GPU machine may lack everything else. The last
# line needs CIFAR-10 in a folder of FEWFED_DATA.
bench-gpu:
	$(PYTHON) benchmarks/steps.py --networks lenet5 --methods $(FIVE) --clients 128 --width 64
	$(PYTHON) benchmarks/steps.py --networks harnet audionet --methods $(FIVE) --modes graphs \
	  --precisions tf32 float32 --clients 32
	$(PYTHON) benchmarks/steps.py --networks mobilenetv2 resnet18 --methods $(FIVE) --modes graphs \
	  --precisions bf16 float32 --compiled parts --clients 24
	$(PYTHON) benchmarks/steps.py --networks mobilenetv2 --methods $(FIVE) --modes graphs --layout channels_last --clients 24
	$(PYTHON) benchmarks/steps.py --modes eager stacked --precisions tf32 float32 --clients 16 --width 16
	$(PYTHON) benchmarks/agreement.py
	$(PYTHON) benchmarks/curves.py --data cifar10 --split qua:3 --clients 500 --rounds 100 --methods fedavg flea \
	  --precisions bf16 --augment static

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
