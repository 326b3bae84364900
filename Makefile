# Everything runs in .venv, which is made on first use and made up to date only when
# pyproject.toml or constraints.txt change. Nothing here needs network once it is made.

PYTHON ?= python3
# Further arguments for pip, e.g. PIP_ARGS="--extra-index-url URL" for a CPU build of torch.
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help quickstart test lint smoke bench bench-smoke study docs wheel clean

help:
	@echo "make quickstart   train SmolLM2-135M to use Python on this machine (about 5 minutes)"
	@echo "make test         the tests"
	@echo "make lint         ruff and mypy, as in CI"
	@echo "make smoke        two steps of the quickstart (within a minute)"
	@echo "make bench        how fast torl is here beside its peers (about 40 minutes, the machine idle)"
	@echo "make bench-smoke  decoding beside transformers alone (within a minute)"
	@echo "make study        the slow tests: soaks, kills at random moments (about 15 minutes)"
	@echo "make docs         the parts of docs/ that are made from the code"
	@echo "make wheel        build dist/torl-*.whl"
	@echo "make clean        remove .venv and build results (runs/ stays)"

quickstart: $(READY)
	$(BIN)/torl quickstart

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# In a folder of its own, so that it never meets an earlier run.
smoke: $(READY)
	rm -rf build/smoke && mkdir -p build/smoke
	cd build/smoke && ../../$(BIN)/torl quickstart steps=2 prompts_per_step=4 group_size=4 tasks.test_limit=8
	test -s build/smoke/runs/quickstart-*/summary.json -a -s build/smoke/runs/quickstart-*/report.html

# Peers get environments of their own under build/bench; without network they are left out.
bench: $(READY)
	$(BIN)/torl sandbox bench
	$(BIN)/python -m benchmarks

bench-smoke: $(READY)
	$(BIN)/python -m benchmarks --smoke

study: $(READY)
	$(BIN)/python -m pytest -m slow

docs: $(READY)
	$(BIN)/python -m tests.docs_kit

wheel: $(READY)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch goes first and by its exact version: a range would let pip take a newer, larger build.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "torl needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt "$$(grep "^torch==" constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@
