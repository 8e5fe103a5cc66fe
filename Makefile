# The newcomer's two commands are `make demo` and `make test`: each sets up all it needs.
PYTHON ?= python3
VENV   ?= .venv
# The versions to install: CONSTRAINTS=FILE takes others.
CONSTRAINTS ?= constraints.txt
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -q -c $(CONSTRAINTS)

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs browser slow build check clean

help:  ## Show this list.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/pyvenv.cfg:
	@echo "Making a virtual environment in $(VENV) …"
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "pstn needs Python 3.11 or newer"'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/pyvenv.cfg pyproject.toml $(CONSTRAINTS)
	@echo "Installing pstn and what the demo needs (torch is large: minutes, once) …"
	@$(PIP) -e '.[cli,plot]'
	@touch $@

$(VENV)/.dev: $(VENV)/pyvenv.cfg pyproject.toml $(CONSTRAINTS)
	@echo "Installing pstn and what its tests need (torch is large: minutes, once) …"
	@$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.examples: $(VENV)/pyvenv.cfg pyproject.toml $(CONSTRAINTS)
	@echo "Installing pstn and what its examples need (torch is large: minutes, once) …"
	@$(PIP) -e '.[examples]'
	@touch $@

demo: $(VENV)/.demo  ## Train CNN, STN and P-STN on 100 digits, compare them, draw a picture (1 to 2 minutes, once torch is here).
	@$(BIN)/pstn demo

example-%: $(VENV)/.examples
	@$(BIN)/python examples/$*.py $(ARGS)

# One process per core, one thread each: networks this small lose more to handing work between threads than they gain.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal

test: $(VENV)/.dev  ## Run the tests, without the slow ones.
	@$(PYTEST)

SCHEMA := $(BIN)/check-jsonschema -q --builtin-schema

lint: $(VENV)/.dev  ## Check style, types, which module may import which, and the files for GitHub, Read the Docs and Docker.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	@$(SCHEMA) custom.github-workflows-require-timeout .github/workflows/*.yml
	@$(SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	@$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(SCHEMA) vendor.dependabot .github/dependabot.yml
	@$(SCHEMA) vendor.readthedocs .readthedocs.yaml
	@$(SCHEMA) vendor.citation-file-format CITATION.cff
	@$(SCHEMA) vendor.compose-spec deploy/compose.yaml
	@$(BIN)/zizmor -q --offline .github

docs: $(VENV)/.dev  ## Build the site into site/, warnings as errors, without a network.
	@$(BIN)/sphinx-build -q -W --keep-going -d .make/doctrees docs site
	@echo "The documentation: site/index.html"

browser: $(VENV)/.dev  ## Add the page that runs in the reader's browser to site/ (npm downloads onnxruntime-web).
	@npm install --silent --no-save --no-package-lock --prefix .npm onnxruntime-web@1.30.0
	@$(BIN)/python docs/make_browser_page.py site/browser

slow: $(VENV)/.dev  ## Run the slow tests.
	@$(PYTEST) -m slow --durations=10

# A newer Python to try the wheel with too, where there is one that starts.
NEWER ?= $(firstword $(foreach p,python3.14 python3.13 python3.12 $(wildcard $(HOME)/.pyenv/versions/3.1[2-9]*/bin/python),\
	$(if $(shell $(p) -c "print(1)" 2>/dev/null),$(p))))

build: $(VENV)/.dev  ## Build wheel and sdist, check them, install the wheel in an empty environment, and use it there.
	@rm -rf dist .make
	@$(BIN)/python -m build -q --no-isolation
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/check-wheel-contents dist/*.whl
	@set -e; for python in $(PYTHON) $(NEWER); do \
		echo "Installing the wheel with $$python …"; \
		rm -rf .make/fresh; $$python -m venv .make/fresh; \
		.make/fresh/bin/python -m pip --disable-pip-version-check install -q -c $(CONSTRAINTS) dist/*.whl; \
		(cd .make && fresh/bin/python ../.ci/smoke.py); \
	done
	@rm -rf .make

check: lint docs slow build  ## Everything beyond `make test` that must hold before a change lands.

clean:  ## Remove the virtual environment and all that was built.
	rm -rf $(VENV) .make .npm dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
