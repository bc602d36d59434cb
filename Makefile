# kvferry from a clone: needs python3.11 (with venv and pip) and make, nothing else.
#
#   make setup    .venv with the tested set of packages
#   make demo     two replicas share a real KV cache, and only when it pays
#   make check    lint, types, layers, docs in step with the code
#   make test     the tests
#   make format   put the sources into shape
#   make bench    the benchmarks, short; BENCH_ARGS= for the long form
#   make docs     write the pages that come from the code
#   make clean    remove what can be made again (not .venv)
#
# Plain `torch` is a CUDA build of gigabytes on many indexes. To take the CPU build, name an index that has
# it:  make demo TORCH_INDEX=URL    Anything else for pip goes into PIP_ARGS.

PYTHON      ?= $(shell command -v python3.11 || command -v python3)
TORCH_INDEX ?=
PIP_ARGS    ?=
DEMO_ARGS   ?=
BENCH_ARGS  ?= --quick
PYTEST_ARGS ?=

BIN     := .venv/bin
STAMP   := .venv/.kvferry-installed
SOURCES := $(wildcard src tests benchmarks examples docs deploy)
PIP     := $(BIN)/python -m pip --disable-pip-version-check --no-input

.PHONY: setup demo test check format bench docs clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

# Done once, and again when the set of packages changes. The stamp comes last, so that an interrupted
# install is not taken for a whole one.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvferry needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -q $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(PIP_ARGS) -r requirements.lock
	$(PIP) install -q $(PIP_ARGS) --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	$(BIN)/kvferry demo $(DEMO_ARGS)

test: setup
	$(BIN)/pytest -q $(PYTEST_ARGS)

check: setup
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/generate.py --check

format: setup
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: setup
	@set -e; for benchmark in benchmarks/*.py; do \
		echo "== $$benchmark $(BENCH_ARGS)"; $(BIN)/python $$benchmark $(BENCH_ARGS); \
	done

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
