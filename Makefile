# Two commands from nothing: `make demo` and `make test`. Both make .venv and install what they need.
PYTHON ?= python3
BIN := .venv/bin
# The release our figures were measured on, by its exact name: where an index offers a build for processors alone under
# that name, pip takes it, and then finds nothing to do for the range in pyproject.toml.
TORCH ?= torch==2.13.0

# What `make package` installs with: name several to try several.
PYTHONS ?= $(PYTHON)

# An environment in which the kernels of `make sanitize` are used, and their sanitizers come first.
SANITIZED = LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096 \
	PYTHONPATH=build/sanitize/lib

.PHONY: help demo test bench torture package sanitize clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/'

demo: .venv/installed  ## train, measure, look inside and write: under five minutes
	@$(BIN)/python examples/demo.py

test: .venv/installed-dev  ## lint, types, every test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

bench: .venv/installed-bench  ## race against the peers on this machine, and how Trellis grows
	$(BIN)/python -m bench

torture: .venv/installed-dev  ## half an hour of faults: kills, damaged files, full disks, hostile calls
	$(BIN)/python -m torture --minutes 30 --seed 7 --write

package: .venv/installed-dev  ## build wheels and sdist, install each in a clean environment, use it there
	TORCH="$(TORCH)" $(BIN)/python tests/install.py $(PYTHONS)

sanitize: .venv/installed-dev  ## the native kernels' tests and hostile calls under AddressSanitizer and UBSan
	TRELLIS_SANITIZE=1 $(BIN)/python setup.py --quiet build --build-base build/sanitize --build-lib build/sanitize/lib
	@test -f build/sanitize/lib/trellis/_kernels.so  # else there is nothing to test
	$(SANITIZED) $(BIN)/python -m pytest tests/ops --ignore tests/ops/test_install.py
	$(SANITIZED) $(BIN)/python -m torture --minutes 3 --parts kernels models --write

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml setup.py $(wildcard src/native/*)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

.venv/installed-bench: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

clean:  ## delete the environment and caches, not your runs
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info src/trellis/*.so
