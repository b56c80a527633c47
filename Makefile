# The project's habits. `make quickstart` and `make test` are all that a newcomer needs.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell bash scripts/python.sh)
VENV := .venv
BIN := $(VENV)/bin
export PYTHONNOUSERSITE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# V=1 shows all that Snakemake says. The verdict comes from `rolloutbench report`: what rules print on stdout would repeat it.
CALM := $(if $(V),,--logger calm >/dev/null)
# Containers often set it: every process would compile what it imports anew (verl's imports: 20 s of CPU, not 7).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv quickstart test test-all test-fast check check-form check-types check-workflow check-tests check-catalog lock docs picture moved

help:
	@echo "make quickstart        build everything, train three engines on this CPU, compare, print the verdict"
	@echo "                       (V=1: with all that Snakemake says; it is in .snakemake/log/ otherwise)"
	@echo "make venv              the controller's environment alone: source .venv/bin/activate, then rolloutbench"
	@echo "make test-fast         tests for a first change: no root, no Slurm, no browser, no stack"
	@echo "make test              the tests that show each promise once (installs what it needs)"
	@echo "make test-all          all tests"
	@echo "make check             format, lint, types, Snakemake's lint, and that every test can be loaded"
	@echo "make lock STACK=name   make the locks of one folder of envs/ again (controller and dev are names too)"
	@echo "make docs              write the configuration's JSON schema and what docs/ repeat from the code anew"
	@echo "make picture           draw the README's picture from the report of its example"
	@echo "CONTRIBUTING.md has the rest, a command each, and how long the tests take."

# The controller's environment: what its lock says, never half made (the stamp is written last), with the developers' tools
# where they are. Its programs have this folder's path in them: a copy of the folder makes its own.
MOVED := $(if $(wildcard $(VENV)/controller.stamp),$(shell grep -sqF " $(CURDIR)/$(VENV)" $(VENV)/pyvenv.cfg || echo moved))
$(VENV)/controller.stamp: envs/controller/requirements.lock pyproject.toml $(MOVED)
	@bash scripts/make-venv.sh $(PYTHON) $(VENV) $(if $(wildcard $(VENV)/dev.stamp),envs/dev,envs/controller)/requirements.lock
	@touch $@

$(VENV)/dev.stamp: $(VENV)/controller.stamp envs/dev/requirements.lock
	@bash scripts/make-venv.sh $(PYTHON) $(VENV) envs/dev/requirements.lock
	@touch $@

venv: $(VENV)/controller.stamp

quickstart: $(VENV)/controller.stamp
	@bash scripts/packages.sh build $(BIN)/python
	@$(BIN)/rolloutbench run config.yaml $(CALM)
	@$(BIN)/rolloutbench report

# What is slow by nature is marked `full`, with its reason.
test: PYTEST := -m "not full"
test: SAY := echo "Tests that are slow by nature were left out; \`make test-all\` runs all."
test test-all: $(VENV)/dev.stamp
	@bash scripts/packages.sh build $(BIN)/python
	@bash scripts/packages.sh test
	@bash scripts/packages.sh slurm
	@$(BIN)/python -m pytest $(PYTEST) -n 6 --no-loadscope-reorder --durations=25
	@$(SAY)

# For a first change: no root, no Slurm, no browser, no stack, and of the others what takes a minute on two quiet cores.
FAST := answers/test_answers.py::test_the_answer_is_right analysis commands launch_scripts node preflight runs slurm_files \
	test_arrows.py test_config.py test_contracts.py test_docs.py test_habits.py test_mistakes.py test_plan.py test_terms.py
SLOWER := analysis/test_coverage analysis/test_engine_terms analysis/test_estimates analysis/test_page_arithmetic \
	analysis/test_page_size analysis/test_reported_terms analysis/sources/test_wandb_api launch_scripts/test_from_script \
	node/test_own_reward preflight/test_command
test-fast: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest -q -m "not full and not needs" -n 2 --no-loadscope-reorder \
		$(FAST:%=tests/%) $(SLOWER:%=--ignore=tests/%.py); ended=$$?; \
	echo "What \`make test\` needs beside it:"; bash scripts/packages.sh lacking $(BIN)/python; exit $$ended

# mypy takes as long as all others together: they go beside it. Collecting compiles the tests, once for all processes
# that will run them.
check: $(VENV)/dev.stamp
	@$(MAKE) --no-print-directory --output-sync=target -j2 check-types check-form check-workflow check-tests

check-form:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

check-types:
	$(BIN)/mypy

check-workflow:
	$(BIN)/snakefmt --check workflow/Snakefile rules
	$(BIN)/snakemake --lint

check-tests:
	@said=$$($(BIN)/python -m pytest --collect-only -qq 2>&1) || { tail -n 40 <<<"$$said"; exit 1; }

# As the Snakemake workflow catalog looks: with Snakemake and snakefmt alone, where this repository is not installed.
check-catalog:
	@$(PYTHON) -m venv --clear build/catalog
	@build/catalog/bin/pip install -q $$(grep -oE '^(snakemake|snakefmt)==[^ ]+' envs/dev/requirements.lock)
	build/catalog/bin/snakefmt --check workflow/Snakefile rules
	build/catalog/bin/snakemake --lint

lock: $(VENV)/dev.stamp
	@test -n "$(STACK)" || { echo "which one? make lock STACK=<a folder of envs/>"; exit 2; }
	@$(BIN)/python -m workflow.stacks lock $(STACK)

docs: $(VENV)/controller.stamp
	@$(BIN)/python scripts/docs_tables.py

picture: $(VENV)/dev.stamp
	@bash scripts/packages.sh picture
	@cd tests/answers/faster_generation && $(CURDIR)/$(BIN)/rolloutbench compare \
		vllm=vllm-0.log,vllm-1.log,vllm-2.log sglang=sglang-0.log,sglang-1.log,sglang-2.log --report $(CURDIR)/build/invented-logs
	@$(BIN)/python scripts/picture.py build/invented-logs/report.html
