# A short front for CMake. `make help` says what each target does.
MAKEFLAGS += --no-print-directory
JOBS ?= $(shell nproc)
# Narrow the GPU architectures with CUDA_ARCHS="90a;100a"; empty: those that CMakeLists.txt names.
CUDA_ARCHS ?=
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard $(CUDA_HOME)/bin/nvcc /usr/local/cuda/bin/nvcc))
cuda_archs = $(if $(CUDA_ARCHS),'-DTRIAX_CUDA_ARCHS=$(CUDA_ARCHS)',-UTRIAX_CUDA_ARCHS)
# Set in the environment by .ci/run: warnings of the test and CUDA builds are errors.
TRIAX_WERROR ?= OFF
test_build := -DTRIAX_SANITIZE=ON -DTRIAX_WERROR=$(TRIAX_WERROR) -DCMAKE_BUILD_TYPE=Release
GENERATOR := $(if $(shell command -v ninja 2>/dev/null),-G Ninja)
# $(call build,FOLDER,OPTIONS,TARGETS): configures and builds; a folder keeps the generator that it was made with.
build = cmake -S . -B $(1) $(if $(wildcard $(1)/CMakeCache.txt),,$(GENERATOR)) $(2) >/dev/null \
  && cmake --build $(1) -j $(JOBS) $(if $(3),--target $(3))
folders := kernels comm model data train tests
sources = find $(folders) -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu'

.DEFAULT_GOAL := triax
.PHONY: triax cuda demo test test-all bench check format lint help setup-test

triax: ## build/cpu/triax, the binary without CUDA; plain make does this
	@scripts/setup --check build
	@$(call build,build/cpu,,triax)
	@echo "Built build/cpu/triax. For GPUs: $(if $(NVCC),,install NVIDIA's CUDA toolkit 12.8 or newer and run )make cuda"

cuda: ## build/cuda/triax, for GPUs and CPUs; CUDA_ARCHS="90a;100a" narrows it
	@scripts/setup --check build
	@scripts/cuda_toolkit $(NVCC)
	@$(call build,build/cuda,-DTRIAX_CUDA=ON -DTRIAX_WERROR=$(TRIAX_WERROR) '-DCMAKE_CUDA_COMPILER=$(NVCC)' $(cuda_archs),triax)
	@echo "Built build/cuda/triax"

demo: ## installs what is missing, builds, and learns the King James text in minutes
	@scripts/demo

setup-test:
	@scripts/setup build demo test
	@$(call build,build/cpu,,triax)
	@$(call build,build/test,$(test_build),triax tests)

test: setup-test ## installs what is missing, builds, and passes the tests of minutes
	@scripts/run_tests short $(JOBS) $(SLICE)

test-all: setup-test ## the same and the long ones
	@scripts/run_tests all $(JOBS)

bench: triax ## every measurement: a table, and JSON under runs/bench
	@scripts/bench

check: ## make check K=rmsnorm: one kernel, checked on the host and emulated; bytes, registers, spills, accesses
	$(if $(K),,@echo "make check K=KERNEL, for instance K=rmsnorm" >&2; exit 2)
	@scripts/setup --check build test
	@$(call build,build/test,$(test_build),test_kernels)
	@scripts/run_tests kernel '$(K)'
	@scripts/kernel_facts '$(K)' --launches build/test/launches

format: ## clang-format over the tree
	@$(sources) | xargs clang-format -i

lint: ## layout, layers and clang-tidy, changing nothing
	@scripts/check_tree
	@$(sources) | xargs clang-format --dry-run -Werror
	@cmake -S . -B build/cpu $(if $(wildcard build/cpu/CMakeCache.txt),,$(GENERATOR)) \
	  -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null
	@find $(folders) -name '*.cpp' | xargs -n 4 -P $(JOBS) clang-tidy --quiet -p build/cpu

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1 /p' Makefile | \
	  while read -r target line; do printf 'make %-10s%s\n' "$$target" "$$line"; done
