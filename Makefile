# Two commands for a fresh machine with python3 (its venv module) and make:
#     make demo    trains TS-CAM and SCM on the built-in set and puts them side by side
#     make test    passes the tests
# Each makes the virtual environment first, with the versions of constraints.txt; that happens once.
# `make help` lists the others. VENV=folder uses another environment, PYTHON=python3.12 another interpreter.

PYTHON ?= python3
VENV ?= .venv
PYTEST ?= -n auto
bin := $(VENV)/bin
installed := $(VENV)/.installed
export PATH := $(abspath $(bin)):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo install test slow-test quick-test oldest-test lint docs bench-smoke coverage clean-demo

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(installed): pyproject.toml constraints.txt
	@echo "== making the virtual environment $(VENV) (torch is large: some minutes)"
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON) must be Python 3.11 or later with venv (Debian: apt install python3-venv)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(bin)/python -m pip install --quiet --disable-pip-version-check \
		-e ".[dev,docs,hub-kernel,onnx,plots,tensorboard]" -c constraints.txt
	@touch $@

install: $(installed) ## the virtual environment alone, in .venv

# QUICK=1: every step of the demo in a minute, with a network too small and too short a training to localise well.
ifdef QUICK
demo := runs/quick-demo
demo_options := --quick
else
demo := runs/demo
endif

demo: $(installed) ## train TS-CAM and SCM on the built-in set and put them side by side: minutes on 2 cores
	@scm-fast demo --out $(demo) $(demo_options)

clean-demo: ## forget the demo's runs (QUICK=1: those of the quick one)
	rm -rf $(demo)

test: $(installed) ## the tests, but for the slow ones
	@echo "== tests"
	@pytest $(PYTEST) $(RESULTS) -m "not slow"

slow-test: $(installed) ## the slow tests: kernels compiled for every target, and emulated; long trainings
	@echo "== slow tests"
	@pytest $(PYTEST) $(RESULTS) -m slow
	@echo "== tests of the kernels, compiled and emulated"
	@pytest $(PYTEST) -m compiled

# The rule is what a file speaks of: starting processes, training and running whole commands take most of the time.
quick = $(shell grep -LE 'subprocess|spawn|Trainer|import (main|train)' tests/test_*.py)
# Triton of the oldest torch is too old for the kernels. The other files are what users do first.
without_kernels = $(shell grep -LE '(from|import) (kernel_|ptx|triton|scm_fast.kernels)' $(quick))
also_oldest = tests/test_model.py tests/test_exports.py tests/test_hub.py tests/test_localizer.py

quick-test: $(installed) ## the quickest tests: no kernels, and no file that trains, runs commands or starts processes
	@pytest $(PYTEST) -m "not slow" -k "not triton" $(quick)

# The versions of constraints-oldest.txt, with Python 3.11 if PYTHON is that.
OLDEST ?= .venv-oldest

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	@echo "== making the virtual environment $(OLDEST) with the oldest versions"
	@$(PYTHON) -m venv $(OLDEST)
	@$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[dev,onnx,plots,tensorboard]" \
		-c constraints-oldest.txt
	@touch $@

oldest-test: $(OLDEST)/.installed ## the quickest tests with the oldest versions that users may have
	@echo "== tests with the oldest versions"
	@$(OLDEST)/bin/python -m pytest $(PYTEST) $(RESULTS) -m "not slow" -k "not triton" $(without_kernels) $(also_oldest)

lint: $(installed) ## formatting, lint and types
	@echo "== ruff and mypy"
	@ruff format --check .
	@ruff check .
	@mypy

docs: $(installed) ## the pages as a site in site/; a broken link is an error
	@echo "== docs"
	@NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

bench-smoke: $(installed) ## one small case of every benchmark, once: that they run, not how fast
	@echo "== one case of every benchmark"
	@pytest bench/ --benchmark-only --smoke -q

coverage: $(installed) ## all tests, and the share of lines that they run
	@pytest $(PYTEST) --cov --cov-report=term
