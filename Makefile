# Set-up is a prerequisite of each job, and done once: again only when the lock or the project file changes.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
# The lock as a constraint: packages that are installed later leave its versions alone.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock
export PATH := $(CURDIR)/$(BIN):$(PATH)
export RAY_USAGE_STATS_ENABLED := 0
export MLFLOW_DISABLE_TELEMETRY := true
export DVC_NO_ANALYTICS := true

.PHONY: setup setup-all repro test test-long check audit peers bench up down

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is wanted: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements.lock
	$(INSTALL) --no-deps --no-build-isolation --editable .
	headstart plots-page
	touch $@

# With what the tests and the audit need.
setup-all: $(VENV)/.test-ready $(VENV)/.audit-ready

# `make repro PRESET=smoke` first lays a preset over params.yaml.
repro: setup
	test -z "$(PRESET)" || headstart use $(PRESET)
	dvc repro
	@cat reports/summary.md

# Three files of tests at a time: half of their time is spent waiting for processes to start and end. Each
# computes in one thread, as those of several processes would wait for one another.
PYTEST = OMP_NUM_THREADS=1 python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder --durations=25

test: setup $(VENV)/.test-ready
	$(PYTEST) -m "not long"

# Tests that take minutes: further routes, a whole one with secrets planted, lost nodes. HALF=0 or 1: every other file.
test-long: setup $(VENV)/.test-ready
	$(PYTEST) -m long $(if $(HALF),--half=$(HALF))

$(VENV)/.test-ready: tests/requirements.txt $(VENV)/.ready
	$(INSTALL) -r tests/requirements.txt
	touch $@

check: setup
	ruff check .
	ruff format --check .
	mypy
	@$(MAKE) --no-print-directory audit

# Known vulnerabilities of the locked packages, or a line that says that no service could be asked.
audit: setup $(VENV)/.audit-ready
	@python audit/audit.py

$(VENV)/.audit-ready: audit/requirements.txt $(VENV)/.ready
	-$(INSTALL) -r audit/requirements.txt && touch $@

# Other libraries, for the benchmarks alone.
peers: setup
	rm -rf .peers
	python -m pip install --quiet --disable-pip-version-check --no-deps --target .peers -r benchmarks/peers.txt

# On a machine that does nothing else: more than an hour on two cores.
bench: peers
	PYTHONPATH=. python benchmarks/language_model_step.py
	PYTHONPATH=. python benchmarks/classifier_step.py
	PYTHONPATH=. python benchmarks/transformer_step.py
	PYTHONPATH=. python benchmarks/evaluation_with_memory.py
	PYTHONPATH=. python benchmarks/reading.py
	PYTHONPATH=. python benchmarks/data_route.py
	PYTHONPATH=. python benchmarks/prepare_memory.py
	PYTHONPATH=. python benchmarks/stage_overhead.py
	test -z "$(TOPICS)" || PYTHONPATH=. python benchmarks/word_vectors.py --data $(TOPICS)

up: setup
	headstart up

down: setup
	headstart down
