# make demo      a lab on this machine: lease a device, run ResNet-50 on it
# make check     lint, types and the tests that start no daemon: what to run while you work
# make test      check, then the tests of live daemons
# make test-slow the long ones
# make lint      report and count; make fix repairs what can be repaired by itself
# make bench     us and our peers, side by side
# make deb       Debian packages of tracker, proxy and commands, into dist/
# make docs      check that what the documents say still works
# Each target sets up .venv by itself; PYTHON=... chooses another Python (3.10 or later).

SHELL := /bin/bash
BIN := .venv/bin
BUILD := build/deb
DIST := dist
DEVICE := $(BIN)/python tests/device_files.py
PYTEST := $(BIN)/pytest -q --dist worksteal
# Tests also wait: more of them at once than there are cores, and of live ones, which wait for daemons, still more.
CORES := $(shell nproc 2>/dev/null || echo 2)
CHECK := $(shell echo $$(( $(CORES) * 3 / 2 )))
LIVE := $(shell echo $$(( $(CORES) * 2 )))

.DEFAULT_GOAL := help
.PHONY: help demo check test test-slow lint fix bench deb docs clean

help:
	@sed -n '/^# make/s/^# //p' Makefile

.venv/.ready-graph: pyproject.toml
	@.ci/setup graph

.venv/.ready-dev: pyproject.toml
	@.ci/setup dev

demo: .venv/.ready-graph
	@$(BIN)/rpcsys demo

# Compiled code is kept, whatever the environment says: tests start an interpreter some thousand times.
unexport PYTHONDONTWRITEBYTECODE

check: lint
	$(PYTEST) -n $(CHECK) -m "not live and not slow" --ignore tests/live

# A live test that fails runs again, and why it failed is shown at the end; no other test does (tests/conftest.py).
test: check
	$(PYTEST) -n $(LIVE) -m "live and not slow" --reruns 2 --rerun-show-tracebacks

test-slow: .venv/.ready-dev
	$(PYTEST) -n $(CHECK) -m slow --reruns 2 --rerun-show-tracebacks

lint: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vermin --quiet --no-tips -t=3.8- --violations $$($(DEVICE))
	$(BIN)/vermin --quiet --no-tips -t=3.10- --violations rpcsys
	$(BIN)/python -m tests.counts

fix: .venv/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.ready-dev
	$(BIN)/python -m benchmarks

# From what a release has, in a folder of its own: dpkg-buildpackage writes beside its sources.
deb: .venv/.ready-dev
	@command -v dpkg-buildpackage >/dev/null && command -v dh_python3 >/dev/null || \
	    { echo "make deb: type: sudo apt-get install dpkg-dev debhelper dh-python python3-installer" >&2; exit 1; }
	rm -rf $(BUILD) && mkdir -p $(BUILD)/source $(DIST)
	$(BIN)/python -m build --no-isolation --sdist --outdir $(BUILD)
	tar -xf $(BUILD)/rpcsys-*.tar.gz -C $(BUILD)/source --strip-components=1
	cd $(BUILD)/source && PYTHON=$(realpath $(BIN))/python dpkg-buildpackage --build=binary --no-sign
	mv $(BUILD)/*.deb $(DIST)

docs: .venv/.ready-dev
	$(BIN)/python docs/check.py

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
