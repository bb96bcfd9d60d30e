#include "ps/net/port.h"

#include <stdarg.h>
#include <stdio.h>

int core_fail(char error[WIRE_TEXT_MAX], const char *fmt, ...) {
    va_list args;
    if (error[0]) return -1;
    va_start(args, fmt);
    vsnprintf(error, WIRE_TEXT_MAX, fmt, args);
    va_end(args);
    return -1;
}
