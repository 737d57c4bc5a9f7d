# vla_rl. `make` or `make help` lists the targets; two commands do everything: `make run` and `make test`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BENCH_GPU := ceilings agree batches twice plan-tf32 step-tf32 plan-mixed step-mixed plan-patch step-patch
.PHONY: help setup gl run test test-slow lint type docs check-lerobot test-lerobot gpu-bundle check-gpu-bundle bench bench-gpu bench-lerobot bench-multi-gpu clean

VENV := .venv
BIN := $(VENV)/bin
LEROBOT := .venv-lerobot
# The first interpreter that is Python 3.12 or newer; `make PYTHON=/path/to/python setup` overrides it.
PYTHON ?= $(shell for p in python3.12 python3.13 python3.14 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo "$$p" && break; done)
GL_PACKAGE := libosmesa6
JOBS ?= auto

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(VENV)/.installed ## create .venv and install the tested versions (seconds when nothing changed)

$(VENV)/.installed: pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "vla_rl needs Python 3.12 or newer; none is on the PATH."; \
		echo "  remedy: install it, or run make PYTHON=/path/to/python3.12 setup"; exit 2; fi
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "Installing into $(VENV) (the first time downloads torch and takes minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

gl: setup ## check off-screen rendering; install the one package it needs where that is possible
	@$(BIN)/python -m vla_rl.sim.canary 2>/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "Installing $(GL_PACKAGE) for off-screen rendering ..."; \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(GL_PACKAGE) >/dev/null; \
		fi; $(BIN)/python -m vla_rl.sim.canary; }

run: gl ## the quickstart: three GRPO steps on real episodes, evaluated before and after
	@$(BIN)/vla-rl train experiment=quickstart

test: gl ## the registered experiments are verified, then the test suite (some eleven minutes on two cores; JOBS=1 runs it in one process)
	@$(BIN)/vla-rl prereg verify --all
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

test-slow: gl ## the slow tests: 100-seed evaluations, long runs
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n $(JOBS)

lint: setup ## style and import order
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

type: setup ## static types
	@$(BIN)/pyright

docs: setup ## write docs/reference.md (every key) and docs/commands.md (every --help) anew
	@$(BIN)/python scripts/config_reference.py
	@$(BIN)/python scripts/command_reference.py

# Our own package comes without its dependencies: LeRobot's MolmoAct2 needs an older transformers than our policies do.
$(LEROBOT)/.installed: tests/lerobot/constraints.txt plugins/lerobot_env_vla_rl/pyproject.toml
	@test -x $(LEROBOT)/bin/python || "$(PYTHON)" -m venv $(LEROBOT)
	@echo "Installing LeRobot into $(LEROBOT) (downloads gigabytes) ..."
	@$(LEROBOT)/bin/python -m pip install --quiet --disable-pip-version-check -c $< 'lerobot[molmoact2,dataset]==0.6.1' \
		hydra-core manifold3d mujoco so101-nexus trimesh
	@$(LEROBOT)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e . -e plugins/lerobot_env_vla_rl
	@touch $@

check-lerobot: gl $(LEROBOT)/.installed ## the lerobot package, in an environment of its own, reads our demonstrations bit for bit (downloads gigabytes)
	@rm -rf outputs/check-lerobot
	@$(BIN)/python tests/sft/check_with_lerobot.py record outputs/check-lerobot
	@$(LEROBOT)/bin/python tests/sft/check_with_lerobot.py check outputs/check-lerobot
	@$(BIN)/python tests/sft/check_with_lerobot.py read outputs/check-lerobot

test-lerobot: gl $(LEROBOT)/.installed ## the same environment: a checkpoint means the same to lerobot and us, each runs in the other's evaluation (RECORD=1 keeps the result)
	@rm -rf outputs/test-lerobot
	@OMP_NUM_THREADS=1 PYTHONPATH=src:tests/policy $(BIN)/python tests/lerobot/parity_ours.py outputs/test-lerobot
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(LEROBOT)/bin/python tests/lerobot/parity_theirs.py outputs/test-lerobot \
		>outputs/test-lerobot/theirs.log 2>&1 || { tail -40 outputs/test-lerobot/theirs.log; exit 1; }
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(LEROBOT)/bin/python tests/lerobot/world_check.py outputs/test-lerobot/world \
		>outputs/test-lerobot/world.log 2>&1 || { tail -40 outputs/test-lerobot/world.log; exit 1; }
	@$(BIN)/python tests/lerobot/parity_compare.py outputs/test-lerobot $(if $(RECORD),--record)

gpu-bundle: gl ## dist/gpu-bundle: everything but torch for a machine without a network (docs/offline.md)
	@$(BIN)/python scripts/gpu_bundle.py

check-gpu-bundle: ## install the bundle without a network beside torch 2.11 and evaluate (downloads gigabytes once)
	@test -f dist/gpu-bundle/bundle.json || $(MAKE) --no-print-directory gpu-bundle
	@$(BIN)/python scripts/check_gpu_bundle.py

bench: gl ## the benchmarks: ceilings, predicts, busy cores, the trainer, lerobot-env-so101 if it is there; wants an idle machine
	@for each in pace tokens utilisation trainer lerobot_env; do echo; echo "== $$each"; $(BIN)/python benchmarks/$$each.py || exit 1; done

bench-gpu: gl ## a network of four billion parameters and the shipped base on one GPU, stage by stage (BENCH_SCRATCH: a folder for 60 GB)
	@for each in $(BENCH_GPU); do echo; echo "== $$each"; $(BIN)/python benchmarks/large.py $$each || exit 1; done

bench-lerobot: gl ## our simulator against lerobot-env-so101, which gets an environment of its own
	@test -x .venv-so101/bin/python || "$(PYTHON)" -m venv .venv-so101
	@.venv-so101/bin/python -m pip install --quiet --disable-pip-version-check lerobot-env-so101==0.4.0
	@$(BIN)/python benchmarks/lerobot_env.py

GPUS ?= 2

bench-multi-gpu: setup ## an update shared by GPUS=2 processes: speed-up and equality, a JSON line each (OVERRIDES="policy=scratch ..."); CPU processes without GPUs
	@OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node $(GPUS) benchmarks/multi_gpu.py $(OVERRIDES)

clean: ## remove the virtual environment and caches (never outputs/)
	@rm -rf $(VENV) $(LEROBOT) .venv-so101 .venv-gpu-machine dist .pytest_cache .ruff_cache
