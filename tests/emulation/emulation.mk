# The CUDA kernels' sources compiled for the host against the headers in gpu/, and the kernel tests run against them:
# every family of tests/device/device.mk but the matrix product, which is cuBLASLt's. There the number of threads
# that a case tries is an order of blocks and threads (gpu/emulation.h). tests/emulation/test_emulation_*.c link
# against the kernels and the emulation.
CXX      ?= g++
EMU_DIR   = tests/emulation
# Kernels move elements of every type as words, which CUDA's compiler allows: no strict aliasing.
# The emulation runs on one thread, with stacks that the thread sanitizer cannot follow.
# kernels/cuda: what is written by hand and nothing that calls a library. The objects also go into the
# shared object below.
EMU_OBJ   = $(CUDA_CU:%.cu=$(BUILD)/emu/%.o) \
            $(patsubst %.cc,$(BUILD)/emu/%.o,$(wildcard $(EMU_DIR)/*.cc $(EMU_DIR)/gpu/*.cc))
EMU_FLAGS = $(filter-out -std=% -Wstrict-prototypes -Wmissing-prototypes -Werror=% \
            -fsanitize=thread,$(CFLAGS)) \
            -std=gnu++17 -I$(EMU_DIR)/gpu -Wno-unknown-pragmas \
            -fno-strict-aliasing -fPIC -ftls-model=initial-exec
EMU_FAMILIES = $(filter-out matmul,$(KERNEL_FAMILIES))
EMU_OWN   = $(basename $(notdir $(wildcard $(EMU_DIR)/test_emulation_*.c)))
EMU_TESTS = $(addprefix $(BUILD)/tests/,$(EMU_OWN) $(EMU_FAMILIES:%=test_emulation_%))

$(BUILD)/emu/%.o: %.cu Makefile $(EMU_DIR)/emulation.mk
	@mkdir -p $(@D)
	@echo "  CXX     $< (emulation)"
	@$(CXX) $(EMU_FLAGS) -MMD -MP -x c++ -c -o $@ $<
$(BUILD)/emu/%.o: %.cc Makefile $(EMU_DIR)/emulation.mk
	@mkdir -p $(@D)
	@echo "  CXX     $<"
	@$(CXX) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/libemulation.a: $(EMU_OBJ)
$(BUILD)/emu/test_kernels_%.o: tests/kernels/test_kernels_%.c Makefile $(EMU_DIR)/emulation.mk
	@mkdir -p $(@D)
	@echo "  CC      $< (emulation)"
	@$(CC) $(CFLAGS) -include $(EMU_DIR)/gpu/emulation.h -DKT_OPS=emu_ops -MMD -MP -c -o $@ $<
$(EMU_FAMILIES:%=$(BUILD)/tests/test_emulation_%): $(BUILD)/tests/test_emulation_%: $(BUILD)/emu/test_kernels_%.o
$(EMU_OWN:%=$(BUILD)/tests/%): $(BUILD)/tests/%: $(BUILD)/obj/$(EMU_DIR)/%.o
$(EMU_TESTS): $(BUILD)/libemulation.a $(LIB_KERNELS)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka -lstdc++ $(LDLIBS)

TEST_BINS += $(EMU_TESTS)
tests: $(EMU_TESTS)

# ---- the emulated plugin: the program with --device cuda, without a GPU (driver/driver.c says what it is). A
# folder for LD_LIBRARY_PATH; the backend's objects are those of the real one. cuDNN is a library without
# functions, so that one that is installed is not taken. Left out of the thread sanitizer's build, which cannot
# follow fibers.
EMULATED    = $(BUILD)/tests/emulated
EMULATED_SO = $(addprefix $(EMULATED)/,libcuda.so.1 libstarring_cuda.so libnccl.so.2 libcudnn.so.9)
EMU_DRIVER  = $(patsubst %.c,$(BUILD)/emu/%.o,$(wildcard $(EMU_DIR)/driver/driver*.c))
EMU_PLUGIN  = $(CUDA_C:%.c=$(BUILD)/cuda/%.o) $(CUDA_CU:%.cu=$(BUILD)/emu/%.o) \
              $(patsubst %,$(BUILD)/emu/$(EMU_DIR)/%.o,driver/blas gpu/emulation gpu/fiber)
EMU_NCCL    = $(patsubst %.c,$(BUILD)/emu/%.o,$(wildcard $(EMU_DIR)/nccl/*.c))
EMU_LINK    = $(CC) -shared -Wl,--no-undefined,-Bsymbolic $(filter -fsanitize=%,$(CFLAGS)) -o $@ $^

$(BUILD)/emu/%.o: %.c Makefile $(EMU_DIR)/emulation.mk
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(CFLAGS) $(CUDA_INC) -fPIC -MMD -MP -c -o $@ $<
$(EMULATED)/libcuda.so.1: $(EMU_DRIVER)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(EMU_LINK) -Wl,-soname,libcuda.so.1 -pthread
$(EMULATED)/libstarring_cuda.so: $(EMU_PLUGIN) $(EMULATED)/libcuda.so.1
	@echo "  LD      $@"
	@$(EMU_LINK) -Wl,-rpath,'$$ORIGIN' -lstdc++ -lm -ldl -pthread
$(EMULATED)/libnccl.so.2: $(EMU_NCCL) $(EMULATED)/libcuda.so.1
	@echo "  LD      $@"
	@$(EMU_LINK) -Wl,-soname,libnccl.so.2,-rpath,'$$ORIGIN' -pthread
$(EMULATED)/libcudnn.so.9:
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@echo | $(CC) -shared -Wl,-soname,libcudnn.so.9 -o $@ -x c -

# The driver and NCCL by themselves; these programs contain them.
EMU_SELF    = $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(wildcard $(EMU_DIR)/test_emulated_*.c)))
$(EMU_SELF:$(BUILD)/tests/%=$(BUILD)/obj/$(EMU_DIR)/%.o): CFLAGS += $(CUDA_INC)
$(BUILD)/tests/test_emulated_%: $(BUILD)/obj/$(EMU_DIR)/test_emulated_%.o $(EMU_DRIVER) $(EMU_NCCL) $(BUILD)/emu/$(EMU_DIR)/driver/blas.o
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) -o $@ $^ -lcmocka $(LDLIBS)

# Our declarations of what is CUDA's, and those of the headers that are installed.
$(BUILD)/emu/facts_ours.o:      FACTS_FLAGS = -I$(CUDA_STANDIN) -DSTANDIN
$(BUILD)/emu/facts_installed.o: FACTS_FLAGS = $(filter-out -idirafter $(CUDA_STANDIN),$(CUDA_INC))
$(BUILD)/emu/facts_%.o: $(EMU_DIR)/header_facts.c Makefile $(EMU_DIR)/emulation.mk
	@mkdir -p $(@D)
	@echo "  CC      $< ($*)"
	@$(CC) $(CFLAGS) $(FACTS_FLAGS) -DFACTS=facts_$* -MMD -MP -c -o $@ $<
$(BUILD)/tests/test_emulated_headers: $(BUILD)/emu/facts_ours.o $(BUILD)/emu/facts_installed.o

ifneq ($(SAN),thread)
TEST_BINS += $(EMU_SELF)
tests: $(EMULATED_SO) $(EMU_SELF)
$(filter $(addprefix $(BUILD)/tests/test_,job_% decentral_cuda decentral_mpi),$(TEST_BINS)): | $(EMULATED_SO)
$(wildcard $(addprefix tests/,device/test_*.py scripts/test_files.py recovery/test_resume.py)): | $(EMULATED_SO)
else
TEST_BINS := $(filter-out $(addprefix $(BUILD)/tests/test_,job_cuda% decentral_cuda),$(TEST_BINS))
endif
