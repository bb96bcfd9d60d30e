# The CUDA kernels' sources compiled for the host against the headers here, and the kernel tests run
# against them. tests/emulation/test_emulation_*.c link against the kernels and the emulation.
CXX      ?= g++
EMU_DIR   = tests/emulation
# Kernels move elements of every type as words, which CUDA's compiler allows: no strict aliasing.
# The emulation runs on one thread, with stacks that the thread sanitizer cannot follow.
# kernels/cuda: what is written by hand and nothing that calls a library.
EMU_CU    = $(addprefix kernels/cuda/,norm.cu norm_bwd.cu bias_grad.cu embedding.cu rope.cu activation.cu \
            elementwise.cu xent.cu optimizer.cu reduce.cu attention.cu attention_bwd.cu)
EMU_OBJ   = $(EMU_CU:%.cu=$(BUILD)/emu/%.o) $(patsubst %.cc,$(BUILD)/emu/%.o,$(wildcard $(EMU_DIR)/*.cc))
EMU_FLAGS = $(filter-out -std=% -Wstrict-prototypes -Wmissing-prototypes -Werror=% -fopenmp \
            -fsanitize=thread,$(CFLAGS)) \
            -std=gnu++17 -I$(EMU_DIR) -Wno-unknown-pragmas \
            -fno-strict-aliasing
EMU_TESTS = $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(wildcard $(EMU_DIR)/test_emulation_*.c)))

$(BUILD)/emu/%.o: %.cu Makefile $(EMU_DIR)/emulation.mk
	@mkdir -p $(@D)
	@echo "  CXX     $< (emulation)"
	@$(CXX) $(EMU_FLAGS) -MMD -MP -x c++ -c -o $@ $<
$(BUILD)/emu/%.o: %.cc Makefile $(EMU_DIR)/emulation.mk
	@mkdir -p $(@D)
	@echo "  CXX     $<"
	@$(CXX) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/libemulation.a: $(EMU_OBJ)
$(BUILD)/tests/test_emulation_%: $(BUILD)/obj/tests/emulation/test_emulation_%.o $(BUILD)/libemulation.a $(LIB_KERNELS)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) -o $@ $^ -lcmocka -lstdc++ $(LDLIBS)

TEST_BINS += $(EMU_TESTS)
tests: $(EMU_TESTS)
