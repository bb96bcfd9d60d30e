// `starring keygen`: the key of a job (shared/fabric/job_key.h).
#include <sodium.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/command/commands.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/fabric/job_key.h"

// The shell opens the output file before this program runs, and others may have opened it too. So the mode is checked,
// not changed.
static int keygen(const struct topology_table *t, const struct cli_args *args) {
    struct stat out;
    struct job_key key;
    char text[JOB_KEY_TEXT];
    (void)t;
    if (args->word_count || cli_get(args, "workers") || cli_get(args, "servers")) {
        fail(
            "keygen takes no directory and no numbers: all processes of a job have one key, which it prints: " JOB_KEY_MAKE);
        return EXIT_USAGE;
    }
    if (fstat(STDOUT_FILENO, &out) == 0 && S_ISREG(out.st_mode) && out.st_mode & 0077) {
        fail(
            "keygen: others can read the file that the key would go to (mode %04o): remove it, and "
            "(umask 077; starring keygen > FILE)",
            (unsigned)out.st_mode & 07777u);
        return EXIT_RUN_FAILED;
    }
    if (job_key_make(&key)) return EXIT_RUN_FAILED;
    job_key_text(&key, text);
    job_key_forget(&key);
    puts(text);
    sodium_memzero(text, sizeof text);
    return 0;
}

int keygen_command(const struct topology_table *t, int argc, char **argv) {
    return cli_run(&command_keygen, t, argc, argv, keygen);
}
