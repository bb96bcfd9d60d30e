# starring: build, test, demo, bench, lint, deps - one command each. `make help` lists them.
#
#   make               build/starring
#   make test          install what is missing, build and run the tests that are short; make check: every test
#   make SAN=address|undefined|thread test
#   make demo          train one model through every topology and compare (runs/demo/)
#   make drill         kill processes of 500 small runs at random moments and compare the bits
#   make soak          train 80,000 steps through every topology: no memory, descriptor or thread may pile up
#
# BUILD=dir puts everything elsewhere. ARCH= is what to build for, processors and GPUs: ARCH=x86-64-v3 for another
# machine than this one (-march), ARCH=sm_90 for H100 and H200 alone, ARCH="x86-64-v3 sm_90" for both.

ifeq ($(origin CC),default)
CC      := gcc
endif
SAN     ?=
BUILD   ?= build$(if $(SAN),/$(SAN))
# The repository may lie anywhere: every path below is relative to it. A list of make's is cut at spaces, so BUILD may not.
ifneq ($(words $(BUILD)),1)
$(error BUILD="$(BUILD)": GNU make cannot build in a path with spaces: name another directory)
endif
ARCH    ?=
CPU_ARCH = $(or $(filter-out sm_%,$(ARCH)),native)
MAKEFLAGS += --no-builtin-rules

PKGS     = libzmq libprotobuf-c libcjson libxxhash libsodium liburing
MPI_CFLAGS := $(shell pkg-config --cflags ompi-c 2>/dev/null)
MPI_LIBS   := $(shell pkg-config --libs ompi-c 2>/dev/null)
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)

# -ffp-contract=off: fused multiply-adds are written out, so that every topology and compiler rounds alike.
CFLAGS  = -std=gnu17 -D_GNU_SOURCE -O3 -g -march=$(CPU_ARCH) -ffp-contract=off -fno-math-errno -fno-trapping-math \
          -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror=implicit-function-declaration \
          -pthread -I. -I$(BUILD) $(PKG_CFLAGS)
LDLIBS  = $(PKG_LIBS) -lz -lm -ldl -pthread
ifneq ($(SAN),)
CFLAGS  += -fsanitize=$(SAN) -fno-omit-frame-pointer -O1
LDLIBS  += -fsanitize=$(SAN)
endif
ifeq ($(SAN),undefined)
CFLAGS  += -fno-sanitize-recover=undefined
endif

PROTO_SRC := $(wildcard proto/*.proto)
PROTO_C   := $(PROTO_SRC:%.proto=$(BUILD)/%.pb-c.c)
PROTO_H   := $(PROTO_SRC:%.proto=$(BUILD)/%.pb-c.h)

# The part that needs Open MPI is a library, built if Open MPI is installed, and opened when it is wanted.
MPI_C     = $(filter-out decentral/mpi/mpi_load.c,$(wildcard decentral/mpi/*.c))
MPI_OBJ   = $(MPI_C:%.c=$(BUILD)/mpi/%.o)
MPI_SO    = $(if $(MPI_LIBS),$(BUILD)/libstarring_mpi.so)
# It calls these functions of the program, which the linker has to leave visible.
MPI_USES  = $(if $(MPI_SO),$(BUILD)/mpi/uses.list)
MPI_FLAGS = $(MPI_USES:%=-Wl,--dynamic-list=%)

# One static library a module: what may link against what is the layering.
src      = $(filter-out kernels/cuda/% $(MPI_C),$(wildcard $(1)/*.c $(1)/*/*.c $(1)/*/*/*.c))
objs     = $(patsubst %.c,$(BUILD)/obj/%.o,$(call src,$(1)))
LIB_KERNELS   = $(BUILD)/libkernels.a
LIB_SHARED    = $(BUILD)/libshared.a
LIB_PS        = $(BUILD)/libps.a
LIB_DECENTRAL = $(BUILD)/libdecentral.a

.PHONY: all
all: $(BUILD)/starring $(MPI_SO)

$(BUILD)/libkernels.a:   $(call objs,kernels)
$(BUILD)/libshared.a:    $(call objs,shared) $(BUILD)/proto/events.pb-c.o
$(BUILD)/libps.a:        $(call objs,ps) $(BUILD)/proto/ps.pb-c.o
$(BUILD)/libdecentral.a: $(call objs,decentral)
$(BUILD)/lib%.a:
	@rm -f $@
	@echo "  AR      $@"
	@ar rcs $@ $^

$(BUILD)/starring: $(BUILD)/obj/starring.o $(LIB_PS) $(LIB_DECENTRAL) $(LIB_SHARED) $(LIB_KERNELS) $(MPI_USES) | $(MPI_SO)
	@echo "  LD      $@"
	@$(CC) -o $@ $(filter %.o %.a,$^) $(MPI_FLAGS) $(LDLIBS)

$(BUILD)/mpi/%.o: %.c Makefile | $(PROTO_H)
	@mkdir -p $(@D)
	@echo "  CC      $< (MPI)"
	@$(CC) $(CFLAGS) $(MPI_CFLAGS) -fPIC -MMD -MP -c -o $@ $<
$(BUILD)/mpi/uses.list: $(MPI_OBJ)
$(BUILD)/%/uses.list:
	@(echo "{"; nm -u $^ | awk '$$1 == "U" && $$2 !~ /@|^_/ { print $$2 ";" }' | sort -u; echo "};") > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
$(BUILD)/libstarring_mpi.so: $(MPI_OBJ)
	@echo "  LD      $@"
	@$(CC) -shared -o $@ $^ $(MPI_LIBS)

# The revision that summary.json names: of a git checkout, with -dirty where files differ from it; else "". Written
# when it has changed, and seen by the main file alone, so that a commit builds one object anew.
REVISION := $(if $(wildcard .git),$(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null))
$(BUILD)/starring_revision.h: revision
	@mkdir -p $(@D)
	@echo '#define STARRING_REVISION "$(REVISION)"' | cmp -s - $@ || echo '#define STARRING_REVISION "$(REVISION)"' > $@
.PHONY: revision
revision:
$(BUILD)/obj/starring.o: $(BUILD)/starring_revision.h

$(BUILD)/obj/%.o: %.c Makefile | $(PROTO_H)
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

# The text of a program that `bench ps --peer` builds (ps/bench/bench_ps.c).
$(BUILD)/obj/ps/bench/bench_ps.o: ps/bench/pslite_peer.cc
# The one that `bench step --peer` runs.
$(BUILD)/obj/shared/bench/bench_peer.o: shared/bench/torch_peer.py

# The loop of the matrix product is two lines of the processor's cache if it begins with one. Where the linker happens to
# put it otherwise, it is three, and a step of the demo is 6 to 8% longer (measured on Zen 3).
$(BUILD)/obj/kernels/cpu/gemm/%.o: CFLAGS += -falign-functions=64 -falign-loops=64

$(BUILD)/proto/%.pb-c.c $(BUILD)/proto/%.pb-c.h: proto/%.proto
	@mkdir -p $(BUILD)
	protoc-c --c_out=$(BUILD) $<

$(BUILD)/proto/%.o: $(BUILD)/proto/%.c
	@echo "  CC      $<"
	@$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

# ---- everything CUDA is one shared object, loaded only when a CUDA device is asked for. Built where nvcc is
# found (CUDA=0 leaves it out); for the GPUs that ARCH= names, the last of them as PTX
# too, for later ones. Sanitized builds go without it. -fmad=false: what
# is fused is written out, as on the CPU, and the emulation of the tests computes the same.
CUDA ?= $(if $(SAN),0,1)
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
GPU_ARCH  = $(or $(patsubst sm_%,%,$(filter sm_%,$(ARCH))),80 90)
GENCODE   = $(foreach sm,$(GPU_ARCH),-gencode arch=compute_$(sm),code=sm_$(sm)) \
            -gencode arch=compute_$(lastword $(GPU_ARCH)),code=compute_$(lastword $(GPU_ARCH))
CUDA_C   := $(wildcard kernels/cuda/host/*.c kernels/queue/*.c) kernels/codec.c kernels/device_head.c kernels/op_work.c \
            kernels/operations.c kernels/spans.c
CUDA_CU  := $(wildcard kernels/cuda/*.cu kernels/cuda/ops/*.cu)
CUDA_OBJ  = $(CUDA_C:%.c=$(BUILD)/cuda/%.o) $(CUDA_CU:%.cu=$(BUILD)/cuda/%.cu.o)
CUDA_SO   = $(if $(NVCC),$(if $(filter-out 0,$(CUDA)),$(BUILD)/libstarring_cuda.so))
# Where CUDA's, cuBLASLt's or cuDNN's headers are missing the tests' own declarations stand in (after all others).
CUDA_STANDIN = tests/emulation/headers
CUDA_INC  = $(if $(CUDA_HOME),-isystem $(CUDA_HOME)/include) -idirafter $(CUDA_STANDIN)

$(BUILD)/cuda/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "  CC      $< (CUDA)"
	@$(CC) $(CFLAGS) $(CUDA_INC) -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<
$(BUILD)/cuda/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	@echo "  NVCC    $<"
	@$(NVCC) -std=c++17 -O3 -fmad=false -lineinfo $(GENCODE) -Xcompiler "-fPIC -fvisibility=hidden -Wall -Wextra" -I. -MMD -MP -c -o $@ $<
$(BUILD)/libstarring_cuda.so: $(CUDA_OBJ)
	@echo "  LD      $@"
	@$(NVCC) -shared -cudart static -Xcompiler -static-libstdc++,-static-libgcc -o $@ $^ -L$(CUDA_HOME)/lib64 \
	    -lcublasLt -ldl -lm -Xlinker --no-undefined,--exclude-libs,ALL,-rpath,'$$ORIGIN/lib:$$ORIGIN:$(CUDA_HOME)/lib64'

# The tests on a faked runtime use CUDA's types outside of the object.
CUDA_USERS = $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tests/cuda/*.c tests/decentral/test_decentral_nccl*.c))
$(CUDA_USERS): CFLAGS += $(CUDA_INC)

# tests/ROOM/test_MODULE_*.c link against that module and what it may use, test_job_* against all; the programs lie
# flat in $(BUILD)/tests.
TEST_SRC  := $(foreach module,kernels shared ps decentral job fuzz,$(wildcard tests/*/test_$(module)_*.c))
TEST_BINS := $(addprefix $(BUILD)/tests/,$(basename $(notdir $(TEST_SRC))))
TEST_LIBS_kernels   = $(LIB_KERNELS)
TEST_LIBS_shared    = $(LIB_PS) $(LIB_DECENTRAL) $(LIB_SHARED) $(LIB_KERNELS)
TEST_LIBS_ps        = $(LIB_PS) $(LIB_SHARED) $(LIB_KERNELS)
TEST_LIBS_decentral = $(LIB_DECENTRAL) $(LIB_SHARED) $(LIB_KERNELS)
TEST_LIBS_fuzz      = $(FUZZ_OBJ) $(LIB_PS) $(LIB_DECENTRAL) $(LIB_SHARED) $(LIB_KERNELS)
TEST_LIBS_job       = $(BUILD)/obj/tests/job/job.o $(LIB_PS) $(LIB_DECENTRAL) $(LIB_SHARED) $(LIB_KERNELS) | $(BUILD)/starring

include tests/fuzz/fuzz.mk

# Tests are compiled in a third of the time: without -ffast-math no level of optimization changes a bit of theirs.
$(BUILD)/obj/tests/%.o $(BUILD)/device/%.o $(BUILD)/emu/test_kernels_%.o: CFLAGS += -Og

# test_rule(source)
define test_rule
$(BUILD)/tests/$(basename $(notdir $(1))): $(1:%.c=$(BUILD)/obj/%.o) $(TEST_LIBS_$(word 2,$(subst _, ,$(notdir $(1)))))
endef
$(foreach source,$(TEST_SRC),$(eval $(call test_rule,$(source))))
$(TEST_BINS):
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) -o $@ $^ -lcmocka $(LDLIBS)
$(BUILD)/tests/test_decentral_mpi: LDLIBS += $(MPI_FLAGS)
$(BUILD)/tests/test_decentral_mpi: | $(MPI_USES) $(MPI_SO)

include tests/device/device.mk tests/emulation/emulation.mk tests/bits/bits.mk bundle/bundle.mk packaging/packaging.mk

.PRECIOUS: $(BUILD)/obj/%.o $(BUILD)/proto/%.pb-c.c $(BUILD)/proto/%.pb-c.h
.SECONDARY:

.PHONY: tests clean
tests: $(TEST_BINS)

clean:
	rm -rf $(BUILD)

# ---- the commands of every day. deps may install what the top of this file asks pkg-config for, so
# whoever needs it runs it first and then make again.
# `make fuzz` is in tests/fuzz/fuzz.mk.
.PHONY: help deps test check run-tests demo drill soak lab-check bench lint format docs site cuda-note
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))

help:
	@echo "make                 build $(BUILD)/starring"
	@echo "make deps            install the Debian/Ubuntu packages that building and the demo want (nothing missing: no network)"
	@echo "make test            deps and those of the tests, build and run the tests that are short; SAN=address|undefined|thread"
	@echo "make check           the same with every test (make test TESTS=long: only the long ones)"
	@echo "make cuda            $(BUILD)/libstarring_cuda.so alone, what nvcc compiles (make builds it too); four minutes on 2 cores"
	@echo "make demo            deps, build, train through every topology, report in runs/demo/"
	@echo "make docs            write docs/tour.md and docs/files.md anew from the files' first sentences and the program's figures"
	@echo "make site            these pages as a site in $(BUILD)/site, offline; wants mkdocs (.ci/deps site installs it)"
	@echo "make drill           kill processes of 500 small runs at random moments; nothing may be lost (docs/recovery.md)"
	@echo "make soak            80,000 steps through every topology: no memory, descriptor or thread may pile up"
	@echo "make lab-check       run every command of docs/lab.md and compare what it prints with what the page says"
	@echo "make bench           step, AdamW and the star's transport on this machine"
	@echo "make fuzz            hostile input to every reader and state machine, SECONDS=30 each (docs/fuzzing.md); wants clang"
	@echo "make mutations       break one rule at a time in a copy of the tree: each has a test that must fail; RULES=\"gossip late\": some of them"
	@echo "make install         program, plugins, experiments, manual pages, completion and docs below PREFIX=/usr/local (DESTDIR= before it)"
	@echo "make uninstall       take away what install has put below PREFIX"
	@echo "make deb             the same as a package of Debian or Ubuntu, in $(BUILD); packaging/Dockerfile makes images of it"
	@echo "make bundle          $(BUILD)/bundle: program, CUDA object, tests and libraries in a folder that moves"
	@echo "make gpu-check       everything that wants a real GPU; PARTS=\"facts ops\": parts of it, GPU_CHECK=--list: which there are"
	@echo "make lint            format, static analysis, layering"
	@echo "make format          apply .clang-format to every C file"
	@echo "make clean           remove $(BUILD)"
	@echo "BUILD=dir builds elsewhere; ARCH=\"x86-64-v3 sm_90\" builds for other machines (default: this one, and sm_80 sm_90)."

deps:
	@.ci/deps

# One line here names what is missing, before the compiler does. Commands that build nothing continue.
TO_BUILD := $(filter-out deps test check demo help lint format clean fuzz uninstall site,$(or $(MAKECMDGOALS),all))
TO_TEST  := $(if $(filter run-tests tests mutations fuzz-programs gpu-check bundle-parts $(BUILD)/tests/%,$(TO_BUILD)),tests)
ifneq ($(TO_BUILD),)
MISSING  := $(shell pkg-config --exists $(PKGS) zlib $(TO_TEST:tests=cmocka) 2>/dev/null && command -v protoc-c >/dev/null \
              && command -v $(firstword $(CC)) >/dev/null || .ci/deps --missing $(TO_TEST))
ifneq ($(MISSING),)
$(error starring: missing $(MISSING): run `make $(if $(TO_TEST),test,deps)`, which installs with apt-get as root or through sudo)
endif
endif

# `make cuda` builds the part that nvcc alone can compile. No test needs it: the tests of CUDA emulate it (tests/emulation).
.PHONY: cuda
cuda: $(CUDA_SO)
	@$(if $(CUDA_SO),:,echo "make cuda: nothing was built: $(if $(NVCC),CUDA=0 or a sanitizer leaves it out,no nvcc was found: NVCC=/path/to/nvcc names it)" >&2; exit 1)

all: cuda-note
cuda-note: $(CUDA_SO) | $(BUILD)/starring
	@echo "CUDA: $(if $(CUDA_SO),$(CUDA_SO) built with $(NVCC),skipped ($(if $(NVCC),left out by CUDA=0 or a sanitizer,no nvcc found)): built for CPUs only)"

TESTS := short
test:
	@.ci/deps tests
	@$(MAKE) --no-print-directory run-tests TESTS=$(TESTS)
check:
	@$(MAKE) --no-print-directory test TESTS=all

# The program and the tests that are to run are built even when one does not compile, and what was built is run. A test that is
# older than its sources is removed then, and the runner reports it as failed. A Python test is a target too: what it needs
# beside the program are its prerequisites.
PY_TESTS := $(wildcard tests/*/test_*.py)
.PHONY: $(PY_TESTS)
$(PY_TESTS):
	@:
run-tests:
	@$(MAKE) --no-print-directory $(JOBS) --keep-going $(BUILD)/starring $(MPI_SO) \
	    $$(python3 tests/run.py --list --tests $(TESTS) $(TEST_BINS) $(PY_TESTS)) || { \
	    echo "make: not everything could be built"; \
	    for test in $(TEST_BINS); do $(MAKE) --question $$test >/dev/null 2>&1 || rm -f $$test; done; }
	@STARRING="$$(cd $(BUILD) && pwd)/starring" python3 tests/run.py --tests $(TESTS) --san "$(SAN)" $(TEST_BINS) $(PY_TESTS)

# The hash that docs/demo.md names for the demo.
EXPECTED = $(shell sed -n 's/^    weights  *\([0-9a-f]\{16\}\)$$/--expect \1/p' docs/demo.md)
demo: deps
	@$(MAKE) --no-print-directory $(JOBS) $(BUILD)/starring
	@python3 experiments/compare.py --program $(BUILD)/starring --config experiments/demo.json \
	    --topologies local,ps:sync,ps:async,zero:0,zero:1,zero:2,zero:3 --workers 2 --model demo --data demo \
	    --dtype bf16 --seed 1 --decide 5% --within 160 --title "starring demo" --out runs/demo --assert-equal promised $(EXPECTED)

drill: $(BUILD)/starring
	@mkdir -p runs
	@python3 experiments/drill.py --program $(BUILD)/starring --runs 500 --json runs/drill.json

soak: $(BUILD)/starring
	@mkdir -p runs
	@python3 experiments/soak.py --program $(BUILD)/starring --json runs/soak.json

.PHONY: mutations
mutations:
	@python3 tests/mutate.py $(RULES)

lab-check: $(BUILD)/starring
	@python3 experiments/lab_check.py --program $(BUILD)/starring

bench: all
	$(BUILD)/starring bench step --model gpt2-124m --batch 4 --seq 256 --dtype fp32
	$(BUILD)/starring bench step --model gpt2-124m --batch 4 --seq 256 --dtype bf16
	$(BUILD)/starring bench adam
	$(BUILD)/starring bench ps --min-bytes 1M --max-bytes 1M

LINT_SRC = $(shell find kernels shared ps decentral tests starring.c -name '*.c' -o -name '*.h' 2>/dev/null)
format:
	clang-format -i $(LINT_SRC)

# The pages that are written from the files.
docs: $(BUILD)/starring
	docs/make_tour.py
	docs/make_files.py $(BUILD)/starring

# README.md and docs/ as a site. Strict: a link that leads nowhere, or a page outside the navigation, fails.
site:
	@command -v mkdocs >/dev/null || { echo "make site: mkdocs is missing: .ci/deps site, or apt-get install mkdocs, installs it" >&2; exit 1; }
	@mkdocs build --quiet --site-dir $(BUILD)/site
	@echo "site: $(BUILD)/site/index.html"

# cppcheck misreads vector types and arrays of structs (uninitvar) and the macros of the tests; -Wall covers the first.
lint:
	@if command -v clang-format >/dev/null; then clang-format --dry-run -Werror $(LINT_SRC); \
	    else echo "lint: skipped the format: clang-format is not installed"; fi
	@if command -v cppcheck >/dev/null; then cppcheck --quiet --error-exitcode=1 --inline-suppr --std=c11 \
	    --enable=warning,portability --suppress=missingIncludeSystem --suppress=uninitvar --suppress=invalidFunctionArg \
	    --suppress=ctuuninitvar \
	    -D'cJSON_ArrayForEach(at,of)=while((at=(of)->child))' -j $(shell nproc) -I. $(filter-out tests/%,$(filter %.c,$(LINT_SRC))); \
	    else echo "lint: skipped the static analysis: cppcheck is not installed"; fi
	@python3 tests/scripts/test_layering.py

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
