# Everything a fresh machine needs is Python >= 3.11 and make; `make` alone lists the targets. For the tests also two
# servers, which `make test` installs where it can (root, apt-get).
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
JOBS   ?= 3
READY  := $(VENV)/.ready
PEERS  := $(VENV)/.peers

.DEFAULT_GOAL := help
.PHONY: help setup services run test check format coverage bench clean
.DELETE_ON_ERROR:

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

# Built again whenever pyproject.toml changed. A half-made environment (interrupted, or its Python gone) is made afresh.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python {v[0]}.{v[1]} is too old: poimen-tasks needs >= 3.11; set PYTHON=")'
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@# The pip that a new environment brings may be years old, and takes three times as long to resolve.
	$(PY) -m pip install --quiet --upgrade pip
	@# Byte code is made where it is needed: most of what is installed is never imported.
	$(PY) -m pip install --quiet --no-compile --editable ".[server,flower,dev]"
	@touch $@

# Only `make bench` needs the other task queues; `make setup` stays light.
$(PEERS): $(READY)
	$(PY) -m pip install --quiet --no-compile --editable ".[bench]"
	@touch $@

setup: $(READY) ## Create .venv and install the package with all it needs

services: ## Install RabbitMQ and Redis if one is missing; the tests start their own
	@.ci/services

run: $(READY) ## Run the main job (DIR=directory to measure, WORKERS=2): measures Python files in parallel
	$(PY) -m examples.census $(if $(DIR),--dir "$(DIR)") $(if $(WORKERS),--workers $(WORKERS))

# Tests wait more than they compute, so three run at a time on two cores; those of a file share their workers. The order
# is that of tests/conftest.py: long files first. Byte code is kept whatever the shell says: hundreds of processes read it.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(READY) services ## Run every test (JOBS=3 at a time, ARGS= is passed to pytest)
	$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(READY) ## Check format, lint, types and import rules
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	@# mypy itself crashed (exit 2, "INTERNAL ERROR") in one of some twenty cold runs; findings are exit 1.
	$(PY) -m mypy || { [ $$? -eq 2 ] && $(PY) -m mypy; }
	$(VENV)/bin/lint-imports

format: $(READY) ## Format the code and apply safe fixes
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

coverage: $(READY) services ## Run every test with branch coverage; fails below the limit in pyproject.toml
	$(PY) -m pytest --cov --cov-report=term-missing:skip-covered $(ARGS)

bench: $(PEERS) ## Measure Poimen beside plain Celery and its peers in one run (ARGS= is passed on); writes build/bench.json
	$(PY) -m tests.bench $(ARGS)

clean: ## Remove what the targets made; keeps .poimen, which holds data
	rm -rf $(VENV) build dist .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
