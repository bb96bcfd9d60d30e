# The kernel tests' cases as programs that run them on a real device, through the backend's table. They are built
# with the tests and run by `make gpu-check`; test_device.py runs them where there is no GPU.
DEVICE_TESTS = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/device/test_device_*.c))

$(BUILD)/tests/device/test_device_%: $(BUILD)/obj/tests/device/test_device_%.o $(BUILD)/obj/tests/device/device_ops.o $(LIB_KERNELS)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) -o $@ $^ -lcmocka $(LDLIBS)

tests: $(DEVICE_TESTS)
