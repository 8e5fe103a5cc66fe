# The newcomer's two commands are `make demo` and `make test`: each sets up all it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs slow build check clean

help:  ## Show this list.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/pyvenv.cfg:
	@echo "Making a virtual environment in $(VENV) …"
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "pstn needs Python 3.11 or newer"'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "Installing pstn and what the demo needs (torch is large: minutes, once) …"
	@$(PIP) -e '.[cli,plot]'
	@touch $@

$(VENV)/.dev: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "Installing pstn and what its tests need (torch is large: minutes, once) …"
	@$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.examples: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "Installing pstn and what its examples need (torch is large: minutes, once) …"
	@$(PIP) -e '.[examples]'
	@touch $@

demo: $(VENV)/.demo  ## Train CNN, STN and P-STN on 100 digits, compare them, draw a picture (1 to 2 minutes, once torch is here).
	@$(BIN)/pstn demo

example-%: $(VENV)/.examples
	@$(BIN)/python examples/$*.py $(ARGS)

# One process per core, one thread each: networks this small lose more to handing work between threads than they gain.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto

test: $(VENV)/.dev  ## Run the tests, without the slow ones.
	@$(PYTEST)

lint: $(VENV)/.dev  ## Check style, types and which module may import which.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(VENV)/.dev  ## Build the site into site/, warnings as errors, without a network.
	@$(BIN)/sphinx-build -q -W --keep-going -d .make/doctrees docs site
	@echo "The documentation: site/index.html"

slow: $(VENV)/.dev  ## Run the slow tests.
	@$(PYTEST) -m slow --durations=10

build: $(VENV)/.dev  ## Build the wheel, install it in an empty environment, and use it there.
	@rm -rf dist .make
	@$(BIN)/python -m build -q --no-isolation
	@$(PYTHON) -m venv .make/fresh
	@.make/fresh/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt dist/*.whl
	@cd .make && fresh/bin/python ../.ci/smoke.py
	@rm -rf .make

check: lint docs slow build  ## Everything beyond `make test` that must hold before a change lands.

clean:  ## Remove the virtual environment and all that was built.
	rm -rf $(VENV) .make dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
