# make setup   a virtual environment with everything for development
# make demo    the main job on real images
# make test    the tests; make test-all adds the slow ones
# make lint    style and types
# make sanitize  the native kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer
# make bench   the benchmarks

PYTHON ?= python3
VENV ?= .venv

TORCH := $(shell grep '^torch==' constraints.txt)
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip
READY := $(VENV)/.ready

.PHONY: setup demo test test-all lint bench sanitize
.DEFAULT_GOAL := setup

setup: $(READY)

# torch comes first, so that nothing else that wants it chooses the build. Which build that is, pip's settings say:
# with PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu it is the one for the CPU alone.
# Native sources too: an editable install does not see that they changed.
$(READY): pyproject.toml constraints.txt CMakeLists.txt $(shell find csrc -type f)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.11 ..." >&2; exit 2; }
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt '$(TORCH)'
	$(PIP) install -c constraints.txt -e '.[demo,test,lint]'
	@touch $@

demo: setup
	$(VENV)/bin/subbyte demo

test: setup
	$(RUN) -m pytest -n 2 -m 'not slow'

test-all: setup
	$(RUN) -m pytest -n 2

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: setup
	@set -e; for script in $(shell grep -l __main__ benchmarks/*.py); do echo "== $$script"; $(RUN) "$$script"; done

# Python itself is not built for it, so the sanitizer's library is loaded before it.
sanitize: setup
	cmake -S . -B build/sanitize -DSUBBYTE_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo
	cmake --build build/sanitize
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 SUBBYTE_KERNELS=build/sanitize $(RUN) -m pytest -p no:xdist tests/kernels
