// Dense figures: NVIDIA prints most of them with 2:4 sparsity, which is twice as much. Boards of one name
// differ in clocks and power (PCIe, NVL, laptops), and a MIG slice is a part of one: a name counts only where
// it says which board it is.
#include "shared/device/datasheet.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static const struct peak {
    const char *name;
    bool begins;  // or more follows the name, which changes nothing
    double flops;
    const char *source;
} peaks[] = {
    {"NVIDIA A100", true, 312e12, "NVIDIA A100 datasheet"},
    {"NVIDIA H100 80GB HBM3", false, 989.4e12, "NVIDIA H100 architecture whitepaper, SXM5"},
    {"NVIDIA H100 PCIe", false, 756e12, "NVIDIA H100 architecture whitepaper, PCIe"},
    {"NVIDIA H200", false, 989.4e12, "NVIDIA H200 datasheet, SXM (1,979 with sparsity)"},
    {"NVIDIA B200", false, 2250e12, "NVIDIA Blackwell architecture brief, HGX B200"},
    {"NVIDIA L40S", false, 362.05e12, "NVIDIA L40S datasheet"},
    {"NVIDIA GeForce RTX 4090", false, 165.2e12, "NVIDIA Ada GPU architecture whitepaper, fp32 accumulation"},
};

double datasheet_flops(const char *device_name, enum dtype dt, const char **source) {
    *source = "the table of datasheets has 16-bit rates only";
    if (dt != DT_BF16 && dt != DT_F16) return 0;
    *source = "the table of datasheets does not have this device";
    if (strstr(device_name, "MIG")) return 0;
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
        const struct peak *p = &peaks[i];
        bool same =
            p->begins ? !strncmp(device_name, p->name, strlen(p->name)) : !strcmp(device_name, p->name);
        if (!same) continue;
        *source = p->source;
        return p->flops;
    }
    return 0;
}
