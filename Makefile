# make setup          create .venv with all dependencies
# make demo           run the demo in anyparty-demo/
# make test           run the quick tests, without those of the documentation
# make test-slow      run the slow tests and those that start processes, without those of the documentation
# make test-all       run both
# make test-security  run the security tests, bandit and pip-audit
# make test-lowest    run the quick tests in .venv-lowest with the oldest versions that pyproject.toml allows
# make check          check style, types, imports and language
# make format         apply ruff's fixes and format the code
# make bench          write the tables of the benchmarks
# make docs           test the documentation and the benchmark programs, and build the site in site/
#
# TORCH_INDEX=URL adds a package index. PyTorch's index of CPU builds saves gigabytes of CUDA packages on Linux.

PYTHON ?= python3
BIN := .venv/bin
LOWEST := .venv-lowest/bin
READY := .venv/.ready
DOCS_READY := .venv/.ready-docs
TORCH_INDEX ?=
JOBS ?= 2
CODE_TESTS := --ignore=tests/docs
STEP = @printf '%s %s\n' "$$(date +%H:%M:%S)"
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE  # the tests start many processes; each would compile the package again

.PHONY: setup demo test test-slow test-security test-all test-lowest check format bench docs

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "anyparty needs Python 3.11 or newer; choose one with make PYTHON=python3.12"; exit 1; }
	$(STEP) "1 of 3: virtual environment .venv ($$($(PYTHON) --version))"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@if [ "$$(uname -sm)" = "Linux x86_64" ] && [ -z "$(TORCH_INDEX)" ] && ! $(BIN)/python -c 'import torch' 2>/dev/null; \
	  then echo "         PyTorch with CUDA is a download of 2 to 4 GB.  Without an NVIDIA GPU, press Ctrl-C and run"; \
	  echo "             make setup TORCH_INDEX=URL"; \
	  echo "         with the URL that pytorch.org shows for pip and CPU: about 0.2 GB."; fi
	$(STEP) "2 of 3: install anyparty and its dependencies"
	@$(BIN)/python -m pip install --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  -c constraints.txt -e ".[dev]"
	$(STEP) "3 of 3: check the installation"
	@$(BIN)/anyparty --version
	@touch $@
	$(STEP) "ready; type: source .venv/bin/activate"

demo: $(READY)
	$(BIN)/anyparty demo anyparty-demo

test: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist worksteal $(CODE_TESTS) -m "not slow and not net"

test-slow: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist worksteal $(CODE_TESTS) -m "slow and not net"
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(CODE_TESTS) -m net

test-security: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist loadfile tests/security
	$(BIN)/bandit --quiet --recursive src --configfile pyproject.toml
	$(BIN)/python -m tests.security.audit

test-all: test test-slow

test-lowest:  # old packages warn about newer ones; these warnings are shown and do not fail a test
	test -x $(LOWEST)/python || $(PYTHON) -m venv .venv-lowest
	$(LOWEST)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  -c constraints-lowest.txt -e ".[dev]"
	$(LOWEST)/pytest -n $(JOBS) $(CODE_TESTS) -m "not slow and not net" -W default

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
	$(BIN)/pytest -n $(JOBS) --dist worksteal tests/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in site/. Preview it with $(BIN)/mkdocs serve"

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@
