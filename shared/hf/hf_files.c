#include "shared/hf/hf_files.h"

#include <dirent.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/files/regular_file.h"

#define SAMPLE  (64 << 10)  // bytes
#define SAMPLES 256

static int64_t add_file(XXH64_state_t *h, const char *path) {
    char *buf = xcalloc(SAMPLE, 1);
    char why[FILE_WHY_MAX];
    int64_t bytes = 0;
    int fd = file_open(path, &bytes, why);
    int64_t most = bytes > SAMPLE ? bytes - SAMPLE : 0;  // where the last sample begins
    int64_t count = (bytes + SAMPLE - 1) / SAMPLE;
    if (count > SAMPLES) count = SAMPLES;
    XXH64_update(h, &bytes, sizeof bytes);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = count > 1 ? (int64_t)((__int128)most * i / (count - 1)) : 0;
        ssize_t n = pread(fd, buf, SAMPLE, at);
        if (n > 0) XXH64_update(h, buf, (size_t)n);
    }
    if (fd >= 0) close(fd);
    free(buf);
    return bytes;
}

char *hf_files_identity(const char *dir) {
    struct dirent **names = NULL;
    int n = scandir(dir, &names, NULL, alphasort), files = 0;
    int64_t bytes = 0;
    XXH64_state_t *h = XXH64_createState();
    XXH64_reset(h, 0);
    for (int i = 0; i < n; i++) {
        if (ends_with(names[i]->d_name, ".safetensors")) {
            char *path = xasprintf("%s/%s", dir, names[i]->d_name);
            XXH64_update(h, names[i]->d_name, strlen(names[i]->d_name) + 1);
            bytes += add_file(h, path);
            files++;
            free(path);
        }
        free(names[i]);
    }
    free(names);
    uint64_t hash = XXH64_digest(h);
    XXH64_freeState(h);
    return files ? xasprintf("%d file%s, %lld bytes, xxh64 %016llx", files, files == 1 ? "" : "s",
                             (long long)bytes, (unsigned long long)hash)
                 : NULL;
}
