# Two commands from nothing: `make demo` and `make test`. Both make .venv and install what they need.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test bench clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/'

demo: .venv/installed  ## train, measure, look inside and write: under five minutes
	@$(BIN)/python examples/demo.py

test: .venv/installed-dev  ## lint, types, every test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

bench: .venv/installed-bench  ## race against the peers on this machine, and how Trellis grows
	$(BIN)/python -m bench

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

.venv/installed-bench: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

clean:  ## delete the environment and caches, not your runs
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
