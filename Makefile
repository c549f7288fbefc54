# All commands of the project; `make help` lists them.  Everything lives in .venv, nothing else is touched.
#
# A first run installs TensorFlow and takes minutes.  What is installed is remembered in a stamp file whose
# name carries a checksum of pyproject.toml, so that a second run starts in seconds, and a changed
# pyproject.toml installs again.  All paths are relative: the checkout's own path may contain spaces.

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
CHECKSUM := $(firstword $(shell cksum < pyproject.toml))
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

INSTALLED_DEMO := .venv/.installed-demo-$(CHECKSUM)
INSTALLED_TEST := .venv/.installed-test-$(CHECKSUM)
INSTALLED_LINT := .venv/.installed-lint-$(CHECKSUM)
INSTALLED_PLOT := .venv/.installed-plot-$(CHECKSUM)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-exhaustive lint types bench clean
# A recipe that fails half-way must not leave its stamp.
.DELETE_ON_ERROR:

help: ## Show this list
	@echo "make [PYTHON=python3.12] <command> [ARGS='...']"
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name text; do \
	    printf '  %-16s %s\n' "$$name" "$$text"; done

setup: $(INSTALLED_TEST) $(INSTALLED_LINT) $(INSTALLED_PLOT) ## Install everything for development into .venv
	@echo "Ready: . $(BIN)/activate"

demo: $(INSTALLED_DEMO) ## Train twice, once with interruptions, and compare the weights bit for bit
	@$(BIN)/tf-preempt demo $(ARGS)

test: $(INSTALLED_TEST) ## Run all tests
	@$(BIN)/python -m pytest $(ARGS)

test-exhaustive: $(INSTALLED_TEST) ## Run the long versions of tests, too
	@$(BIN)/python -m pytest -m "exhaustive or not exhaustive" $(ARGS)

lint: types ## Check style, types, formatting and the directions of imports
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/lint-imports --no-logo

types: $(INSTALLED_LINT) ## Check types
	@$(BIN)/python -m mypy

bench: $(INSTALLED_TEST) $(INSTALLED_PLOT) ## Run all benchmarks
	@set -e; for script in benchmarks/*.py; do \
	    [ -e "$$script" ] || { echo "There are no benchmarks yet."; break; }; \
	    echo "== $$script"; $(BIN)/python "$$script" $(ARGS); done

clean: ## Remove .venv and everything that tools have left behind
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; ok = (3, 10) <= sys.version_info < (3, 14); \
	    sys.exit(0 if ok else "$(PYTHON) is Python " + sys.version.split()[0] + "; Python 3.10 to 3.13 is needed." \
	    " HINT: make PYTHON=python3.12 (or another one that you have).")'
	@echo "Making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "HINT: on Debian and Ubuntu: apt install python3-venv"; exit 1; }

.venv/.installed-%-$(CHECKSUM): | $(BIN)/python
	@echo "Installing tf-preempt[$*] into .venv (minutes the first time, as TensorFlow is large)"
	@$(PIP) install --editable '.[$*]'
	@rm -f .venv/.installed-$*-*
	@touch $@
