# The kernel tests that compare operations with the reference, a family of operations each: tests/kernels/
# test_kernels_FAMILY.c. They are also built to run on a real device (here) and in emulation (tests/emulation).
KERNEL_FAMILIES = activation attention codec embedding matmul norm onebit optimizer reduce xent

# On a real device, through the backend's table. They are built with the tests and run by `make gpu-check`;
# test_device.py runs them where there is no GPU.
DEVICE_TESTS = $(KERNEL_FAMILIES:%=$(BUILD)/tests/device/test_device_%)

$(BUILD)/device/test_kernels_%.o: tests/kernels/test_kernels_%.c Makefile tests/device/device.mk
	@mkdir -p $(@D)
	@echo "  CC      $< (device)"
	@$(CC) $(CFLAGS) -include tests/device/device_ops.h -MMD -MP -c -o $@ $<
$(BUILD)/tests/device/test_device_%: $(BUILD)/device/test_kernels_%.o $(BUILD)/obj/tests/device/device_ops.o $(LIB_KERNELS)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) -o $@ $^ -lcmocka $(LDLIBS)

tests/device/test_device.py tests/device/test_gpu_check.py: | $(DEVICE_TESTS) $(BUILD)/tests/test_shared_parity
tests: $(DEVICE_TESTS)
