# make setup          create .venv with all dependencies
# make demo           run the demo in anyparty-demo/
# make test           run the quick tests
# make test-slow      run the slow tests and those that start processes
# make test-all       run both
# make test-security  run the security tests, bandit and pip-audit
# make test-lowest    run the quick tests in .venv-lowest with the oldest versions that pyproject.toml allows
# make check          check style, types, imports and language
# make format         apply ruff's fixes and format the code
# make bench          write the tables of the benchmarks
# make docs           test the documentation and build it in site/
#
# TORCH_INDEX=URL adds a package index. PyTorch's index of CPU builds saves gigabytes of CUDA packages on Linux.

PYTHON ?= python3
BIN := .venv/bin
LOWEST := .venv-lowest/bin
READY := .venv/.ready
DOCS_READY := .venv/.ready-docs
TORCH_INDEX ?=
JOBS ?= 2
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test test-slow test-security test-all test-lowest check format bench docs

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "anyparty needs Python 3.11 or newer; choose one with make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  -c constraints.txt -e ".[dev]"
	touch $@

demo: $(READY)
	$(BIN)/anyparty demo anyparty-demo

test: $(READY)
	$(BIN)/pytest -n $(JOBS) -m "not slow and not net"

test-slow: $(READY)
	$(BIN)/pytest -n $(JOBS) -m "slow and not net"
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m net

test-security: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist loadfile tests/security
	$(BIN)/bandit --quiet --recursive src --configfile pyproject.toml
	$(BIN)/python -m tests.security.audit

test-all: test test-slow

test-lowest:  # old packages warn about newer ones; these warnings are shown and do not fail a test
	test -x $(LOWEST)/python || $(PYTHON) -m venv .venv-lowest
	$(LOWEST)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  -c constraints-lowest.txt -e ".[dev]"
	$(LOWEST)/pytest -n $(JOBS) -m "not slow and not net" -W default

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/language_lint.py

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY)
	$(BIN)/python -m benchmarks

docs: $(DOCS_READY)
	$(BIN)/pytest -n $(JOBS) -m "not net" tests/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in site/. Preview it with $(BIN)/mkdocs serve"

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@
