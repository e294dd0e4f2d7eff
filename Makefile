# legato: `make serve` runs it, `make test` tests it; the rest is for those who change it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  ?= smollm2-135m-instruct

.PHONY: serve setup fmt lint check test test-slow measure size bench clean

serve: $(VENV)/.base ## install what serving needs, fetch the model, answer on 127.0.0.1:8000
	$(BIN)/legato serve $(MODEL)

setup: $(VENV)/.dev ## an editable install with everything the tests need

fmt: $(VENV)/.dev
	$(BIN)/ruff format legato tests
	$(BIN)/ruff check --fix legato tests

lint: $(VENV)/.dev
	$(BIN)/ruff format --check legato tests
	$(BIN)/ruff check legato tests
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint ## lint and the tests that need neither the model nor torch: under two minutes
	$(BIN)/python -m pytest -m "not slow and not model and not oracle"

test: $(VENV)/.dev ## the test suite, in short forms: under eight minutes on two cores
	$(BIN)/python -m pytest

test-slow: $(VENV)/.dev ## the test suite with full counts
	$(BIN)/python -m pytest -m "" --timeout=3600

measure: $(VENV)/.dev ## every figure, written to docs/performance.md
	$(BIN)/legato bench batching --model $(MODEL) --output docs/performance.md

bench: measure

size: ## the size of the base install, as downloaded; fails above 40 MB
	@dir=$$(mktemp -d) && trap 'rm -rf '$$dir EXIT && \
	$(PYTHON) -m pip wheel -q --no-deps -w $$dir . && $(PYTHON) -m pip download -q -d $$dir $$dir/legato-*.whl && \
	cd $$dir && ls -lS && total=$$(cat * | wc -c) && echo "$$((total / 1000000)) MB in $$(ls | wc -l) wheels" && \
	if ls | grep -iE '^(torch|transformers)-'; then echo "torch or transformers in the base install"; exit 1; fi && \
	test $$total -le 40000000

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "legato needs Python 3.11 or newer")'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml | $(VENV)/bin/python
	@echo "installing legato into $(VENV): about half a minute"
	@$(BIN)/python -m pip install -q --config-settings editable_mode=compat -e .
	@touch $@

# torch comes first and by its exact version: on its own it would bring gigabytes for a GPU that is not there
$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing legato and what its tests need into $(VENV), torch among it: some minutes"
	@$(BIN)/python -m pip install -q torch==2.13.0
	@$(BIN)/python -m pip install -q --config-settings editable_mode=compat -e '.[dev]'
	@touch $@ $(VENV)/.base
