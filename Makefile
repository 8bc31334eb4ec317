# A fresh machine needs Python 3.11 or newer and nothing else: every target sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check audit setup clean

demo: setup        ## a question answered from cached segments, on a local Ray cluster
	$(BIN)/hypic demo

test: setup        ## every test that needs no GPU
	$(BIN)/python -m pytest

check: setup       ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit: setup       ## known weaknesses of the pinned dependencies; needs a network, and fails without one
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet 'pip-audit>=2.10'
	$(VENV)-audit/bin/pip-audit --strict --no-deps --requirement constraints.txt

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "HYPIC needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[serve,eval,dev,otel]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-audit
