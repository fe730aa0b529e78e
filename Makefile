# The same targets everywhere: a laptop, CI, a release.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: setup demo check test soak clean

$(BIN)/god-ray: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,examples]'
	touch $@

setup: $(BIN)/god-ray

demo: setup
	$(BIN)/python examples/digits/make_data.py
	rm -rf runs/demo
	$(BIN)/god-ray train examples/digits/run.yaml --name demo --storage runs

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup
	$(BIN)/pytest

soak: setup
	GOD_RAY_KILLS=$${GOD_RAY_KILLS:-5000} $(BIN)/pytest -q --timeout=0 tests/unit/test_checkpoint_crash.py -k random_moments

clean:
	rm -rf $(VENV) runs build dist *.egg-info
