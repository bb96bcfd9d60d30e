# `make bundle`: the program, the CUDA object, the tests that gpu-check runs and every library that a bare CUDA
# machine lacks, in one folder that runs from anywhere. `make gpu-check`: everything that wants a real GPU, or those
# parts of it that PARTS names; GPU_CHECK holds options.
BUNDLE       ?= $(BUILD)/bundle
BUNDLE_BUILD ?= $(BUILD)/bundle-build
# Not this machine's vector instructions but those of the last ten years, unless ARCH= is given.
BUNDLE_ARCH   = $(if $(filter file,$(origin ARCH)),x86-64-v3,$(ARCH))
BUNDLE_TESTS  = $(DEVICE_TESTS) $(KERNEL_FAMILIES:%=$(BUILD)/tests/test_kernels_%) $(BUILD)/tests/test_shared_parity

# DT_RPATH, not DT_RUNPATH: the libraries' own libraries are looked for there as well.
ifdef BUNDLED
LDLIBS += -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib:$$ORIGIN/../../lib'
endif

.PHONY: bundle bundle-parts gpu-check
tests/scripts/test_bundle.py: | $(BUILD)/tests/test_kernels_reduce
bundle-parts: $(BUILD)/starring $(CUDA_SO) $(BUNDLE_TESTS)
	@python3 bundle/make_bundle.py --build $(BUILD) --out $(BUNDLE) $(BUNDLE_TESTS)

bundle:
	@$(MAKE) --no-print-directory $(JOBS) BUNDLED=1 BUILD=$(BUNDLE_BUILD) BUNDLE=$(BUNDLE) ARCH=$(BUNDLE_ARCH) bundle-parts

gpu-check: all $(DEVICE_TESTS) $(BUILD)/tests/test_shared_parity
	@python3 experiments/gpu_check.py --build $(BUILD) $(GPU_CHECK) $(PARTS)
