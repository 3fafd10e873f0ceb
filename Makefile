# `make demo` and `make test` each set up everything they need; `make help` lists the rest.
SHELL := /bin/sh
PY := .venv/bin/python
PYTEST_ARGS ?=
REQUIRE ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-apps test-gpu test-slow test-slurm test-slurm-matrix cluster check docs bench bench-gpu lock wheel clean fuzz

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

demo: ## set up .venv, print a fleet's verdicts, kill a training and bring it back, and see whether that pays
	@scripts/setup run
	@scripts/demo

test: ## set up everything and run every check and test
	@scripts/setup test
	@$(PY) scripts/check
	@$(PY) -m pytest $(if $(REQUIRE),--require=$(REQUIRE)) $(PYTEST_ARGS)

test-apps: ## checkpoint, kill and bring back every application of the matrix
	@scripts/setup test
	@scripts/setup apps
	@$(PY) -m pytest -n0 -m 'criu' tests/apps $(if $(REQUIRE),--require=$(REQUIRE)) $(PYTEST_ARGS)

test-slow: ## what takes too long for `make test`: every kind of fault in both arms, a machine whose caches are emptied
	@scripts/setup test
	@$(PY) -m pytest -n0 -m 'slow and not cluster and not apps' $(if $(REQUIRE),--require=$(REQUIRE)) $(PYTEST_ARGS)

test-gpu: ## on a machine with an NVIDIA GPU, as root: the tests that need one
	@scripts/setup test
	@$(PY) -m pytest -n0 -m gpu --require=gpu,criu $(PYTEST_ARGS)

test-slurm: ## what takes long on the test cluster: nodes killed at random for ten minutes, jobs disturbed in every way for eight
	@scripts/setup cluster 24.11
	@$(PY) -m pytest -n0 -m 'cluster' tests/e2e $(if $(REQUIRE),--require=$(REQUIRE)) $(PYTEST_ARGS)

test-slurm-matrix: ## the proofs on the test cluster with Slurm 22.05, 24.11 and 26.05
	@scripts/setup cluster 22.05 24.11 26.05
	@for version in 22.05 24.11 26.05; do echo "Slurm $$version"; \
	  $(PY) -m pytest -n0 -m 'cluster and not slow' tests/e2e --slurm=$$version $(if $(REQUIRE),--require=$(REQUIRE)) $(PYTEST_ARGS) || exit 1; done

cluster: ## a Slurm cluster on this machine, and a shell on its login node (needs root)
	@scripts/setup cluster 24.11
	@scripts/cluster

check: ## formatting, lint, types, layers, generated files, docs: no tests
	@scripts/setup test
	@$(PY) scripts/check

docs: ## build the documentation into build/docs
	@scripts/setup test
	@$(PY) -m sphinx -q -W --keep-going -b html docs build/docs
	@echo build/docs/index.html

bench: ## print the speed ratios and the coverage of intervals and verdicts
	@scripts/setup bench
	@.venv-bench/bin/python -m bench

bench-gpu: ## on a machine with an NVIDIA GPU, as root: the whole proof, and its report in build/gpu-proof
	@scripts/setup test
	@scripts/gpu-proof --out build/gpu-proof $(PROOF_ARGS)

fuzz: ## a million hostile lines through the reader
	@scripts/setup test
	@$(PY) -m pytest -q -m fuzz -p no:xdist $(PYTEST_ARGS)

lock: ## rewrite the requirement locks (needs uv)
	@scripts/lock

wheel: ## build the wheel into dist/
	@scripts/setup test
	@$(PY) -m hatchling build -t wheel -d dist

clean: ## remove what the targets made
	rm -rf .venv .venv-bench .venv-apps build dist demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
