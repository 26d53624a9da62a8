# `make` alone says what there is. PYTHON=... names a Python 3.11. CUDA=1
# installs the CUDA wheels too, until CUDA=0 says otherwise.

SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

LOCK := $(if $(CUDA),$(if $(filter 0,$(CUDA)),requirements.lock,requirements-cuda.lock))
WORKDIR ?= runs/demo
PARTS ?= default
BIN := .venv/bin
# Two processes: TensorFlow's memory, not the processors, limits their number.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations 5
# Only where a shell does not find this `fedfish`. CI ends with pytest's summary.
SAY_COMMAND := @[[ -n "$$CI" || "$$(type -P fedfish)" -ef $(BIN)/fedfish ]] || \
  echo 'fedfish is $(BIN)/fedfish; `source $(BIN)/activate` puts it on the PATH.'

# `.venv` is phony because its script finds out by itself, in a few
# milliseconds, whether something is to be done.
.PHONY: help .venv demo test test-all test-cluster lint bench \
  test-huggingface test-trackers bench-clients bench-engine bench-grouping \
  bench-tokens docs \
  test-wheel lint-containers lock results-archive clean

help:
	@echo 'make demo       pretrain, evaluate and report on the shipped corpora'
	@echo 'make test       the tests that answer in some minutes'
	@echo 'make test-all   all tests but those of the commands below'
	@echo 'make test-cluster  jobs and runs on hosts in a box, some of which fail;'
	@echo '                as root; PARTS=all: also with 2 GB of skewed input'
	@echo 'make test-huggingface  exported models, read by transformers'
	@echo 'make test-trackers  what MLflow and Weights & Biases are sent'
	@echo 'make lint       ruff: rules and format'
	@echo "make bench      the benchmarks; make bench-grouping: grouping's, in full;"
	@echo '                make bench-engine: what rounds cost, beside its goals;'
	@echo '                make bench-clients: what opening 15.6 million clients costs;'
	@echo '                make bench-tokens: tokens on disk beside tokenizing on demand'
	@echo 'make docs       the documentation as a site, site/index.html, with its'
	@echo '                notebook executed; checked, and built without network'
	@echo 'make test-wheel  the wheel in an environment of its own, outside the tree'
	@echo 'make lint-containers  hadolint on containers/Containerfile'
	@echo 'make .venv      set up .venv only; CUDA=1: with the CUDA wheels, CUDA=0: without'
	@echo 'make lock       resolve requirements/*.in into the lock files again;'
	@echo '                UPGRADE=1: with the newest versions'
	@echo 'make results-archive COMMIT=...  whole runs of the experiments, from history'
	@echo 'make clean      remove .venv, caches and built files, but not runs/'

.venv:
	@PYTHON='$(PYTHON)' requirements/set_up.sh $(LOCK)
	$(if $(filter .venv,$(MAKECMDGOALS)),$(SAY_COMMAND))

demo: .venv
	@$(BIN)/fedfish demo --workdir '$(WORKDIR)'
	$(SAY_COMMAND)

test: .venv
	@$(PYTEST)
	$(SAY_COMMAND)

# What needs hosts, other packages or a quiet machine has a command of its own.
test-all: .venv
	@$(PYTEST) -m 'not cluster and not huggingface and not benchmark'
	$(SAY_COMMAND)

# Packages of their own, for PYTHONPATH: .venv-cluster, .venv-huggingface, ...
.venv-%: .venv
	@requirements/set_up_beside.sh $*

# Java 17 is needed for Spark. Nothing is skipped: what cannot run has failed.
test-cluster: .venv-cluster
	@CLUSTER_REQUIRED=1 $(BIN)/python -m pytest tests/cluster --durations 0 \
	  --durations-min 1 --timeout 1800 -m '$(if $(filter all,$(PARTS)),,not skewed)'

# Nothing is fetched but the packages; where one is missing, the tests fail.
test-huggingface: .venv-huggingface
	@PYTHONPATH='$(CURDIR)/.venv-huggingface' $(BIN)/python -m pytest tests/huggingface \
	  -m huggingface

# Nothing is skipped here, either.
test-trackers: .venv-trackers
	@TRACKERS_REQUIRED=1 PYTHONPATH='$(CURDIR)/.venv-trackers' $(BIN)/python -m pytest \
	  tests/run/test_trackers.py

lint: .venv
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

# What was built before goes first. The site's generator warns of a version of
# MkDocs to come, which docs.lock does not have.
docs: .venv-docs
	@rm -rf build/docs site
	@PYTHONPATH=.:.venv-docs $(BIN)/python docs/generate/notebook.py build/docs \
	  $$(find docs -name '*.ipynb')
	@PYTHONPATH=.:.venv-docs NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@SITE='$(CURDIR)/site' $(BIN)/python -m pytest --quiet -m '' tests/docs
	@echo 'The site is site/index.html. Its search needs a server, such as'
	@echo 'python -m http.server --bind 127.0.0.1 --directory site'

test-wheel: .venv
	@tests/wheel.sh

lint-containers: .venv-containers
	@.venv-containers/bin/hadolint containers/Containerfile

bench: .venv
	@$(BIN)/python -m pytest tests/benchmarks -m benchmark -s --timeout 0

# A quarter of an hour; two minutes with PARTS=quick. tests/benchmarks/grouping.py
# says what the parts are.
bench-grouping: .venv
	@PYTHONPATH=.:tests $(BIN)/python -m benchmarks.grouping --parts $(PARTS)

# Some minutes and 2 GB of disk. tests/benchmarks/clients.py says what is measured.
bench-clients: .venv
	@PYTHONPATH=.:tests $(BIN)/python -m benchmarks.clients

# A minute. tests/benchmarks/tokens.py says what is measured.
bench-tokens: .venv
	@PYTHONPATH=.:tests $(BIN)/python -m benchmarks.tokens

# An hour or two; some minutes with PARTS=quick, more with PARTS=all. OUTPUT=FILE
# keeps the figures as JSON; BFLOAT16=1 measures bfloat16 even where the processor
# has no instructions for it. tests/benchmarks/engine.py says what the parts are.
bench-engine: .venv
	@PYTHONPATH=.:tests $(BIN)/python -m benchmarks.engine --parts $(PARTS) \
	  $(if $(OUTPUT),--output '$(OUTPUT)') $(if $(BFLOAT16),--bfloat16)

lock:
	@PYTHON='$(PYTHON)' UPGRADE='$(UPGRADE)' requirements/lock.sh

clean:
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .hypothesis build dist site \
	  *.egg-info
	find . -name .git -prune -o -name runs -prune -o -name __pycache__ -print0 \
	  | xargs -0 rm -rf

results-archive:
	@[[ -n '$(COMMIT)' ]] || { \
	  echo 'COMMIT=... is required: docs/results/manifest.json names it.' >&2; \
	  exit 2; \
	}
	@git cat-file -e '$(COMMIT)^{commit}' 2>/dev/null || { \
	  echo 'COMMIT $(COMMIT) is not in this clone: git fetch --unshallow.' >&2; \
	  exit 2; \
	}
	@mkdir -p runs
	@git archive --format=tar.gz --output=runs/results.tar.gz \
	  '$(COMMIT):docs' results
	@echo 'runs/results.tar.gz'
