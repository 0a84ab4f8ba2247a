# make demo      a lab on this machine: lease a device, run ResNet-50 on it
# make check     lint, types and the tests that start no daemon: what to run while you work
# make test      check, then the tests of live daemons
# make test-slow the long ones
# make test-release the longest ones, and all combinations: before a release
# make lint      report and count; make fix repairs what can be repaired by itself
# make bench     us and our peers, side by side; CASES=tls: the cases with that prefix
# make deb       Debian packages of tracker, proxy and commands, into dist/
# make native    compile native/ into the tree again, with CC and CFLAGS from the environment
# make wheels    what is published, into dist/: sources, wheels with the compiled library, and one without it
# make docs      check that what the documents say still works
# make site      the documents as a web site, into build/site
# make pictures  the pictures of README.md, anew
# Each target sets up .venv by itself; PYTHON=... chooses another Python (3.10 or later).

SHELL := /bin/bash
BIN := .venv/bin
BUILD := build/deb
WHEELS := build/wheels
SITE := build/site
DIST := dist
DEVICE := $(BIN)/python tests/device_files.py
PYTEST := $(BIN)/pytest -q --dist worksteal
# Tests also wait: more of them at once than there are cores, and of those that wait for daemons still more.
CORES := $(shell nproc 2>/dev/null || echo 2)
CHECK := $(shell echo $$(( $(CORES) * 3 / 2 )))
LIVE := $(shell echo $$(( $(CORES) * 2 )))

.DEFAULT_GOAL := help
.PHONY: help demo check test test-slow test-release lint fix bench native deb wheels docs site pictures clean

help:
	@sed -n '/^# make/s/^# //p' Makefile

.venv/.ready-graph: pyproject.toml
	@.ci/setup graph

.venv/.ready-site: pyproject.toml
	@.ci/setup site

.venv/.ready-dev: pyproject.toml
	@.ci/setup dev

.venv/.ready-native: .venv/.ready-dev hatch_build.py $(wildcard native/*)
	@$(MAKE) --no-print-directory native
	@touch $@

# hatch_build.py compiles.
native:
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .

demo: .venv/.ready-graph
	@$(BIN)/rpcsys demo

# Compiled code is kept, whatever the environment says: tests start an interpreter some thousand times.
unexport PYTHONDONTWRITEBYTECODE

check: lint .venv/.ready-native
	$(PYTEST) -n $(CHECK) -m "not live and not slow" --ignore tests/live

# A live test that fails runs again, and why it failed is shown at the end; no other test does (tests/conftest.py).
test: check
	$(PYTEST) -n $(LIVE) -m "live and not slow" --reruns 2 --rerun-show-tracebacks

test-slow: .venv/.ready-native
	$(PYTEST) -n $(LIVE) -m "slow and not release" --reruns 2 --rerun-show-tracebacks

test-release: .venv/.ready-native
	$(PYTEST) -n $(LIVE) -m release --reruns 2 --rerun-show-tracebacks

lint: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vermin --quiet --no-tips -t=3.8- --violations $$($(DEVICE)) rpcsys/pytest_plugin
	$(BIN)/vermin --quiet --no-tips -t=3.10- --violations rpcsys
	$(BIN)/python -m tests.counts

fix: .venv/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.ready-native
	$(BIN)/python -m benchmarks $(CASES)

# From what a release has, in a folder of its own: dpkg-buildpackage writes beside its sources.
deb: .venv/.ready-dev
	@command -v dpkg-buildpackage >/dev/null && command -v dh_python3 >/dev/null || \
	    { echo "make deb: type: sudo apt-get install dpkg-dev debhelper dh-python python3-dev python3-installer" >&2; exit 1; }
	rm -rf $(BUILD) && mkdir -p $(BUILD)/source $(DIST)
	$(BIN)/python -m build --no-isolation --sdist --outdir $(BUILD)
	tar -xf $(BUILD)/rpcsys-*.tar.gz -C $(BUILD)/source --strip-components=1
	cd $(BUILD)/source && PYTHON=$(realpath $(BIN))/python dpkg-buildpackage --build=binary --no-sign
	mv $(BUILD)/*.deb $(DIST)

# Their library is the one that boards get. auditwheel names the glibc that it needs, abi3audit what is not in the
# limited API of Python 3.11; decision 0018 says why the tag is cp39.
wheels: .venv/.ready-dev
	rm -rf $(WHEELS) && mkdir -p $(DIST)
	RPCSYS_SPEEDUPS=0 $(BIN)/python -m build --no-isolation --outdir $(DIST)
	set -e; for machine in x86_64 aarch64; do \
	    folder=$(WHEELS)/$$machine; mkdir -p $$folder; \
	    $(BIN)/python -c 'import sys; from pathlib import Path; from rpcsys.pack import compiled; \
	        compiled.library(sys.argv[1], Path(sys.argv[2]).resolve())' $$machine-linux-gnu $$folder; \
	    $(BIN)/abi3audit --strict --summary --assume-minimum-abi3 3.11 $$folder/speedups.abi3.so; \
	    RPCSYS_SPEEDUPS=$$folder/speedups.abi3.so $(BIN)/python -m build --no-isolation --wheel --outdir $$folder; \
	    PATH="$(realpath $(BIN)):$$PATH" auditwheel repair --plat auto -w $$folder/published $$folder/*.whl; \
	    mv $$folder/published/*manylinux_2_17_$$machine.whl $(DIST); \
	done

docs: .venv/.ready-dev
	$(BIN)/python docs/check.py

# Each warning is an error.
site: .venv/.ready-site
	rm -rf $(SITE)
	$(BIN)/python -m sphinx --quiet --builder html --fresh-env --fail-on-warning --keep-going --conf-dir docs/site \
	    --doctree-dir $(SITE)-doctrees . $(SITE)
	@echo "site: $(SITE)/index.html"

pictures: .venv/.ready-dev
	$(BIN)/python docs/site/pictures.py

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis rpcsys/speedups.*.so
