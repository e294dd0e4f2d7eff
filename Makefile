# legato: `make serve` runs it, `make test` tests it; the rest is for those who change it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  ?= smollm2-135m-instruct
# Two files of tests at a time: whole ones, since the tests of a file share servers.
WORKERS ?= -n 2 --dist loadfile

.PHONY: serve setup native fmt lint check test test-slow test-opt soak soak-http conformance sanitize neon avx512 measure size bench clean

serve: $(VENV)/.base ## install what serving needs, fetch the model, answer on 127.0.0.1:8000
	$(BIN)/legato serve $(MODEL)

setup: $(VENV)/.dev ## an editable install with everything the tests need

native: $(VENV)/.dev ## build the extension again after a change of its sources: only what changed
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -C build-dir=build/native -e .

fmt: $(VENV)/.dev
	$(BIN)/ruff format legato tests
	$(BIN)/ruff check --fix legato tests

lint: $(VENV)/.dev
	$(BIN)/ruff format --check legato tests
	$(BIN)/ruff check legato tests
	$(BIN)/mypy
	$(BIN)/lint-imports

# What starts servers, and the matrix of exactness, is left to `make test`.
check: lint ## lint and the fast tests, without the model and torch: under two minutes
	$(BIN)/python -m pytest -m "not slow and not model and not oracle and not hub" --ignore=tests/e2e --ignore=tests/bench \
		--ignore=tests/cli --ignore=tests/engine/test_exactness.py --ignore=tests/engine/test_exactness_cpu.py

test: $(VENV)/.dev ## the test suite, in short forms: under eight minutes on two cores
	$(BIN)/python -m pytest $(WORKERS)

test-slow: $(VENV)/.dev ## the test suite with full counts
	$(BIN)/python -m pytest $(WORKERS) -m "not hub" --timeout=3600

test-opt: $(VENV)/.dev ## facebook/opt-125m as it lies on the Hugging Face hub, against transformers: needs a network
	$(BIN)/python -m pytest -m hub --timeout=3600

# Goes on with `make soak SEED=n`, as its progress says; a failing scenario is kept in sim-failure.json.
SEED    ?= 0
SEEDS   ?= 1000000
MINUTES ?= 20

soak: $(VENV)/.dev ## a million simulated scenarios: hours
	$(BIN)/legato sim --seed $(SEED) --num-seeds $(SEEDS)

soak-http: $(VENV)/.dev ## a server under mixed load with faults, and what it keeps: twenty minutes
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

conformance: $(VENV)/.dev ## real clients against a live server; each is installed into build/conformance, once
	$(BIN)/python -m tests.conformance $(CLIENTS)

# The allocator that the sanitizer watches must be there before Python is; leaks are Python's own.
sanitize: $(VENV)/.dev ## the kernels' tests under sanitizers of memory, undefined behaviour and threads
	PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B build/sanitize -G Ninja -DLEGATO_SANITIZE=ON \
		-DPython_EXECUTABLE=$(abspath $(BIN))/python
	PATH="$(abspath $(BIN)):$$PATH" cmake --build build/sanitize
	LEGATO_NATIVE_PATH=$$(ls build/sanitize/legato/kernels/csrc/_native.*.so) ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		$(BIN)/python -m pytest tests/kernels
	$(CXX) -std=c++17 -O1 -g -fsanitize=thread -pthread -Ilegato/kernels/csrc -o build/sanitize/thread_pool_test \
		tests/kernels/native/thread_pool_test.cpp legato/kernels/csrc/runtime/thread_pool.cpp
	build/sanitize/thread_pool_test

# Flags are those of the extension, and the processor is the least one that has what the set needs. On an arm64 machine:
# `make neon NEON_CXX=c++ NEON_RUN=`.
CSRC         := legato/kernels/csrc
NEON_CXX     ?= aarch64-linux-gnu-g++
NEON_RUN     ?= qemu-aarch64 -cpu neoverse-n1
NEON_FLAGS   := -std=gnu++17 -O3 -Wall -Wextra -fno-math-errno -ffp-contract=off
NEON_TESTS   := $(wildcard tests/kernels/native/isa/*)
NEON_KERNELS := $(wildcard $(addprefix $(CSRC)/,*.h */*.h */*/*.h))

neon: ## the kernels for arm64, under an emulator; says so where there is none
	@if command -v $(NEON_CXX) > /dev/null && command -v $(firstword $(NEON_RUN) true) > /dev/null; then \
		$(MAKE) --no-print-directory build/neon/isa_test && $(NEON_RUN) build/neon/isa_test neon scalar; \
	else \
		echo "skipped: needs $(NEON_CXX) and $(firstword $(NEON_RUN)); Debian has them in g++-aarch64-linux-gnu and qemu-user"; \
	fi

build/neon/neon.o: NEON_FLAGS += -march=armv8.2-a+dotprod
build/neon/%.o: $(CSRC)/isa/%.cpp $(NEON_KERNELS)
	@mkdir -p $(@D)
	$(NEON_CXX) $(NEON_FLAGS) -c -o $@ $<

build/neon/isa_test: build/neon/neon.o build/neon/scalar.o $(CSRC)/dispatch.cpp $(NEON_TESTS) $(NEON_KERNELS)
	$(NEON_CXX) $(NEON_FLAGS) -static -DLEGATO_HAS_NEON -I$(CSRC) -o $@ $(filter %.o %.cpp,$^)

AVX512_FLAGS := $(filter-out -O3,$(NEON_FLAGS)) -O1 -march=haswell -Wno-psabi -Wno-ignored-attributes
EMULATED     := tests/kernels/native/emulated

avx512: build/avx512/isa_test ## the kernels for AVX-512, their instructions emulated in plain C++, on any x86-64: minutes
	build/avx512/isa_test avx512 avx512_vnni_bf16 scalar

build/avx512/avx512.o build/avx512/avx512_vnni_bf16.o: AVX512_FLAGS += -include $(EMULATED)/avx512.h
build/avx512/avx512_vnni_bf16.o: AVX512_FLAGS += -DLEGATO_EMULATE_VNNI_BF16
build/avx512/%.o: $(CSRC)/isa/%.cpp $(EMULATED)/avx512.h $(NEON_KERNELS)
	@mkdir -p $(@D)
	$(CXX) $(AVX512_FLAGS) -c -o $@ $<

build/avx512/isa_test: $(addprefix build/avx512/,avx512.o avx512_vnni_bf16.o scalar.o) $(EMULATED)/dispatch.cpp $(NEON_TESTS)
	$(CXX) $(AVX512_FLAGS) -I$(CSRC) -o $@ $(filter %.o %.cpp,$^)

# Each command replaces its own section of the page and leaves the others, those written by hand among them.
measure: $(VENV)/.dev ## every figure, written to docs/performance.md
	$(BIN)/legato bench kernels --model $(MODEL) --output docs/performance.md
	$(BIN)/legato bench serve $(MODEL) --output docs/performance.md
	$(BIN)/legato bench batching --model $(MODEL) --output docs/performance.md

bench: measure

size: ## the size of the base install, as downloaded; fails above 40 MB
	@dir=$$(mktemp -d) && trap 'rm -rf '$$dir EXIT && \
	$(PYTHON) -m pip wheel -q --no-deps -w $$dir . && $(PYTHON) -m pip download -q -d $$dir $$dir/legato-*.whl && \
	cd $$dir && ls -lS && total=$$(cat * | wc -c) && echo "$$((total / 1000000)) MB in $$(ls | wc -l) wheels" && \
	if ls | grep -iE '^(torch|transformers)-'; then echo "torch or transformers in the base install"; exit 1; fi && \
	test $$total -le 40000000

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "legato needs Python 3.11 or newer")'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml | $(VENV)/bin/python
	@echo "building legato's kernels and installing it into $(VENV): a minute or two"
	@$(BIN)/python -m pip install -q -e .
	@touch $@

# torch comes first and by its exact version: on its own it would bring gigabytes for a GPU that is not there
$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing legato and what its tests need into $(VENV), torch among it: some minutes"
	@$(BIN)/python -m pip install -q torch==2.13.0
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@ $(VENV)/.base
