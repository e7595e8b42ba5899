# What a developer types; `make` alone explains the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install demo test prove lint types audit bench scale profile backpressure clean java test-tools

# The first of these that is Python 3.11, 3.12 or 3.13; `make PYTHON=/path/to/python3` chooses.
PYTHON ?= python3 python3.13 python3.12 python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
PYTEST := $(BIN)/python -m pytest
# Most tests wait more than they compute, so three files run at a time, and two of the proofs, of which most start
# Spark again and again; tests that the clock judges run alone.
BESIDE := $(PYTEST) --dist loadfile --no-loadscope-reorder --durations 12
PROOFS := tests/proofs
# HALF=1 or HALF=2: every other file of the proofs.
PROVED = $(if $(HALF),$(shell ls $(PROOFS)/test_*.py | awk 'NR % 2 == $(HALF) % 2'),$(PROOFS))
ALONE := tests/alone
# In an environment of its own, so that its dependencies are none of kworker's.
AUDIT := $(VENV)/audit

help: ## list the targets
	@awk -F ':[^#]*## ' '/^[a-z]+:.*## / {printf "  make %-13s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## install kworker and its dependencies into .venv (again only when the pinned versions change)

demo: java install ## run 20,000 orders, some of them bad, through Kafka, workers and Spark; then repair and redrive them
	@$(BIN)/python examples/orders/demo.py $(ARGS)

test: java install test-tools ## run the tests, on a real Kafka, Redis and Spark (ARGS="…" goes to pytest)
	@$(if $(ARGS),$(PYTEST) $(ARGS),status=0; \
	  $(BESIDE) -n 3 --ignore $(ALONE) --ignore $(PROOFS) || status=$$?; \
	  $(PYTEST) $(ALONE) || status=$$?; exit $$status)

prove: java install ## run the long tests under faults: nothing is lost or seen twice (HALF=1 or 2: every other file; PROOF_… variables make them longer)
	@$(BESIDE) -n 2 $(PROVED)

lint: install ## check style and formatting (ruff)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: install ## check types (strict mypy)
	@$(BIN)/mypy

audit: install ## ask PyPI for known vulnerabilities of the pinned versions (pip-audit)
	@test -x $(AUDIT)/bin/pip-audit || { $(BIN)/python -m venv $(AUDIT) \
	  && $(AUDIT)/bin/pip install --quiet --disable-pip-version-check --no-input pip-audit==2.10.1; }
	@# Without --strict, a package of which nothing is known would count as one without vulnerabilities.
	@said=$$($(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off \
	  -r etc/constraints.txt 2>&1) && { echo "$$said"; exit 0; }; \
	echo "$$said" >&2; \
	if [[ $$said == *"could not be audited"* ]]; then \
	  echo "make: PyPI does not tell the vulnerabilities of a package, so nothing is known:" \
	    "audit where pypi.org itself answers" >&2; \
	fi; exit 1

bench: java install ## compare the speed of kworker with hand-written consumers, frameworks and pyspark alone (ARGS="--quick" is short)
	@$(BIN)/python -m bench.run $(ARGS)

scale: java install ## show what a record costs as records, keys, partitions, processes, retries and dead letters grow
	@$(BIN)/python -m bench.scale $(ARGS)

profile: java install ## show where the time of a worker goes: microseconds a record, by stage
	@$(BIN)/python -m bench.stage_profile $(ARGS)

backpressure: java install ## run three consumers under one memory limit (without work, without a bound, kworker); with a plot
	@$(BIN)/python -m bench.backpressure $(ARGS)

clean: ## remove everything that the other targets made, .venv included
	rm -rf $(VENV) .demo .bench .bench-compare .bench-scale .bench-console .bench-rivals .backpressure .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): setup.cfg pyproject.toml etc/constraints.txt
	@python=""; \
	for candidate in $(PYTHON); do \
	  "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	    2>/dev/null && python="$$candidate" && break; \
	done; \
	test -n "$$python" || { echo "make: kworker needs Python 3.11, 3.12 or 3.13, found none of them" \
	  "in '$(PYTHON)': install one, or type: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; }; \
	test -x $(BIN)/python || "$$python" -m venv $(VENV) || { echo "make: $$python cannot make a" \
	  "virtual environment: install its venv module (Debian: python3-venv)" >&2; exit 1; }
	@echo "installing into $(VENV); the first time this downloads about 550 MB (Spark is most of it)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input \
	  -c etc/constraints.txt -e '.[spark,sandbox,otel,dev]'
	@touch $@

# Programs that tests run. Only promtool of Prometheus: Debian's package would start a server.
test-tools: install
	@missing=""; \
	command -v chromium >/dev/null || missing+=" chromium"; \
	command -v systemd-analyze >/dev/null || missing+=" systemd-analyze"; \
	PATH="$(BIN):$$PATH" command -v promtool >/dev/null || missing+=" promtool"; \
	test -n "$$missing" || exit 0; \
	{ command -v apt-get >/dev/null && test "$$(id -u)" = 0; } || { echo "make: the tests" \
	  "need$$missing: install it (promtool is a part of Prometheus, systemd-analyze of systemd)" >&2; exit 1; }; \
	echo "installing$$missing, for the tests"; \
	apt-get -qq update; \
	packages=""; \
	if [[ $$missing == *chromium* ]]; then packages+=" chromium fonts-dejavu-core"; fi; \
	if [[ $$missing == *systemd-analyze* ]]; then packages+=" systemd"; fi; \
	if [[ -n $$packages ]]; then \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends \
	    $$packages >/dev/null; \
	fi; \
	if [[ $$missing == *promtool* ]]; then \
	  folder=$$(mktemp -d); trap 'rm -r "$$folder"' EXIT; cd "$$folder"; \
	  apt-get -qq -o APT::Sandbox::User=root download prometheus; \
	  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool; \
	  install usr/bin/promtool "$(CURDIR)/$(BIN)/promtool"; \
	fi

java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 \
	  | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' || true); \
	test "$${version:-0}" -ge 17 || { echo "make: kworker needs Java 17 or 21 (for Kafka and Spark)," \
	  "found $${version:-none}: install one, or point JAVA_HOME at it" >&2; exit 1; }
