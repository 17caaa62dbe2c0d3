# Everything a developer types. `make` lists it.
# deploy/venv.py keeps .venv in step with pyproject.toml and deploy/locks/; it returns at once when nothing changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv dev ray nixl model up test test-all test-clients check fmt docs pictures load bench bench-gpu tune-gpu gpu-wheels heads clean

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
PYTEST := $(BIN)/pytest -v
# A process takes whole files (tests/conftest.py).
FAST := -n auto --dist loadfile --max-worker-restart 2 -m "not slow and not docker"
# Tests start hundreds of processes: without bytecode on disk each of them compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  ARGS='...' is passed on, e.g. make up ARGS='--port 8080', make test ARGS='-k laws',"
	@echo "  make bench ARGS=full (the long form, hours), make bench ARGS='engine --dtype int8'."
	@echo "  TORCH_INDEX=URL takes torch from that index (the one of its CPU builds: no CUDA packages)."
	@echo "  TORCH_UNVERIFIED=1 lets torch be a build whose hash isn't in deploy/locks/."

venv:
	@$(PYTHON) deploy/venv.py

dev:
	@$(PYTHON) deploy/venv.py --dev

ray: ## install Ray, too, for `specmesh up --on ray` (hundreds of MB)
	@$(PYTHON) deploy/venv.py --dev --ray

nixl: ## install NIXL, too, for --page-transport nixl (hundreds of MB)
	@$(PYTHON) deploy/venv.py --dev --nixl

# The loops are compiled on the other core meanwhile. Tests also compare with the model in float32, which is a folder of
# its own.
model: dev
	@$(BIN)/python -m services.runtime.compile_ahead & $(BIN)/specmesh model fetch && \
	  $(BIN)/specmesh model fetch --dtype float32 && wait

up: venv ## install, fetch the model, start the mesh; Ctrl-C drains it
	@exec $(BIN)/specmesh up $(ARGS)

test: model ## the fast tests, with the real model (minutes)
	@$(PYTEST) $(FAST) $(ARGS)

test-all: model ## every test: also the slow ones and docker compose
	@$(PYTEST) $(ARGS)

test-clients: model ## clients and agents of other makers, in an environment of their own, against a mesh (minutes)
	@$(BIN)/python tests/clients/run.py $(ARGS)

check: model docs-fresh ## lint, types, docs in step with the code, tests
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(PYTEST) $(FAST) $(ARGS)

.PHONY: docs-fresh
docs-fresh: dev
	@$(BIN)/python deploy/docs.py --check
	@$(BIN)/python deploy/dashboards.py --check
	@$(BIN)/python -m bench results --check

fmt: dev ## sort imports and apply ruff's safe fixes
	@$(BIN)/ruff check --fix .

docs: dev ## remake the tables of docs/, docs/results.md and the dashboards from code and rows
	@$(BIN)/python deploy/docs.py
	@$(BIN)/python deploy/dashboards.py
	@$(BIN)/python -m bench results

pictures: model ## take the pictures of docs/pictures/ again; needs Chromium (a minute)
	@$(BIN)/python deploy/pictures.py $(ARGS)

load: venv ## load a running mesh and print latencies and throughput
	@$(BIN)/specmesh load $(ARGS)

bench: model ## the benchmarks of this machine, 15 minutes; rows go to bench/results/, docs/results.md is made
	@$(BIN)/python -m bench $(ARGS)

# With the Python that is there: a machine with a GPU may reach nothing to install from. docs/operate/gpu.md has what it
# needs. ARGS=--resume goes on where it ended, --dry-run shows without a GPU that all of it runs.
bench-gpu: ## the benchmarks of a GPU, 9 minutes; no mesh is needed
	@$(PYTHON) -m bench on_gpu $(ARGS)

tune-gpu: ## measure block sizes of a GPU's linears, minutes; writes kernels/gemm/tiles.json
	@$(PYTHON) -m kernels.gemm.tune $(ARGS)

gpu-wheels: dev ## what the whole mesh needs on a machine with a GPU and no index, into .gpu/
	@$(BIN)/python deploy/gpu_wheels.py $(ARGS)

heads: model ## train the heads that come with specmesh again, and make its answers (two to three hours)
	@$(BIN)/python deploy/heads.py $(ARGS)
	@[ -n "$(ARGS)" ] || $(BIN)/python deploy/answers.py

clean: ## remove the virtual environment and caches (models stay)
	@rm -rf .venv build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
