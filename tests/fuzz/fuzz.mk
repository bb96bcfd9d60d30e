# `make fuzz`: each target of tests/fuzz for SECONDS seconds, FUZZ_JOBS (2) at once, with clang's libFuzzer and its address and
# undefined-behaviour sanitizers. A build of its own in $(BUILD)/fuzz; what is found, and the inputs that reach more than
# corpus/ does, lie in $(BUILD)/fuzz/found. TARGETS="wire star": these alone. SEED=N: the same inputs in the same
# order each time, as CI does. `make test` runs the corpus without clang.
FUZZ_SRC     := $(wildcard tests/fuzz/*/*.c)
FUZZ_NAMES   := $(basename $(notdir $(FUZZ_SRC)))
FUZZ_OBJ      = $(FUZZ_SRC:%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/tests/fuzz/fuzz.o
FUZZ_CC      ?= clang
FUZZ_SAN      = fuzzer-no-link,address,undefined

.PHONY: fuzz fuzz-programs
fuzz:
	@.ci/deps fuzz
	@$(MAKE) --no-print-directory $(JOBS) BUILD=$(BUILD)/fuzz CC="$(FUZZ_CC)" SAN=$(FUZZ_SAN) FUZZING=1 fuzz-programs
	@python3 tests/fuzz/run.py --programs $(BUILD)/fuzz/programs --found $(BUILD)/fuzz/found --seconds $(or $(SECONDS),30) \
	    --jobs $(or $(FUZZ_JOBS),2) --seed $(or $(SEED),0) \
	    $(TARGETS)

ifdef FUZZING
CFLAGS += -DFUZZING -Wno-unknown-attributes -fno-sanitize-recover=undefined
# fuzz_rule(source)
define fuzz_rule
fuzz-programs: $(BUILD)/programs/$(basename $(notdir $(1)))
$(BUILD)/programs/$(basename $(notdir $(1))): $(1:%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/tests/fuzz/fuzz.o \
    $(BUILD)/obj/tests/fuzz/asserts.o $(LIB_PS) $(LIB_DECENTRAL) $(LIB_SHARED) $(LIB_KERNELS)
	@mkdir -p $$(@D)
	@echo "  LD      $$@"
	@$$(CC) -o $$@ $$^ $$(LDLIBS) -fsanitize=fuzzer
endef
$(foreach source,$(FUZZ_SRC),$(eval $(call fuzz_rule,$(source))))
endif
