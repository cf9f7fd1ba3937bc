# Two commands for a fresh machine with python3 (its venv module) and make:
#     make demo    trains TS-CAM and SCM on the built-in set, compares them and names the reports
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
.PHONY: help demo install test quick-test lint coverage clean-demo

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(installed): pyproject.toml constraints.txt
	@echo "== making the virtual environment $(VENV) (torch is large: some minutes)"
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "make: $(PYTHON) must be Python 3.10 or later with venv (Debian: apt install python3-venv)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(bin)/python -m pip install --quiet --disable-pip-version-check -e ".[dev,onnx,plots,tensorboard]" -c constraints.txt
	@touch $@

install: $(installed) ## the virtual environment alone, in .venv

demo: $(installed) ## train TS-CAM and SCM on the built-in set, evaluate and compare them: minutes on 2 cores
	@echo "== training TS-CAM, the baseline, on the built-in set (a finished or stopped run goes on where it was)"
	@scm-fast train --method tscam --out runs/demo-tscam --resume auto
	@echo "== training SCM at the same budget"
	@scm-fast train --method scm --out runs/demo-scm --resume auto
	@echo "== comparison"
	@scm-fast compare runs/demo-tscam runs/demo-scm --maps runs/demo.png
	@echo "reports: runs/demo-tscam/evaluation/report.html runs/demo-scm/evaluation/report.html"

clean-demo: ## forget the demo's runs
	rm -rf runs/demo-tscam runs/demo-scm

test: $(installed) ## all tests
	@echo "== tests (make quick-test leaves out the slow ones)"
	@pytest $(PYTEST) $(RESULTS)
	@echo "== tests of the kernels, compiled and emulated"
	@pytest $(PYTEST) -m compiled

quick-test: $(installed) ## the tests without the slow ones
	@pytest $(PYTEST) -m "not slow"

lint: $(installed) ## formatting, lint and types
	@echo "== ruff and mypy"
	@ruff format --check .
	@ruff check .
	@mypy

coverage: $(installed) ## all tests, and the share of lines that they run
	@pytest $(PYTEST) --cov --cov-report=term
