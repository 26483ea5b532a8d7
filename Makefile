# Python 3.11 and make are all that this asks of a machine. `make` alone tells what there is.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Three runs: what computes, one process a core; what waits for real programs, more of it at once; and, by itself, what measures
# how fast something is. tests/conftest.py says which is which. `loadgroup` hands tests out one by one.
ARGS ?=
# Tests start hundreds of Python programs, and each would compile all that it imports where the caller's shell forbids to keep it.
unexport PYTHONDONTWRITEBYTECODE
UPGRADE ?=
QUICK ?=
ONLY ?=

.DEFAULT_GOAL := help
.PHONY: bench docs help setup setup-dev run test test-fast lint format coverage lock redis70 clean

help: ## Tell what there is
	@echo "redis-stream-coordinator: make TARGET"
	@echo
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)$$/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'
	@echo
	@echo "  make run ARGS='--seconds 60'   hands arguments on to coord demo (run) or pytest (test, test-fast)"
	@echo "  make bench QUICK=1             measures for two minutes instead of half an hour; ONLY=name,name: only these lines"

setup: ## Make .venv from requirements.lock: what running needs, a Redis included
	@$(PYTHON) ops/setup/environment.py runtime

setup-dev: ## Make .venv from requirements-dev.lock: what testing needs too
	@$(PYTHON) ops/setup/environment.py dev

run: setup ## Watch real members share real Redis Stream shards, lose one, and carry on
	@$(BIN)/python -m coord demo $(ARGS)

test: setup-dev ## Run all tests, each against its own private Redis
	@ops/setup/redis70.sh >/dev/null || echo "no Redis 7.0: its tests are skipped (in CI they fail)"
	@ops/setup/postgresql.sh >/dev/null || echo "no PostgreSQL: its tests are skipped (in CI they fail)"
	@ops/setup/mariadb.sh >/dev/null || echo "no MariaDB: its tests are skipped (in CI they fail)"
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m shared $(ARGS)
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m waiting $(ARGS)
	$(BIN)/python -m pytest -n 0 -m alone $(ARGS)

test-fast: setup-dev ## Run, on two cores, the tests of tests/unit that start no whole programs and take no five seconds
	$(BIN)/python -m pytest -n 2 tests/unit -m "not e2e and not slow" $(ARGS)

lint: setup-dev ## Check style, format, types and the import contract
	$(BIN)/ruff check coord tests ops
	$(BIN)/ruff format --check coord tests ops
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev ## Format the code and mend what ruff can mend
	$(BIN)/ruff format coord tests ops
	$(BIN)/ruff check --fix coord tests ops

coverage: setup-dev ## Run all tests and tell which lines and branches they miss
	$(BIN)/python -m pytest -n 0 --cov --cov-report=term-missing $(ARGS)

# uv keeps the pins that a lock has; UPGRADE=1 moves all of them to the newest that pyproject.toml allows.
UV_COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --quiet \
	--default-index https://pypi.org/simple --no-emit-index-url --no-annotate --custom-compile-command "make lock" \
	$(if $(UPGRADE),--upgrade)
lock: setup-dev ## Write both locks again from pyproject.toml (UPGRADE=1: newest versions)
	$(UV_COMPILE) --extra embedded --extra build --output-file requirements.lock
	$(UV_COMPILE) --all-extras --constraints requirements.lock --output-file requirements-dev.lock

bench: setup-dev ## Measure what it can do here, beside its goals: a table, build/bench.json and pictures
	@QUICK="$(QUICK)" ONLY="$(ONLY)" $(BIN)/python -m ops.bench

docs: setup-dev ## Write the parts of README and tests/README that are made from the code
	$(BIN)/python -m ops.docs
	$(BIN)/python -m tests.catalogue

redis70: ## Fetch Debian's Redis 7.0 into .cache/redis-7.0 (for tests on the oldest supported Redis)
	@ops/setup/redis70.sh

clean: ## Remove .venv, caches and fetched servers
	rm -rf $(VENV) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage .coverage.* htmlcov
