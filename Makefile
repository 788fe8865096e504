# Everything runs in .venv, made on first use. Python 3.11 or newer and make are all that is needed.
PYTHON ?= python3
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test languages soak gpu-test check bench site clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "electra needs Python 3.11 or newer; try: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV); the first time takes a few minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/electra demo

# A file's tests share what is dear to make, so they stay in one of the two processes.
test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# All ten languages from text to transformers; `make test` trains three of them.
languages: $(STAMP)
	ELECTRA_LANGUAGES=all $(BIN)/python -m pytest -n 2 tests/test_languages.py

# The long forms of all campaigns, with counts; every kernel compiled, and under the race detector; about half an hour.
soak: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m electra.soak kills
	OMP_NUM_THREADS=1 $(BIN)/python -m electra.soak signals
	OMP_NUM_THREADS=1 $(BIN)/python -m electra.soak flips
	OMP_NUM_THREADS=1 $(BIN)/python -m electra.soak inputs
	ELECTRA_SOAK=all $(BIN)/python -m pytest -n 2 -m soak

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Every GPU test, then the convergence gate, in one table. The machine's own Python serves where nothing can be installed.
gpu-test:
	PYTHONPATH=src $(GPU_PYTHON) -m electra.bench.gate

# Further programs need data or a run of yours; `pydoc electra.bench` lists them.
bench: $(STAMP)
	$(BIN)/electra bench --preset tiny --batch 32
	$(BIN)/electra bench --preset small --batch 16 --peer eager

# The documentation as a site, site/index.html; it opens from disk and loads nothing from elsewhere.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
