# make demo    install into .venv and show attention of a real model on a real sentence
# make test    install what the tests need, run them all, doctests included
# make lint    formatting, lint, types
# make coverage  the tests with branch coverage of core/ and layers/

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo test lint coverage clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/headwise demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

coverage: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q --cov --cov-report=
	$(BIN)/coverage report --include='*/core/*,*/layers/*' --show-missing --fail-under=97

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Installed again only when what is to be installed has changed.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[cli]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[cli,dev]'
	touch $@ $(VENV)/.installed
