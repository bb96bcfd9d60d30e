# starring: build, test, demo, bench, lint, deps - one command each. `make help` lists them.
#
#   make               build/starring
#   make test          install what is missing, build, run every test
#   make SAN=address|undefined|thread test
#   make demo          train one model through every topology and compare (runs/demo/)
#
# BUILD=dir puts everything elsewhere; ARCH= overrides -march (e.g. ARCH=x86-64-v3 for another machine).

CC      ?= gcc
SAN     ?=
BUILD   ?= build$(if $(SAN),/$(SAN))
ARCH    ?= native
MAKEFLAGS += --no-builtin-rules

PKGS     = libzmq libprotobuf-c libcjson libxxhash
MPI_CFLAGS := $(shell pkg-config --cflags ompi-c 2>/dev/null)
MPI_LIBS   := $(shell pkg-config --libs ompi-c 2>/dev/null)
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)

# -ffp-contract=off: fused multiply-adds are written out, so that every topology and compiler rounds alike.
CFLAGS  = -std=gnu17 -O3 -g -march=$(ARCH) -ffp-contract=off -fno-math-errno -fno-trapping-math \
          -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror=implicit-function-declaration \
          -pthread -I. -I$(BUILD) $(PKG_CFLAGS) $(MPI_CFLAGS)
LDLIBS  = $(PKG_LIBS) $(MPI_LIBS) -ldnnl -lm -ldl -pthread
ifeq ($(SAN),thread)
# OpenMP's barriers are invisible to the thread sanitizer: pragmas off, streams and sockets watched.
CFLAGS  += -Wno-unknown-pragmas
else
CFLAGS  += -fopenmp
LDLIBS  += -fopenmp
endif
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

# One static library a module: what may link against what is the layering.
src      = $(wildcard $(1)/*.c $(1)/*/*.c)
objs     = $(patsubst %.c,$(BUILD)/obj/%.o,$(call src,$(1)))
LIB_KERNELS   = $(BUILD)/libkernels.a
LIB_SHARED    = $(BUILD)/libshared.a
LIB_PS        = $(BUILD)/libps.a
LIB_DECENTRAL = $(BUILD)/libdecentral.a

.PHONY: all
all: $(BUILD)/starring

$(BUILD)/libkernels.a:   $(call objs,kernels)
$(BUILD)/libshared.a:    $(call objs,shared)
$(BUILD)/libps.a:        $(call objs,ps) $(PROTO_C:%.c=%.o)
$(BUILD)/libdecentral.a: $(call objs,decentral)
$(BUILD)/lib%.a:
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/starring: $(BUILD)/obj/starring.o $(LIB_PS) $(LIB_DECENTRAL) $(LIB_SHARED) $(LIB_KERNELS)
	$(CC) -o $@ $^ $(LDLIBS)

$(BUILD)/obj/%.o: %.c Makefile | $(PROTO_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/proto/%.pb-c.c $(BUILD)/proto/%.pb-c.h: proto/%.proto
	@mkdir -p $(BUILD)
	protoc-c --c_out=$(BUILD) $<

$(BUILD)/proto/%.o: $(BUILD)/proto/%.c
	$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

# tests/test_<module>_*.c link against that module and what it may use; tests/test_job_*.c against all.
TEST_SRC  := $(wildcard tests/test_*.c)
TEST_BINS := $(TEST_SRC:%.c=$(BUILD)/%)
TEST_HELP := $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out $(TEST_SRC),$(wildcard tests/*.c)))

$(BUILD)/tests/test_kernels_%:   $(BUILD)/obj/tests/test_kernels_%.o   $(LIB_KERNELS)
	@mkdir -p $(@D)
	$(CC) -o $@ $^ -lcmocka $(LDLIBS)
$(BUILD)/tests/test_shared_%:    $(BUILD)/obj/tests/test_shared_%.o    $(LIB_SHARED) $(LIB_KERNELS)
	@mkdir -p $(@D)
	$(CC) -o $@ $^ -lcmocka $(LDLIBS)
$(BUILD)/tests/test_ps_%:        $(BUILD)/obj/tests/test_ps_%.o        $(LIB_PS) $(LIB_SHARED) $(LIB_KERNELS)
	@mkdir -p $(@D)
	$(CC) -o $@ $^ -lcmocka $(LDLIBS)
$(BUILD)/tests/test_decentral_%: $(BUILD)/obj/tests/test_decentral_%.o $(LIB_DECENTRAL) $(LIB_SHARED) $(LIB_KERNELS)
	@mkdir -p $(@D)
	$(CC) -o $@ $^ -lcmocka $(LDLIBS)
$(BUILD)/tests/test_job_%:       $(BUILD)/obj/tests/test_job_%.o $(LIB_PS) $(LIB_DECENTRAL) $(LIB_SHARED) $(LIB_KERNELS) | $(BUILD)/starring
	@mkdir -p $(@D)
	$(CC) -o $@ $^ -lcmocka $(LDLIBS)

.PRECIOUS: $(BUILD)/obj/%.o $(BUILD)/proto/%.pb-c.c $(BUILD)/proto/%.pb-c.h
.SECONDARY:

.PHONY: tests clean
tests: $(TEST_BINS)

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
