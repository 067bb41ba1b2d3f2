# All tasks of this checkout; `make help` lists them.
SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Without bytecode files, every process of Fairlead would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Show one line per large download and one at the end, as a sign of progress.
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off -c constraints.txt
BRIEF  := awk '/^ *Downloading .*[0-9] (MB|GB)/ { print "   " $$2, $$3, $$4; fflush() } \
               /^Installing collected/ { print "    unpacking"; fflush() } /^ERROR/ { print; fflush() }'
TORCH  := $(shell grep '^torch==' constraints.txt)

.PHONY: help setup demo test explore mutants chaos fuzz system sandbox lint bench clean clean-all

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## create .venv with all dependencies (takes minutes the first time)

$(STAMP): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Fairlead needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "1/3 virtual environment in $(VENV)"
	@[ -x $(BIN)/python ] && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(MAKE) venv
	@echo "2/3 $(TORCH) (by far the largest part)"
	@$(PIP) "$(TORCH)" | $(BRIEF)
	@echo "3/3 Fairlead and its other dependencies"
	@$(PIP) -e '.[postgres,demo,dev,otel,simulation]' | $(BRIEF)
	@touch $@
	@echo "ready: $(BIN)/fairlead"

.PHONY: venv
venv:
	@"$(PYTHON)" -m venv --clear $(VENV) >/dev/null 2>&1 || { \
	  $(call as-root-with-apt) && $(call apt-get,python3-venv) && "$(PYTHON)" -m venv --clear $(VENV); } || { \
	  echo "$(PYTHON) cannot make virtual environments: install its venv package (Debian: python3-venv)"; exit 1; }

demo: $(STAMP) sandbox ## three tenants train real models on four virtual nodes, one of which is killed; takes three minutes (ARGS=--keep: the platform stays up)
	@$(BIN)/python -m fairlead.demo $(ARGS)

# Most tests wait for processes, so five files run at once; tests that share a platform are in one file.
SIDE_BY_SIDE ?= 5

test: $(STAMP) system ## run all tests, lint included (ARGS="-k words" selects tests, SIDE_BY_SIDE=0 runs one at a time)
	@$(BIN)/python -m pytest -n $(SIDE_BY_SIDE) --dist loadfile --no-loadscope-reorder $(ARGS)

explore: $(STAMP) ## run property tests with new random examples (EXAMPLES per property, default 1000), storms and mutants
	@FAIRLEAD_EXPLORE=1 FAIRLEAD_EXAMPLES=$${EXAMPLES:-1000} $(BIN)/python -m pytest -n $(SIDE_BY_SIDE) --timeout 7200 tests/scheduling tests/simulation tests/test_specs.py tests/control/test_accepted_profiles.py tests/control/test_any_messages.py tests/storm $(ARGS)
	@$(MAKE) mutants ARGS="--rooms control,recovery,training,grid,data --least 92"

mutants: $(STAMP) ## change one place of the core at a time and check whether tests notice (ARGS="--rooms grid,data --seed 7 --count 100")
	@nice -n 10 $(BIN)/python -m tests.mutants $(ARGS)

chaos: $(STAMP) sandbox ## inject 500 faults into a real platform (FAULTS, SEED, STATE); the same command continues an interrupted run
	@$(BIN)/python -m tests.chaos.campaign --faults $${FAULTS:-500} --seed $${SEED:-1} --state $${STATE:-/tmp/fairlead-chaos-$${SEED:-1}} $(ARGS)

fuzz: $(STAMP) ## fuzz the API with every role and random seeds (EXAMPLES per operation, default 300)
	@FAIRLEAD_FUZZ_EXAMPLES=$${EXAMPLES:-300} $(BIN)/python -m pytest tests/api/test_fuzz.py --timeout 7200 $(ARGS)

lint: $(STAMP) ## run ruff, mypy and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/mypy fairlead
	@[ ! -f .importlinter ] || $(BIN)/lint-imports

# benchmarks that write results; scripts that only draw pictures are run by hand
BENCHES = $(shell grep -l 'benchmarks.reporter' $$(grep -l '__main__' benchmarks/*.py))

bench: $(STAMP) ## run every benchmark and write JSON to benchmarks/results (ARGS=--quick for a short run)
	@mkdir -p benchmarks/results
	@for file in $(BENCHES); do \
	  name=$$(basename $$file .py); echo "== $$name"; \
	  $(BIN)/python -m benchmarks.$$name $(ARGS) --json benchmarks/results/$$name-$$(date +%F).json || exit 1; \
	done

clean: ## remove caches and the demo's report
	@rm -rf build dist demo-report .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

clean-all: clean ## remove the virtual environment too
	@rm -rf $(VENV) *.egg-info

# ---- system packages: installed as root with apt; otherwise only named

as-root-with-apt = [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null
apt-get = { echo "installing the Debian package $(1)"; export DEBIAN_FRONTEND=noninteractive; \
            { apt-get install -qq -y --no-install-recommends $(1) || \
              { apt-get update -qq && apt-get install -qq -y --no-install-recommends $(1); }; } >/dev/null; }

sandbox: ## install bubblewrap, which isolates tenants (as root with apt)
	@command -v bwrap >/dev/null || { $(call as-root-with-apt) && $(call apt-get,bubblewrap); } || \
	  echo "bubblewrap is missing (Debian package bubblewrap): tenants will not be isolated by a sandbox"

system: sandbox ## install the system packages that the tests use (as root with apt)
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || { \
	  $(call as-root-with-apt) && $(call apt-get,postgresql-common) && \
	  sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf && \
	  $(call apt-get,postgresql); } || echo "PostgreSQL is missing (Debian package postgresql): its tests will be skipped"
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  $(call as-root-with-apt) && $(call apt-get,chromium); } || echo "Chromium is missing (Debian package chromium): the page's tests will be skipped"
