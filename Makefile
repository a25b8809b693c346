# Every target sets up what it needs and can be the first one run on a fresh machine.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 2000
EXAMPLES ?= 10000

.PHONY: help setup test lint types unit nightly demo sim drills bench bench-machine proto golden clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk 'BEGIN {FS = ":.*## "} {printf "  %-14s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "resourcelease needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.ready: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(VENV)/.ready  ## a .venv with the package and its tools

test: lint types unit  ## lint, types and every test

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy
	$(BIN)/mypy --no-error-summary chaos bench tests

unit: setup
	$(BIN)/python -m pytest -m 'not slow'

nightly: setup  ## the long sweeps: EXAMPLES=n histories of the machine against its model
	RESOURCELEASE_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --timeout 0 tests/machine

golden: setup  ## rewrites the golden transcripts from what the machine does now
	RESOURCELEASE_REWRITE_GOLDEN=1 $(BIN)/python -m pytest -n 0 tests/machine/test_golden.py

proto: setup  ## regenerates cluster/resourcelease/v1 from protos/
	$(BIN)/python tools/generate_protos.py

bench-machine: setup  ## microseconds per item of the state machine alone
	$(BIN)/python -m bench.machine

sim: setup  ## SEEDS=n seeds of the simulator, over all profiles
	$(BIN)/python -m chaos.simulate --seeds 0:$(SEEDS)

demo: $(VENV)/.installed  ## three nodes, a workload, and the leader killed halfway
	@$(BIN)/resourcelease demo

bench: setup  ## the side-by-side benchmark; peers that cannot be had are skipped by name
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	$(BIN)/python -m bench.install_peers
	$(BIN)/python -m bench.compare --json docs/benchmarks.json --page docs/benchmarks.md

drills: setup  ## the chaos drills on real processes
	$(BIN)/python -m chaos.drills

clean:  ## removes what the targets above made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
