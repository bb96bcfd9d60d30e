#include "shared/command/commands.h"

#include <stdlib.h>

#include "shared/core/error.h"

static const char no_weights[] = "do not write the final weights";
static const char save_help[] = "after Ctrl-C or SIGTERM write the weights of the last finished step";
static const char scheduler_help[] = "the scheduler's address, tcp://HOST:PORT";
static const char json_help[] =
    "if it is the last to leave: print summary.json alone on stdout, not the table";
static const char role_words[] =
    "Every role of the job needs the same STARRING_JOB_KEY in its environment (starring keygen), or --insecure.\n"
    "Configuration, as all roles of the job have it, or may have it: what a role has no use for (--data of a\n"
    "server) does nothing there, so that one file or command line serves all:";
static const char rank_help[] = "which one of its role this is, 0 to their number - 1; each is given once";

static const struct cli_option train_options[] = {
    {"no-weights", NULL, NULL, no_weights, 0},
    {"save-on-interrupt", NULL, NULL, save_help, 0},
    {"force", NULL, NULL, "replace an earlier run in --out", 0},
    {"life", NULL, "K", NULL, 0},
    {"dry-run", NULL, NULL, "predict memory and bytes for any size, train nothing", 0},
    {"print-config", NULL, NULL, "print the resolved configuration, train nothing", 0},
};

const struct cli_command command_train = {
    .name = "train",
    .usage = "[-c CONFIG.json] [OPTIONS]",
    .summary =
        "Trains a model through one topology: star (ps:*: scheduler, servers and workers, each a process),\n"
        "ring (zero:0-3: ranks as threads, or as processes through mpirun), or local. Options win over\n"
        "the configuration file; --print-config shows every value. Exit status: 0 done, 1 the run failed,\n"
        "2 wrong options or configuration, 130 ended by Ctrl-C, 143 by SIGTERM: after the step in hand, with\n"
        "summary.json of the steps done; a second Ctrl-C ends at once.",
    .examples =
        "  starring train --model demo --topology ps:sync --workers 2 --servers 2 --steps 100\n"
        "  starring train --model tiny --topology zero:3 --workers 4 --dtype fp16 --out runs/a\n"
        "  starring train -c ds_config.json --topology zero:2 --workers 2 --launch mpi\n"
        "  starring train -c job.json --out runs/long --checkpoint-every 100 --resume latest --restart 5\n"
        "  srun -N 2 --ntasks-per-node 8 starring train -c job.json --topology zero:2 --out runs/wide\n"
        "  starring train --model llama-2-7b --topology zero:3 --workers 64 --dry-run\n",
    CLI_OPTIONS(train_options),
    .configured = true,
    .trains = true,
    .often = (const char *const[]){"force", "dry-run", "print-config", NULL},
};

static const struct cli_option scheduler_options[] = {
    {"bind", NULL, "ADDRESS", "where to listen, tcp://HOST:PORT (default tcp://127.0.0.1:*)", 0},
};

const struct cli_command command_scheduler = {
    .name = "scheduler",
    .usage = "-c CONFIG.json --bind tcp://HOST:PORT",
    .summary =
        "The star's membership and commit decisions: one for a job, started first. Servers and workers of\n"
        "the same configuration connect to it. Ends when the last worker has finished. Leaves nothing in --out.",
    .examples = "  starring scheduler -c star.json --bind tcp://0.0.0.0:9000\n",
    CLI_OPTIONS(scheduler_options),
    .configured = true,
    .configured_words = role_words,
};

static const struct cli_option server_options[] = {
    {"scheduler", NULL, "ADDRESS", scheduler_help, 0},
    {"rank", NULL, "R", rank_help, 0},
    {"advertise", NULL, "HOST", "host name or tcp://HOST:PORT that workers reach this server by", 0},
    {"json", "json", NULL, json_help, 0},
    {"launched", NULL, NULL, NULL, 0},
    {"ranks", NULL, "N", NULL, 0},
    {"open", NULL, NULL, NULL, 0},
};

const struct cli_command command_server = {
    .name = "server",
    .usage = "-c CONFIG.json --scheduler tcp://HOST:PORT --rank R",
    .summary =
        "A parameter server: holds the fp32 masters and the optimizer state of its share of the model. With\n"
        "--out DIR it leaves its report there; the last role to leave prints the table.",
    .examples =
        "  starring server -c star.json --rank 0 --scheduler tcp://head:9000 --advertise node1 \\\n"
        "      --set 'parameter_server.bind=tcp://0.0.0.0:*'\n",
    CLI_OPTIONS(server_options),
    .configured = true,
    .configured_words = role_words,
};

static const struct cli_option worker_options[] = {
    {"scheduler", NULL, "ADDRESS", scheduler_help, 0},
    {"rank", NULL, "R", rank_help, 0},
    {"no-weights", NULL, NULL, no_weights, 0},
    {"save-on-interrupt", NULL, NULL, save_help, 0},
    {"force", NULL, NULL, "worker 0: replace an earlier run in --out", 0},
    {"json", "json", NULL,
     "steps go to stderr; if it is the last to leave: print summary.json alone on stdout, not the table", 0},
    {"launched", NULL, NULL, NULL, 0},
    {"ranks", NULL, "N", NULL, 0},
    {"open", NULL, NULL, NULL, 0},
    {"local-rank", NULL, "L", NULL, 0},
    {"started-by", NULL, "PROGRAM", NULL, 0},
};

const struct cli_command command_worker = {
    .name = "worker",
    .usage = "-c CONFIG.json --scheduler tcp://HOST:PORT --rank R",
    .summary =
        "A worker of the star: computes gradients, pushes them, pulls weights. Worker 0 shows the steps.\n"
        "With --out DIR each worker and server leaves its report in DIR/ranks, and the last to leave prints the\n"
        "table. Machines that share no DIR print none: copy their ranks/ into worker 0's DIR, and\n"
        "starring summary DIR merges them. Exit status: as train's.",
    .examples = "  starring worker -c star.json --rank 0 --scheduler tcp://head:9000 --out runs/star\n",
    CLI_OPTIONS(worker_options),
    .configured = true,
    .configured_words = role_words,
};

static const struct cli_option info_options[] = {
    {"vocab", NULL, "V", "check that every token is below V (default: the sidecar's, else 1048576)", 0},
    {"json", NULL, NULL, "print one JSON document", 0},
};

const struct cli_command command_data_info = {
    .name = "data info",
    .usage = "PATH",
    .summary = "Says what a text, an llm.c .bin file, or a directory of either holds.",
    .examples = "  starring data info tinyshakespeare.txt\n  starring data info demo\n",
    CLI_OPTIONS(info_options),
    .max_words = 1,
};

static const struct cli_option tokenize_options[] = {
    {"tokenizer", NULL, "NAME", "byte: a token is a byte, vocabulary 256 (default)", 0},
    {"force", NULL, NULL, "replace OUT.bin", 0},
};

const struct cli_command command_data_tokenize = {
    .name = "data tokenize",
    .usage = "[--tokenizer byte] IN OUT.bin",
    .summary =
        "Turns text into llm.c's uint16 token file (magic 20240520, version 1), a token per byte, with a sidecar\n"
        "OUT.bin.json. Tokens of a Hugging Face tokenizer are made by experiments/tokenize.py.",
    .examples =
        "  starring data tokenize book.txt book.bin\n"
        "  experiments/tokenize.py --tokenizer ./gpt2 book.txt --out book.bin\n",
    CLI_OPTIONS(tokenize_options),
    .max_words = 2,
};

static const struct cli_option wrap_options[] = {
    {"type", NULL, "TYPE", "uint16 or uint32: what the tokens of IN are, little-endian", 0},
    {"force", NULL, NULL, "replace OUT.bin", 0},
};

const struct cli_command command_data_wrap = {
    .name = "data wrap",
    .usage = "--type uint16|uint32 IN OUT.bin",
    .summary =
        "Puts llm.c's header before bare tokens, such as nanoGPT's train.bin. The tokens stay as they are, of any\n"
        "number up to 2147483647.",
    .examples = "  starring data wrap --type uint16 nanoGPT/data/openwebtext/val.bin val.bin\n",
    CLI_OPTIONS(wrap_options),
    .max_words = 2,
};

static const struct cli_option summary_options[] = {
    {"json", NULL, NULL,
     "print summary.json alone, or the facts of a run without one; \"state\" says how it stands", 0},
    {"figures", NULL, NULL, "without DIR: one JSON document of what each key of a run's files means", 0},
};

const struct cli_command command_summary = {
    .name = "summary",
    .usage = "DIR",
    .summary =
        "Prints the table of the run in DIR, or, of a run that goes on, failed or was killed, what is there.\n"
        "Overwrites nothing; writes DIR/summary.json where a finished job on many machines has none yet.\n"
        "Exit status: 0 complete, 1 failed, interrupted, dead or with damaged files, 2 no run directory, 3 running.",
    .examples = "  starring summary runs/star\n  starring summary runs/star --json | python3 -m json.tool\n",
    CLI_OPTIONS(summary_options),
    .max_words = 1,
};

static const struct cli_option evaluate_options[] = {
    {"keep-snapshots", NULL, NULL, "do not remove the snapshots that have been evaluated", 0},
    {"json", NULL, NULL, "print all evaluations of the run as one document on stdout", 0},
};

const struct cli_command command_evaluate = {
    .name = "evaluate",
    .usage = "DIR",
    .summary =
        "Evaluates the snapshots that wait in DIR/snapshots on the held-out text, alone and with all cores, into\n"
        "DIR/evals.jsonl: train does so at the end of a run by itself. For a run that was interrupted, or whose\n"
        "evaluation was. Start it where train was started, if the data was named by a relative path.\n"
        "Exit status: 0, 1 failed or a snapshot is not whole, 2 no run directory, 130 or 143 interrupted.",
    .examples =
        "  starring evaluate runs/star\n  starring evaluate runs/star --json | python3 -m json.tool\n",
    CLI_OPTIONS(evaluate_options),
    .max_words = 1,
};

static const struct cli_option keygen_options[] = {
    {"workers", NULL, "N", NULL, 0},  // both are refused: keys of earlier versions were per role
    {"servers", NULL, "S", NULL, 0},
};

const struct cli_command command_keygen = {
    .name = "keygen",
    .usage = "",
    .summary =
        "Prints the key of a job: all its processes read it from STARRING_JOB_KEY in their environment, and only who has\n"
        "it may join. train makes one for the processes that it starts itself; ranks that torchrun, srun or mpirun starts,\n"
        "and roles of a star that are started one by one, need it from you. A file that it goes to must be closed to others.",
    .examples =
        "  export STARRING_JOB_KEY=$(starring keygen)\n"
        "  (umask 077; starring keygen > job.key) && scp -p job.key node1: && export STARRING_JOB_KEY=$(cat job.key)\n",
    CLI_OPTIONS(keygen_options),
    .max_words = 1,
};

// The rates are in shared/predict/plan_search.c.
static const struct cli_option plan_options[] = {
    {"device-memory", NULL, "SIZE", "what one worker's device has, as 6G: nothing above it is proposed", 0},
    {"host-memory", NULL, "SIZE",
     "what all roles may take together of their hosts, beside GPUs' memory or with it (what this machine has left)",
     0},
    {"disk", NULL, "SIZE",
     "what all workers may put on disk together (what nvme_path, or this folder, has left)", 0},
    {"most-batch", NULL, "B", "the largest micro-batch tried (64)", 0},
    {"all", NULL, NULL, "every plan that fits, not the fastest twelve", 0},
    {"tflops", NULL, "X", "Tflop/s that products reach on one worker (0.1; --device cuda: 400)", 0},
    {"wire-rate", NULL, "GB/S", "of a rank's link, each way (2; cuda: 50)", 0},
    {"device-memory-rate", NULL, "GB/S", "bandwidth of a device's memory (10; cuda: 3000)", 0},
    {"host-memory-rate", NULL, "GB/S", "bandwidth of a host's memory per worker (10; cuda: 200)", 0},
    {"host-link-rate", NULL, "GB/S", "between host and device (10; cuda: 50)", 0},
    {"disk-rate", NULL, "GB/S", "of the disk that is offloaded to (1; cuda: 5)", 0},
    {"json", NULL, NULL, "print every plan that fits as one document", 0},
};

const struct cli_command command_plan = {
    .name = "plan",
    .usage = "--device-memory SIZE [--model M] [--workers N] [OPTIONS]",
    .summary =
        "Names what fits: topology, offload, recomputation and micro-batch, fastest first. Memory and bytes are\n"
        "those that train --dry-run predicts; times follow from rates, and only put the plans in order. Without\n"
        "--host-memory and --disk a plan is for this machine, on which its commands start every role. With\n"
        "--topology T or --batch B, plans of that one alone. Exit status: 0 something fits, 1 nothing does, 2 wrong options.",
    .examples =
        "  starring plan --model gpt2-1558m --device-memory 6G --workers 1 --dtype bf16\n"
        "  starring plan --model llama-2-7b --device cuda --device-memory 80G --workers 8 --seq 4096 --dtype bf16\n",
    CLI_OPTIONS(plan_options),
    .configured = true,
    .configured_words = "The plans have these in common, as train takes them:",
};

void commands_overview(FILE *f, const char *benches) {
    char *text = xasprintf(
        "starring: one model, two training topologies (a star or a ring), compared honestly\n\n"
        "  starring train [-c CONFIG.json] [--topology T] [--workers N] ...   train, alone or distributed\n"
        "  starring scheduler | server | worker                               the star's roles, for many machines\n"
        "  starring keygen                                                    the key of a job on many machines\n"
        "  starring bench %s\n"
        "      how fast the parts are\n"
        "  starring data info | tokenize | wrap                               what a text holds; token files\n"
        "  starring plan --device-memory SIZE                                 what fits, fastest first\n"
        "  starring summary DIR                                               a run's table again\n"
        "  starring evaluate DIR                                              held-out loss of its snapshots\n"
        "  starring generate --model RUN --prompt TEXT                        text from a run's weights\n"
        "  starring --version\n\n"
        "starring COMMAND --help lists a command's options with examples.\n\n"
        "Examples:\n"
        "  starring train --model demo --topology ps:sync --workers 2 --steps 100\n"
        "  starring train --model demo --topology zero:2 --workers 2 --steps 100 --out runs/a\n"
        "  starring generate --model runs/a --prompt \"hacker: \"\n",
        benches);
    cli_print(f, text);
    free(text);
}
