# make demo   everything on 127.0.0.1:8000 (PORT= to change), with a simulated fleet
# make test   the whole test suite, with what it needs
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
WEB_APPS := .venv-web-apps
ENGINES := .venv-engines
RAY := .venv-ray
FOCUS := .venv-focus
PORT ?= 8000
DATA ?= var/demo
# More than the cores: tests of real servers mostly wait.
JOBS ?= 5
FUZZ_SECONDS ?= 60

# Starting a process takes half as long with compiled modules, and the tests start hundreds.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
# A stamp a kind of install: made anew when what it installs from has changed.
SERVER_STAMP := $(VENV)/.server
DEV_STAMP := $(VENV)/.dev

.PHONY: help demo up test suite checks collected test-nightly test-many-hosts test-failures test-mutants bench fuzz lint check-types check-imports check-ansible check-security format docs release generate clean lock servers nightly-servers web-apps engines ray focus wheelhouse

help:
	@echo "make demo    start everything with a simulated fleet on http://127.0.0.1:$(PORT)"
	@echo "make up      the same without the simulated fleet"
	@echo "make test    install what the tests need and run lint, types and the whole suite"
	@echo "make checks  lint, types, import contracts, roles and packages, without the suite"
	@echo "make test-nightly  the tests that take long: all roles, fuzz corpora, roll-outs"
	@echo "make test-many-hosts  the end-to-end tests on many processes behind nginx, as on several hosts"
	@echo "make test-failures  a whole site that fails in every way, in half an hour: writes docs/failures.md"
	@echo "make test-mutants  mutation tests of the core modules: at least 90 % must be caught"
	@echo "make bench   measure agent, gateway and store beside their peers, in half an hour at least: JSON, kept in var/bench"
	@echo "make fuzz    look for bodies that break the line protocol parser, for FUZZ_SECONDS=$(FUZZ_SECONDS)"
	@echo "make wheelhouse  build the packages that appliances install, for the portal of make demo (DATA=var: of make up)"
	@echo "make docs    build the documentation as a site, which the portal serves at /docs/"
	@echo "make release build the release of this commit, into var/release: wheel, lock, packages of appliances, docs, SBOM"
	@echo "make format  format the code"
	@echo "make generate  write the files that are made from the fields of a job"
	@echo "make lock    write requirements/*.txt anew from pyproject.toml"
	@echo "make clean   remove the virtual environment and caches (data stays)"

demo: $(SERVER_STAMP)
	@VEDETTE_PORT=$(PORT) VEDETTE_DATA_DIR=$(DATA) exec $(BIN)/vedette up --demo

up: $(SERVER_STAMP)
	@VEDETTE_PORT=$(PORT) exec $(BIN)/vedette up

# Types are checked beside the tests, which leave the processors idle a fifth of the time.
test:
	@$(MAKE) --no-print-directory --jobs --output-sync=target ray servers collected $(QUICK_CHECKS)
	@$(MAKE) --no-print-directory --jobs suite check-types

QUICK_CHECKS := lint check-imports check-ansible check-security
checks: check-types $(QUICK_CHECKS)

suite: $(DEV_STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# Each of the workers would otherwise compile all modules by itself. Faults show in the tests.
collected: $(DEV_STAMP)
	-@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null 2>&1

# Everything that takes long: all roles and looks, fuzz corpora, roll-outs by Ansible; and properties,
# with more examples. Who names
# tests in PYTEST_ARGS does not need the web apps and engines.
test-nightly: $(DEV_STAMP) nightly-servers ray $(if $(PYTEST_ARGS),,web-apps engines focus)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
	    -m "nightly or hypothesis" $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,@$(MAKE) --no-print-directory test-many-hosts)

# The end-to-end tests, on the many processes of deploy/local in place of one server.
test-many-hosts: $(DEV_STAMP) nightly-servers $(if $(PYTEST_ARGS),,web-apps)
	TEST_SHAPE=many $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
	    --timeout=900 -m "nightly or not nightly" $(or $(PYTEST_ARGS),tests/e2e)

# Each failure of the table under load. FAILURES_ARGS="--only kill-portal" runs one, --list names all.
test-failures: $(DEV_STAMP) servers
	@$(BIN)/python -m tests.failures $(FAILURES_ARGS)

# Change the code one place at a time: at least 90 % of the changes must make a test fail.
test-mutants: $(DEV_STAMP)
	$(BIN)/mutmut run $(MUTANTS_ARGS)
	@$(BIN)/mutmut export-cicd-stats
	@$(BIN)/python -c 'import json; found = json.load(open("mutants/mutmut-cicd-stats.json")); \
	    tried = found["total"] - found["skipped"]; ratio = (found["killed"] + found["timeout"]) / tried; \
	    print(f"{ratio:.1%} of {tried} mutants were caught"); raise SystemExit(ratio < 0.9)'

servers:
	@deploy/install-test-servers

nightly-servers:
	@deploy/install-test-servers nightly

bench: $(DEV_STAMP) ray
	@deploy/install-test-servers >&2
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

fuzz: $(DEV_STAMP)
	@mkdir -p var/fuzz
	$(BIN)/python -m tests.fuzz.fuzz_lineprotocol -max_total_time=$(FUZZ_SECONDS) -timeout=10 \
	    -max_len=400 -artifact_prefix=var/fuzz/ $(FUZZ_ARGS)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-types: $(DEV_STAMP)
	$(BIN)/mypy

check-imports: $(DEV_STAMP)
	$(BIN)/lint-imports

check-ansible: $(DEV_STAMP)
	cd ansible && PATH="$(abspath $(BIN)):$$PATH" LC_ALL=C.UTF-8 ansible-lint --offline -q

check-security: $(DEV_STAMP)
	@$(BIN)/python deploy/audit-packages $(BIN)/pip-audit requirements/dev.txt

# For the portal of `make up` or `make demo`, without downloads: for this Python and architecture.
wheelhouse: $(SERVER_STAMP)
	@VEDETTE_DATA_DIR=$(DATA) $(BIN)/vedette wheelhouse build --offline

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The hooks import the product.
docs: $(DEV_STAMP)
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --strict --quiet --config-file deploy/docs/mkdocs.yml
	@echo "The site begins at portal/site/index.html"

# From a commit without changes. RELEASE_ARGS=--container also builds the image.
release: $(DEV_STAMP)
	@PATH="$(abspath $(BIN)):$$PATH" deploy/make-release $(abspath $(BIN)/python) $(RELEASE_ARGS)

generate: $(DEV_STAMP)
	$(BIN)/python -m tests.generated_files

$(SERVER_STAMP): cli/server-requirements.txt pyproject.toml
	@PYTHON=$(PYTHON) deploy/make-venv $(VENV) cli/server-requirements.txt
	@touch $@

$(DEV_STAMP): requirements/dev.txt pyproject.toml
	@PYTHON=$(PYTHON) deploy/make-venv $(VENV) requirements/dev.txt
	@touch $@ $(SERVER_STAMP)

# Server and agent have the versions that the tests ran with.
lock: COMPILE = $(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-emit-options
lock: $(DEV_STAMP)
	$(BIN)/pip install --quiet pip-tools
	$(COMPILE) --extra server --extra network --extra data --extra kubernetes --extra dev --output-file requirements/dev.txt pyproject.toml
	$(COMPILE) --generate-hashes --constraint requirements/dev.txt --extra server --output-file cli/server-requirements.txt pyproject.toml
	$(COMPILE) --generate-hashes --constraint requirements/dev.txt --extra network --extra data --output-file cli/agent-requirements.txt pyproject.toml
	$(COMPILE) --output-file requirements/web-apps.txt requirements/web-apps.in
	$(COMPILE) --output-file requirements/engines.txt requirements/engines.in
	$(COMPILE) --output-file requirements/ray.txt requirements/ray.in
	$(COMPILE) --output-file requirements/focus.txt requirements/focus.in

# JupyterLab and TensorBoard, which tests run as jobs.
web-apps: $(WEB_APPS)/.installed

# Made by the tests' Python, whose library the image has.
$(WEB_APPS)/.installed: requirements/web-apps.txt | $(DEV_STAMP)
	$(BIN)/python -m venv --clear $(WEB_APPS)
	@deploy/install-packages $(WEB_APPS) --requirement $<
	@touch $@

# Spark and ClickHouse, which tests let read files of samples: 1.5 GB, so only tests that take long do.
engines: $(ENGINES)/.installed

$(ENGINES)/.installed: requirements/engines.txt | $(DEV_STAMP)
	$(BIN)/python -m venv --clear $(ENGINES)
	@deploy/install-packages $(ENGINES) --requirement $<
	@touch $@

# Ray, of which tests start clusters. The agent does not need it.
ray: $(RAY)/.installed

$(RAY)/.installed: requirements/ray.txt | $(DEV_STAMP)
	$(BIN)/python -m venv --clear $(RAY)
	@deploy/install-packages $(RAY) --requirement $<
	@touch $@

# The validator of FOCUS, which needs another pandas.
focus: $(FOCUS)/.installed

$(FOCUS)/.installed: requirements/focus.txt | $(DEV_STAMP)
	$(BIN)/python -m venv --clear $(FOCUS)
	@deploy/install-packages $(FOCUS) --requirement $<
	@touch $@

clean:
	rm -rf $(VENV) $(WEB_APPS) $(ENGINES) $(RAY) $(FOCUS) mutants .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
