# One program that hashes what every CPU operation computes: with the objects of the program itself, for vectors of 16 lanes,
# and for a processor without AVX, FMA and F16C, with 8: test_bits.py wants equal lines from all. Both widths run on any
# processor; where it has no vectors of that width the compiler takes several.
BITS_SRC    = tests/bits/bits.c kernels/operations.c kernels/codec.c \
              $(addprefix kernels/cpu/,team.c ops.c scratch.c kernel_choice.c) \
              $(wildcard kernels/cpu/ops/*.c kernels/cpu/gemm/*.c)
BITS        = $(addprefix $(BUILD)/tests/bits/,own vec16 plain)
bits_objs   = $(BITS_SRC:%.c=$(BUILD)/bits/$(1)/%.o)
BITS_vec16  = -DSTARRING_VEC=16 -O1
BITS_plain  = -DSTARRING_VEC=8 -march=x86-64 -O1

$(BUILD)/tests/bits/own: $(BUILD)/obj/tests/bits/bits.o $(LIB_KERNELS)
$(foreach kind,vec16 plain,$(eval $(BUILD)/tests/bits/$(kind): $(call bits_objs,$(kind))))
$(BITS):
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) -o $@ $^ $(LDLIBS)

# bits_rule(kind)
define bits_rule
$(BUILD)/bits/$(1)/%.o: %.c Makefile tests/bits/bits.mk
	@mkdir -p $$(@D)
	@echo "  CC      $$< ($(1))"
	@$$(CC) $$(CFLAGS) -Wno-psabi $$(BITS_$(1)) -MMD -MP -c -o $$@ $$<
endef
$(foreach kind,vec16 plain,$(eval $(call bits_rule,$(kind))))

tests/bits/test_bits.py: | $(BITS)
tests: $(BITS)
