#include "shared/memory/prediction.h"

#include <string.h>

#include "shared/model/model.h"
#include "shared/train/batch_feed.h"

int prediction_of_rank(const struct job *j, const char *role, int rank, struct prediction *out) {
    *out = (struct prediction){0};
    if (j->config->row->predict(j->config, j->layout, role, rank, out)) return -1;
    if (strcmp(role, "worker") != 0) return 0;
    size_t model_bytes[MEM_CLASSES];
    struct model_options m = train_model_options(j->config, &j->spec, j->layout);
    model_predict(&m, model_bytes);
    batch_feed_predict(j->config, j->config->device == DEVICE_CUDA, model_bytes);
    for (int c = 0; c < MEM_CLASSES; c++) out->memory.predicted_bytes[c] += model_bytes[c];
    return 0;
}
