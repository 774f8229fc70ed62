# Everything runs in a virtual environment of its own; PYTHON=python3.12 chooses another interpreter.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= demo-out

.PHONY: demo test test-all coverage lint format bench clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/installed  ## train, kill in the middle of a save, resume, compare: about two minutes
	$(BIN)/python examples/demo.py --out $(OUT)

test: $(VENV)/installed lint  ## the whole suite
	$(BIN)/pytest -q

test-all: $(VENV)/installed lint  ## with the variants that cost minutes
	$(BIN)/pytest -q -m ""

coverage: $(VENV)/installed  ## the suite again, with the branches it takes
	$(BIN)/pytest -q --cov --cov-report=term:skip-covered

lint: $(VENV)/installed  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed  ## side by side with other ways to save; needs about 12 GB of free disk
	$(BIN)/python benchmarks/bench_local.py
	$(BIN)/python benchmarks/bench_stall.py

clean:
	rm -rf $(VENV) $(OUT) build dist *.egg-info .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
