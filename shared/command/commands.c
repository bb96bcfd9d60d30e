#include "shared/command/commands.h"

#include <stdlib.h>

#include "shared/core/error.h"

static const char no_weights[] = "do not write the final weights";
static const char save_help[] = "after Ctrl-C or SIGTERM write the weights of the last finished step";
static const char scheduler_help[] = "the scheduler's address, tcp://HOST:PORT";
static const char json_help[] =
    "if this role is the last to leave, print only summary.json on stdout, not the table";
static const char role_words[] =
    "Every role of the job needs the same STARRING_JOB_KEY in its environment (starring keygen), or --insecure.\n"
    "All roles of the job take the same configuration. A role ignores what it has no use for (a server: --data),\n"
    "so one file or command line serves all:";
static const char rank_help[] = "this role's number, from 0; each number is given once";

static const struct cli_option train_options[] = {
    {"no-weights", NULL, NULL, no_weights, 0},
    {"save-on-interrupt", NULL, NULL, save_help, 0},
    {"force", NULL, NULL, "replace an earlier run in --out", 0},
    {"life", NULL, "K", NULL, 0},
    {"dry-run", NULL, NULL, "predict memory and bytes, of any size; train nothing", 0},
    {"print-config", NULL, NULL, "print the resolved configuration, train nothing", 0},
};

const struct cli_command command_train = {
    .name = "train",
    .usage = "[-c CONFIG.json] [OPTIONS]",
    .summary =
        "Trains a model through one topology: a star (ps:*: servers and workers, each a process, and a scheduler),\n"
        "a ring (zero:0-3 and gossip: ranks as processes or threads), or local (one process). Options override the\n"
        "configuration file; --print-config shows every value. Ctrl-C ends a run after its current step, with\n"
        "summary.json; a second Ctrl-C ends it at once. Exit status: 0 done, 1 the run failed, 2 wrong options or\n"
        "configuration, 130 ended by Ctrl-C, 143 by SIGTERM.",
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
        "Runs a star's scheduler, which decides members and steps: one per job, started first. Servers and workers with\n"
        "the same configuration connect to it. It ends when the last worker has finished, and writes no report.",
    .examples = "  starring scheduler -c star.json --bind tcp://0.0.0.0:9000\n",
    CLI_OPTIONS(scheduler_options),
    .configured = true,
    .configured_words = role_words,
};

static const struct cli_option server_options[] = {
    {"scheduler", NULL, "ADDRESS", scheduler_help, 0},
    {"rank", NULL, "R", rank_help, 0},
    {"advertise", NULL, "HOST", "host name or tcp://HOST:PORT at which workers reach this server", 0},
    {"json", "json", NULL, json_help, 0},
    {"launched", NULL, NULL, NULL, 0},
    {"ranks", NULL, "N", NULL, 0},
    {"open", NULL, NULL, NULL, 0},
};

const struct cli_command command_server = {
    .name = "server",
    .usage = "-c CONFIG.json --scheduler tcp://HOST:PORT --rank R",
    .summary =
        "Runs a parameter server, which holds the fp32 masters and the optimizer state of its share of the model. With\n"
        "--out DIR it writes its report there; the last role to leave prints the table.",
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
     "steps go to stderr; if this role is the last to leave, print only summary.json on stdout, not the table",
     0},
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
        "Runs a worker of a star, which computes gradients, pushes them and pulls weights. Worker 0 prints the steps.\n"
        "With --out DIR each worker and server writes its report to DIR/ranks, and the last to leave prints the\n"
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
    .summary = "Describes a text, an llm.c .bin file, or a directory of either.",
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
        "Turns text into llm.c's uint16 token file (magic 20240520, version 1), one token per byte, with a sidecar\n"
        "OUT.bin.json. Tokens of a Hugging Face tokenizer are made by experiments/tokenize.py.",
    .examples =
        "  starring data tokenize book.txt book.bin\n"
        "  experiments/tokenize.py --tokenizer ./gpt2 book.txt --out book.bin\n",
    CLI_OPTIONS(tokenize_options),
    .max_words = 2,
};

static const struct cli_option wrap_options[] = {
    {"type", NULL, "TYPE", "uint16 or uint32: the type of IN's tokens, little-endian", 0},
    {"force", NULL, NULL, "replace OUT.bin", 0},
};

const struct cli_command command_data_wrap = {
    .name = "data wrap",
    .usage = "--type uint16|uint32 IN OUT.bin",
    .summary =
        "Puts llm.c's header in front of bare tokens, such as nanoGPT's train.bin: up to 2147483647 of them, unchanged.",
    .examples = "  starring data wrap --type uint16 nanoGPT/data/openwebtext/val.bin val.bin\n",
    CLI_OPTIONS(wrap_options),
    .max_words = 2,
};

static const struct cli_option summary_options[] = {
    {"json", NULL, NULL,
     "print only summary.json, or, if the run has none, its facts; \"state\" is the run's state", 0},
    {"figures", NULL, NULL,
     "without DIR: print the meaning of each key of a run's files as one JSON document", 0},
};

const struct cli_command command_summary = {
    .name = "summary",
    .usage = "DIR",
    .summary =
        "Prints the table of the run in DIR. If the run is in progress, failed or was killed, prints what it has written.\n"
        "Overwrites nothing; writes DIR/summary.json if a finished job on many machines has none yet.\n"
        "Exit status: 0 complete, 1 failed, interrupted, dead or with damaged files, 2 no run directory, 3 running.",
    .examples = "  starring summary runs/star\n  starring summary runs/star --json | python3 -m json.tool\n",
    CLI_OPTIONS(summary_options),
    .max_words = 1,
};

static const struct cli_option evaluate_options[] = {
    {"keep-snapshots", NULL, NULL, "do not remove the snapshots after evaluating them", 0},
    {"json", NULL, NULL, "print all evaluations of the run as one document on stdout", 0},
};

const struct cli_command command_evaluate = {
    .name = "evaluate",
    .usage = "DIR",
    .summary =
        "Evaluates the snapshots in DIR/snapshots on the held-out text, with all cores, and adds the losses to\n"
        "DIR/evals.jsonl. train does this at the end of a run; use this command if the run, or its evaluation, was\n"
        "interrupted. Start it in the folder where train was started, if the data's path is relative.\n"
        "Exit status: 0, 1 failed or a snapshot is incomplete, 2 no run directory, 130 or 143 interrupted.",
    .examples =
        "  starring evaluate runs/star\n  starring evaluate runs/star --json | python3 -m json.tool\n",
    CLI_OPTIONS(evaluate_options),
    .max_words = 1,
};

static const struct cli_option keygen_options[] = {
    {"workers", NULL, "N", NULL, 0},  // refused: the keys of earlier versions were per role
    {"servers", NULL, "S", NULL, 0},
};

const struct cli_command command_keygen = {
    .name = "keygen",
    .usage = "",
    .summary =
        "Prints a new key for a job. All processes of the job read it from STARRING_JOB_KEY in their environment; a process\n"
        "without it cannot join. train makes a key for the processes that it starts. Ranks that torchrun, srun or mpirun\n"
        "starts, and roles of a star that you start one by one, need it from you. A file with the key must not be\n"
        "readable by other users.",
    .examples =
        "  export STARRING_JOB_KEY=$(starring keygen)\n"
        "  (umask 077; starring keygen > job.key) && scp -p job.key node1: && export STARRING_JOB_KEY=$(cat job.key)\n",
    CLI_OPTIONS(keygen_options),
    .max_words = 1,
};

// The rates are in shared/predict/plan_search.c.
static const struct cli_option plan_options[] = {
    {"device-memory", NULL, "SIZE", "memory of one worker's device, such as 6G: no plan needs more", 0},
    {"host-memory", NULL, "SIZE",
     "host memory that all roles may take together; on a CPU it includes the workers' (default: this machine's free memory)",
     0},
    {"disk", NULL, "SIZE",
     "disk space that all workers may take together (default: free space of nvme_path, or of this folder)",
     0},
    {"most-batch", NULL, "B", "largest micro-batch to try (64)", 0},
    {"all", NULL, NULL, "print every plan that fits, not only the fastest twelve", 0},
    {"tflops", NULL, "X", "Tflop/s of matrix products on one worker (0.1; --device cuda: 400)", 0},
    {"wire-rate", NULL, "GB/S", "bandwidth of a rank's link, each way (2; cuda: 50)", 0},
    {"device-memory-rate", NULL, "GB/S", "bandwidth of a device's memory (10; cuda: 3000)", 0},
    {"host-memory-rate", NULL, "GB/S", "bandwidth of a host's memory per worker (10; cuda: 200)", 0},
    {"host-link-rate", NULL, "GB/S", "bandwidth between host and device (10; cuda: 50)", 0},
    {"disk-rate", NULL, "GB/S", "bandwidth of the disk for offload (1; cuda: 5)", 0},
    {"json", NULL, NULL, "print every plan that fits as one document", 0},
};

const struct cli_command command_plan = {
    .name = "plan",
    .usage = "--device-memory SIZE [--model M] [--workers N] [OPTIONS]",
    .summary =
        "Lists the plans that fit: topology, offload, recomputation and micro-batch, fastest first. Memory and bytes are\n"
        "those that train --dry-run predicts. Times follow from the rates and serve only to order the plans. Without\n"
        "--host-memory and --disk a plan is for this machine, which runs every role. --topology T or --batch B limits the\n"
        "plans to that topology or batch. Exit status: 0 a plan fits, 1 none does, 2 wrong options.",
    .examples =
        "  starring plan --model gpt2-1558m --device-memory 6G --workers 1 --dtype bf16\n"
        "  starring plan --model llama-2-7b --device cuda --device-memory 80G --workers 8 --seq 4096 --dtype bf16\n",
    CLI_OPTIONS(plan_options),
    .configured = true,
    .configured_words = "All plans use these, as in train:",
};

void commands_overview(FILE *f, const char *benches) {
    char *text = xasprintf(
        "starring: one model, two training topologies (a star or a ring), compared honestly\n\n"
        "  starring train [-c CONFIG.json] [--topology T] [--workers N] ...   train one model in one topology\n"
        "  starring scheduler | server | worker                               a star's roles one by one, for many machines\n"
        "  starring keygen                                                    a key for a job on many machines\n"
        "  starring bench %s\n"
        "      measure a step, kernels, collectives, servers, files\n"
        "  starring data info | tokenize | wrap                               describe a text; write token files\n"
        "  starring plan --device-memory SIZE                                 list what fits, fastest first\n"
        "  starring summary DIR                                               print a run's table again\n"
        "  starring evaluate DIR                                              compute the held-out loss of a run's snapshots\n"
        "  starring generate --model RUN --prompt TEXT                        write text with a run's weights\n"
        "  starring --version\n\n"
        "starring COMMAND --help lists the options of a command, with examples.\n\n"
        "Examples:\n"
        "  starring train --model demo --topology ps:sync --workers 2 --steps 100\n"
        "  starring train --model demo --topology zero:2 --workers 2 --steps 100 --out runs/a\n"
        "  starring generate --model runs/a --prompt \"hacker: \"\n",
        benches);
    cli_print(f, text);
    free(text);
}
