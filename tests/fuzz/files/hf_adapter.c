// peft's adapter_config.json, over models of two families. An accepted one has adapters, a layout can be made of it, and it is
// accepted as this program writes it, as the same.
#include "shared/hf/hf_adapter.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/hf/families.h"
#include "shared/model/layout.h"
#include "tests/fuzz/fuzz.h"

static struct model_spec small(const char *type) {
    struct model_spec s = {
        .name = "small", .vocab = 4, .channels = 4, .layers = 2, .heads = 2, .kv_heads = 2};
    s.head_size = 2;
    s.ffn = 6;
    s.max_positions = 8;
    s.traits = hf_family_named(type, NULL)->traits;
    memcpy(s.hf_type, type, strlen(type));
    return s;
}

FUZZ_TARGET(hf_adapter) {
    struct fuzz_bytes in = {data, size};
    struct model_spec spec = small(fuzz_below(&in, 2) ? "gpt2" : "llama"), again = spec;
    fuzz_put(ADAPTER_CONFIG, in.p, in.left);
    error_clear();
    int rc = hf_adapter_read(fuzz_dir(), &spec);
    FUZZ_CHECK(rc == 0 || error_last()[0], "refused in silence");
    free(hf_adapter_base(fuzz_dir()));
    if (rc) return;
    FUZZ_CHECK(spec.lora.r > 0 && spec.lora.alpha > 0, "accepted without an adapter");
    cJSON *root = hf_adapter_json(&spec, "base");
    char *text = cJSON_Print(root);
    fuzz_put(ADAPTER_CONFIG, text, strlen(text));
    FUZZ_CHECK(hf_adapter_read(fuzz_dir(), &again) == 0, "as written it is refused: %s\n%s", error_last(),
               text);
    FUZZ_CHECK(!memcmp(&spec.lora, &again.lora, sizeof spec.lora), "read as another adapter:\n%s", text);
    struct layout *l = model_layout_create(&spec, 3);
    FUZZ_CHECK(l && l->model && l->params > 0, "no layout");
    layout_destroy(&l);
    free(text);
    cJSON_Delete(root);
}
