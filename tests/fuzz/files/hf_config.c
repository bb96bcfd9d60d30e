// Hugging Face's config.json. An accepted description is a model whose layout can be made if it is small, and is
// accepted as this program writes it, as the same model.
#include "shared/hf/families.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/model/layout.h"
#include "tests/fuzz/fuzz.h"

#define LAYERS_MAX 64

FUZZ_TARGET(hf_config) {
    struct model_spec spec, again;
    char *path = fuzz_path("config.json");
    fuzz_put("config.json", data, size);
    error_clear();
    memset(&spec, 0, sizeof spec);
    int rc = hf_config_read(path, &spec);
    FUZZ_CHECK(rc == 0 || error_last()[0], "refused in silence");
    if (rc == 0) {
        cJSON *root = hf_config_json(&spec, DT_F32);
        char *text = cJSON_Print(root);
        fuzz_put("config.json", text, strlen(text));
        FUZZ_CHECK(hf_config_read(path, &again) == 0, "as written it is refused: %s\n%s", error_last(), text);
        cJSON *twice = hf_config_json(&again, DT_F32);
        char *text_again = cJSON_Print(twice);
        FUZZ_CHECK(strcmp(text, text_again) == 0, "written\n%s\nread as\n%s", text, text_again);
        free(text);
        free(text_again);
        cJSON_Delete(root);
        cJSON_Delete(twice);
        struct layout *l = spec.layers <= LAYERS_MAX ? model_layout_create(&spec, 3) : NULL;
        model_flops_per_token(&spec, 128);
        if (l) {
            FUZZ_CHECK(l->params > 0 && l->padded >= l->params, "%lld parameters, %lld padded",
                       (long long)l->params, (long long)l->padded);
            layout_destroy(&l);
        }
    }
    free(path);
}
