# make demo, make test, make coverage, make guard, make lint, make bench, make docs; make zig, make torch, make lowest and
# make pythons for users' other ways. The first of them makes .venv, from the first Python >= 3.11 that is found;
# `make PYTHON=/path/to/python3 ...` names one.

PYTHONS := python3 python3.13 python3.12 python3.11 python
BIN     := .venv/bin
READY   := .venv/.ready
TESTED  := .venv/.ready-test
EXTRAS  := test,plot,dask,cbc,gurobi,scip,device,quantize,docs,tensorboard
PYTEST_FLAGS ?= -n auto --dist worksteal
IN_C    := tests/backends/c tests/cli/test_train_on.py tests/ops/runtimes/test_c.py tests/ops/test_streamed.py \
           tests/testing/test_kernel.py
IN_TORCH := test,plot,dask,device,quantize,docs,torch
OUT     := build/demo
MODEL   := resnet18-cifar

.PHONY: demo test coverage zig torch torch-environment guard lint bench docs lowest pythons tour extension types clean

demo: $(READY)
	@mkdir -p $(OUT)
	$(BIN)/poetopt zoo $(MODEL) -o $(OUT)/$(MODEL).onnx
	$(BIN)/poetopt solve $(OUT)/$(MODEL).onnx --device a72 --ram 40% --deadline 1.5x -o $(OUT)/plan.json
	$(BIN)/poetopt run $(OUT)/plan.json

test: $(TESTED)
	$(BIN)/python -m pytest $(PYTEST_FLAGS) --present packages

# Which share of each room's lines the tests run; what programs that they start run isn't counted.
coverage: $(TESTED)
	$(BIN)/python -m pytest $(PYTEST_FLAGS) --present packages --cov --cov-report=json:build/coverage.json
	$(BIN)/python -m benchmarks.coverage build/coverage.json

# The tests of C with the programs of .venv alone: no compiler of the system is there, and pip's zig takes its place.
zig: $(TESTED)
	PATH='$(CURDIR)/$(BIN)' $(BIN)/python -m pytest $(PYTEST_FLAGS) --present packages $(IN_C)

# The tests that import torch, with the newest that there is, in build/torch. None of them may skip for want of it.
torch: torch-environment
	build/torch/bin/python -m pytest $(PYTEST_FLAGS) --present packages --present torch -m torch

torch-environment: $(TESTED)
	@[ -x build/torch/bin/python ] || $(BIN)/python -m venv build/torch
	build/torch/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	build/torch/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation \
	  --upgrade -e '.[$(IN_TORCH)]' torch scikit-learn

# Twelve small cells of the solver, held to their optima and gaps: a minute.
guard: $(TESTED)
	$(BIN)/python -m benchmarks.guard

lint: $(TESTED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy poetopt tests benchmarks docs
	$(BIN)/python -m benchmarks.house --check

# All random cases of every suite (make test goes through sixteen of each), then the solver's table.
bench: $(TESTED)
	$(BIN)/python -m pytest $(PYTEST_FLAGS) --seeds all
	$(BIN)/python -m benchmarks.solve --output benchmarks/results/solve.md

# The pages in build/docs, with every notebook executed anew; a warning is an error. Two notebooks import torch: the
# environment is that of `make torch`, and nothing else is fetched.
docs: $(TESTED)
	@build/torch/bin/python -c 'import torch, sphinx' 2>/dev/null || $(MAKE) torch-environment
	build/torch/bin/python -m sphinx -W --keep-going -q -E -j 2 -b html -d build/doctrees docs build/docs
	@echo 'build/docs/index.html'

# Installs poetopt and docs/examples/extension as wheels into a fresh environment, and runs the extension's tests there.
extension: $(TESTED)
	$(BIN)/python docs/examples/try_extension.py

# A user's whole way with the lowest version of each dependency that pyproject.toml allows, in build/lowest.
lowest: $(TESTED)
	$(BIN)/python -m tests.environments lowest

# A user's whole way with the wheel alone, on each Python that it is for and that is here, in build/python3.*.
pythons: $(TESTED)
	$(BIN)/python -m tests.environments pythons

# Whether the README's tour prints what it shows, figures aside; on an idle machine, for what is proven depends on time.
tour: $(READY)
	$(BIN)/python docs/tour.py --check

# A user's program against the installed wheel: mypy --strict and, where it is installed, pyright.
types: $(TESTED)
	$(BIN)/python docs/examples/try_extension.py --types

clean:
	rm -rf build dist .venv

# The marker is the last thing made, so that an installation that was cut short is made anew.
$(READY): pyproject.toml constraints.txt
	@rm -f $@
	@if ! [ -x $(BIN)/python ] || ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
	  rm -rf .venv; \
	  for candidate in $(PYTHON) $(PYTHONS); do \
	    $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	    echo "making .venv with $$candidate"; \
	    $$candidate -m venv .venv && break; \
	    rm -rf .venv; \
	  done; \
	  [ -x $(BIN)/python ] || { \
	    echo "make: no Python >= 3.11 with venv found; install one (Debian: apt install python3-venv)," \
	         "or say which: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e .
	@touch $@

# Every extra, so that no test skips for want of one; the demo doesn't wait for them.
$(TESTED): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@
