# Requires Python 3.11 or newer, make and git. Everything is installed into .venv, except the browser for `make test`.

SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory
# Bytecode is cached: without it a program that imports torch takes almost twice as long to start.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
PORT ?= 8501
# Number of test processes, and further arguments of pytest: make test TESTS="-k cosine"
WORKERS ?= 3
TESTS ?=

# The environment of `make check-floors`, and the tests of everything but the app.
FLOORS ?= $(or $(TMPDIR),/tmp)/bert-probe-floors
LIBRARY_TESTS := $(addprefix tests/,analyses cli core corpus model notebook reports runtime text training views)

BIN := .venv/bin
INSTALL := $(BIN)/python scripts/packages.py install -c constraints.txt -e .
DOCUMENTS := README.md CHANGELOG.md $(wildcard docs/*.md docs/guides/*.md)
# Node is installed as a Python package.
NPM := PATH="$(CURDIR)/$(BIN):$$PATH" npm --prefix js

.PHONY: help run test check check-floors style types build site reference models lock dist animation pictures bench prove

help: ## Show this list
	@echo "BERT Probe: open a transformer encoder and see what it does with your text"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "The first run installs the packages, which takes about a minute. Options: PORT=8600 PYTHON=python3.12"

run: .venv/.ready ## Start the app and open a browser (PORT, default 8501)
	@echo "Starting BERT Probe"
	@exec $(BIN)/python -m bert_probe app --port $(PORT)

# Chromium is installed at the same time as the packages. If that fails it is tried again, so that the reason comes last.
test: ## Run all checks and tests, including those in a browser
	@tests/browser/find_chromium.sh & browser=$$!; $(MAKE) -s .venv/.ready-dev; ready=$$?; \
	  { wait $$browser || tests/browser/find_chromium.sh; } && exit $$ready
	@# The first time, one process compiles the modules: otherwise, each of the test processes would compile all of them.
	@# mypy takes a minute without a cache (in CI, it would not be used again) and runs at the same time as the tests. A
	@# test file runs in one process, which starts servers and opens models once. Each process computes in one thread;
	@# waiting threads must not spin.
	@test -d tests/__pycache__ || $(BIN)/python -m pytest --collect-only -qq $(TESTS) >/dev/null 2>&1 & compiled=$$!; \
	  $(MAKE) style || exit 1; \
	  echo "$(BIN)/mypy & $(BIN)/python -m pytest -n $(WORKERS) $(TESTS)"; \
	  $(BIN)/mypy $(if $(CI),--cache-dir=/dev/null) >.venv/mypy.log & types=$$!; \
	  wait $$compiled; \
	  OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false \
	  $(BIN)/python -m pytest -rs -n $(WORKERS) --dist loadfile --durations=10 $(TESTS); tests=$$?; \
	  wait $$types || tests=1; cat .venv/mypy.log; exit $$tests

check: style types ## Check style, formatting, types and spelling of code and documents

# Old versions warn of what newer ones changed, so a warning is not an error here.
check-floors: .venv/.ready-dev ## Run the tests of the library with the oldest versions of its packages
	$(BIN)/python scripts/packages.py floors "$(FLOORS)"
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false \
	  "$(FLOORS)/bin/python" -m pytest -W default -rs -n $(WORKERS) --dist loadfile $(or $(TESTS),$(LIBRARY_TESTS))
	rm -rf "$(FLOORS)"

style: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(NPM) run --silent check
	$(BIN)/codespell
	$(BIN)/proselint --config .proselintrc.json check $(DOCUMENTS)

types: .venv/.ready-dev
	$(BIN)/mypy

bench: .venv/.ready-dev ## Measure speed and memory against other tools and write benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

prove: .venv/.ready-dev ## Run every case, fault injection and attacks for an hour and write benchmarks/PROOF.md
	BERT_PROBE_PROVE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
	@# The components in another browser engine.
	! command -v firefox-esr >/dev/null || BERT_PROBE_BROWSER=firefox \
	  $(BIN)/python -m pytest $(addprefix tests/browser/test_,components.py model_view.py head_view.py firefox.py)
	$(BIN)/python -m benchmarks.proof

# Packages are installed again when a list of them is newer than the last installation.
PACKAGES := requirements.txt constraints.txt pyproject.toml setup.py scripts/packages.py

.venv/.ready: $(PACKAGES)
	@$(make_environment)
	@echo "Installing packages"
	@$(INSTALL) -r requirements.txt
	@touch $@

.venv/.ready-dev: $(PACKAGES) requirements-dev.txt js/package-lock.json
	@$(make_environment)
	@echo "Installing packages, with what the tests need"
	@$(INSTALL) -r requirements-dev.txt
	@$(NPM) ci --silent --ignore-scripts --no-audit --no-fund
	@touch .venv/.ready $@

build: .venv/.ready-dev ## Build the JavaScript that the browser loads from js/; the result is committed
	$(NPM) run --silent build

site: .venv/.ready-dev ## Build the static site into site/: landing page, playground, gallery and documentation
	$(BIN)/python -m website

reference: .venv/.ready-dev ## Write docs/reference.md from the code
	$(BIN)/python scripts/reference.py

models: .venv/.ready-dev ## Write docs/models.md: what works with which type of model
	$(BIN)/python scripts/models.py

lock: .venv/.ready-dev ## Write constraints.txt: the version of every package that is installed
	$(BIN)/python scripts/packages.py lock

dist: .venv/.ready ## Build the wheel and the source distribution, and try them in empty environments
	$(BIN)/python scripts/dist.py

pictures: .venv/.ready-dev ## Take the pictures in README.md with the app in Chromium
	$(BIN)/python scripts/pictures.py

animation: .venv/.ready-dev ## Write the animation in README.md with the app in Chromium
	$(BIN)/python scripts/animation.py

define make_environment
$(check_python)
@test -x $(BIN)/pip || { echo "Creating .venv"; $(PYTHON) -m venv .venv; }
endef

define check_python
command -v $(PYTHON) >/dev/null || { \
  echo "There is no $(PYTHON) here. Install Python 3.11 or newer." >&2; exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "$$($(PYTHON) --version) is too old: 3.11 or newer is needed. Name another: make run PYTHON=python3.12" >&2; \
  exit 1; }; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
  echo "$(PYTHON) lacks venv. On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
endef
