#include "shared/core/version.h"

#include <stddef.h>

const char *starring_revision = NULL;
