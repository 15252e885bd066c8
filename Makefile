# `make plan` and `make test` set everything up on a machine with Python 3.11, make and a C compiler.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
# The CPU build that CI uses. pip only: uv and poetry do not find it.
TORCH ?= torch==2.13.0
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: plan test lint format bench clean

plan: $(VENV)/.base
	$(BIN)/unjam plan pangu-ultra-moe-718b atlas-800t-a2 \
	  --devices 4096 --seq-len 8192 --global-batch 4096 --out out/

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.base
	$(BIN)/python bench/engine_speed.py
	$(BIN)/python bench/plan_speed.py

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# A stamp is written only after its install succeeded, so an interrupted install is repeated.
$(VENV)/.base: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.base pyproject.toml
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev,report,exact]"
	touch $@
