# make setup    a virtual environment in .venv with everything that the rest needs
# make demo     the demo, in anyparty-demo/
# make test     the quick tests          make test-slow   the others
# make test-all both                     make check       style and types
# make test-security   what a received file, a message or a dependency could do: tests, bandit, pip-audit
# make bench    the benchmarks' tables   make format      style, mended
# make docs     the documentation's site, in site/
# make test-lowest   the quick tests with the oldest versions that pyproject.toml admits, in .venv-lowest
#
# TORCH_INDEX=... is a further index for pip: PyTorch's own, of CPU builds, spares gigabytes of CUDA packages on Linux.

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
	  || { echo "anyparty needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 1; }
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

test-lowest:  # old versions warn of newer ones beside them: what is warned of is shown, and no fault
	test -x $(LOWEST)/python || $(PYTHON) -m venv .venv-lowest
	$(LOWEST)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  -c constraints-lowest.txt -e ".[dev]"
	$(LOWEST)/pytest -n $(JOBS) -m "not slow and not net" -W default

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY)
	$(BIN)/python -m benchmarks

docs: $(DOCS_READY)
	$(BIN)/pytest -n $(JOBS) -m "not net" tests/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in site/; look at it: $(BIN)/mkdocs serve"

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@
