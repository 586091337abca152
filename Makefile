# `make train` and `make test` work from a bare clone: each sets up .venv first, once.

VENV   ?= .venv
DEVICE ?= xeon-icelake
ARGS   ?=
JOBS   ?= 2

# A pair: each torchvision is compiled for one torch, and both come from one index.
TORCH       ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0
# CPU wheels. `make train TORCH_INDEX=` takes PyPI's own builds (with CUDA on Linux).
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

PY    := $(VENV)/bin/python
STAMP := $(VENV)/.cdmpp-installed
PIP   := $(PY) -m pip --disable-pip-version-check --no-input

.PHONY: help install native train test test-fast test-slow lint format docs data evaluate clean
.DEFAULT_GOAL := help

help:  ## show this text
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 20
	@echo "  DEVICE=$(DEVICE)   ARGS='key=value ...' are passed on to the script"

train: $(STAMP)  ## train on DEVICE's records, print the test table, save the model folder
	$(PY) scripts/train.py device=$(DEVICE) $(ARGS)

test: $(STAMP)  ## the default test suite (neither slow nor gpu)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=25 $(ARGS)

FAST := $(addprefix tests/,simulate collectives plans steps trace uncertainty devices operators data report cli)

test-fast: $(STAMP)  ## tests that need no TVM and start no process, under a minute
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n $(JOBS) --dist worksteal --fast $(FAST) $(ARGS)

test-slow: $(STAMP)  ## the slow tests
	$(PY) -m pytest -m "slow and not gpu" $(ARGS)

lint: $(STAMP)  ## ruff (rules and format), mypy, the order of imports, and the schema of workflows
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: $(STAMP)  ## rewrite the sources in the project's format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

docs: $(STAMP)  ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

data: $(STAMP)  ## measure tensor programs on this CPU as DEVICE (quiet machine, hours; resumable)
	$(PY) scripts/measure.py device=$(DEVICE) $(ARGS)

evaluate: $(STAMP)  ## all splits, models and baselines, compared on DEVICE
	$(PY) scripts/evaluate.py device=$(DEVICE) $(ARGS)

install: $(STAMP)  ## only set up .venv

native:  ## build the compiled extension into the checkout, as `make install` does: after a change of its C++
	@$(COMPILER); \
	$(VENV)/bin/cmake -S cdmpp/lib -B cdmpp/lib -G Ninja -DPython_EXECUTABLE=$(abspath $(PY)) \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja && $(VENV)/bin/cmake --build cdmpp/lib

clean:  ## remove .venv and caches (data and models stay)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

# Whether a Python is fit to build the environment: version in range, and able to make one.
FIT := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))

$(PY):
	@for python in python3.11 python3.12 python3.13 python3 python; do \
	    if $$python -c '$(FIT)' >/dev/null 2>&1; then \
	        echo "creating $(VENV) with $$($$python --version)"; exec $$python -m venv $(VENV); \
	    fi; \
	done; \
	echo "error: no Python 3.11, 3.12 or 3.13 with the venv module was found on PATH (Debian: apt install python3-venv)" >&2; \
	exit 1

# Names a C++ compiler for CMake where none is on the path: that of Zig, which comes as a wheel. Without -I it is not
# found: pip, while it builds, hides what is installed from each Python that does not ignore its environment.
COMPILER = if ! { command -v c++ || command -v g++ || command -v clang++; } >/dev/null 2>&1; then \
    $(PIP) install --progress-bar off --quiet ziglang || { \
        echo "error: no C++ compiler (c++, g++ or clang++) is on the path, and ziglang could not be installed; Debian: apt install g++" >&2; \
        exit 1; }; \
    export CXX="$(abspath $(PY)) -I -m ziglang c++"; fi

# The alarm ends the question after 8 seconds even where a name server never answers.
REACHABLE := import signal, sys, urllib.request; signal.alarm(8); urllib.request.urlopen(sys.argv[1], timeout=5)

$(STAMP): pyproject.toml scripts/check_environment.py | $(PY)
	@$(PY) -c "import torchvision" >/dev/null 2>&1 || $(PIP) uninstall --quiet --yes torchvision >/dev/null 2>&1; \
	if [ -n "$(TORCH_INDEX)" ] && $(PY) -c '$(REACHABLE)' "$(TORCH_INDEX)/torch/" >/dev/null 2>&1; then \
	    index="$(TORCH_INDEX)"; \
	fi; \
	echo "installing $(TORCH) and $(TORCHVISION) from $${index:-the default index, on Linux with CUDA: some gigabytes}"; \
	$(PIP) install --progress-bar off $${index:+--extra-index-url "$$index"} "$(TORCH)" "$(TORCHVISION)"
	@echo "installing TVM and the other libraries, and compiling the extension: some minutes without output"
	@$(COMPILER); $(PIP) install --progress-bar off --quiet --use-pep517 -e '.[tvm,networks,plots,baselines,chakra,cluster,cuda,serve,docs,dev]'
	$(PY) scripts/check_environment.py
	@touch $(STAMP)
