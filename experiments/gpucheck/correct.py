"""The parts that check correctness: operations, gradients, equality of topologies, memory under the sanitizer."""
import json
import os
import re
import shutil
import tempfile

from comparison import equality, runs

from .work import FAILED, NO_TIME, PASSED, SKIPPED

# (number format, ranks), the most informative first. With one rank, the topology `local` gives the expected results.
GROUPS = [("bf16", 2), ("bf16", 1)]
MORE_GROUPS = [("fp32", 2), ("fp16", 2), ("bf16", 4), ("fp32", 4)]
RINGS = ["zero:0", "zero:1", "zero:2", "zero:3"]
# A star on each medium. Over shm its memory must be page-locked: if that is refused, the run fails with the reason.
STARS = ["ps:sync over shm", "ps:sync over tcp"]
# Rings over other engines, by number of ranks. In all other rings the ranks are threads that share the GPU.
OTHER_RINGS = {1: "zero:2 over NCCL", 2: "zero:2 over MPI"}
OVER = {"NCCL": ["--collective", "nccl"], "MPI": ["--launch", "mpi"], "shm": ["--medium", "shm"], "tcp": ["--medium", "tcp"]}
RUN_LIMIT, TEST_LIMIT = 60, 60  # seconds of one run, of one test program
# Families without a library's kernels: what racecheck can say something about.
OWN_KERNELS = ["codec", "norm", "optimizer", "xent", "embedding", "reduce", "activation", "onebit"]


# ---------------------------------------------------------------- tests
def complaints(errors):
    """The first error line of each failed test, in order. cmocka writes a block per failure to standard error."""
    found, first = [], ""
    for line in errors.splitlines():
        match = re.match(r"(?:ERROR: |\[  ERROR   \] --- )(?!\[   LINE)(.*)", line)
        first = first or (match.group(1) if match else "")
        if line.endswith("error: Failure!"):
            found.append(first)
            first = ""
    return found


def test_results(outcome):
    """{test: (status, why)} from the output of a cmocka program. Its version decides whether verdicts are on standard output or error."""
    found, failed = {}, []
    for verdict, name in re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] (\w+)$", outcome.text + "\n" + outcome.errors, re.M):
        if verdict == "FAILED" and name not in failed:
            failed.append(name)
        found[name] = ({"OK": PASSED, "FAILED": FAILED, "SKIPPED": SKIPPED}[verdict], "")
    for name, why in zip(failed, complaints(outcome.errors)):
        found[name] = (FAILED, why)
    return found


def take_tests(part, label, outcome):
    """Adds a test program's results to the part as checks. A crash, a hang or a program without tests is a failed check too."""
    results = test_results(outcome)
    missing = re.search(r"^device: skipped: (.*)$", outcome.text, re.M)
    for name, (status, why) in results.items():
        if status == SKIPPED and missing:  # there is a device, so a test that found none has failed
            status, why = FAILED, missing.group(1)
        part.check(f"{label}: {name}", status, why)
    if outcome.out_of_time:
        part.check(f"{label}: the program", SKIPPED, NO_TIME)
    elif outcome.status is None or outcome.status < 0 or not results or (outcome.status and part.count(FAILED) == 0):
        part.check(f"{label}: the program", FAILED, outcome.why() if results or outcome.status else "ran no test")


def without_cudnn(folder):
    """The environment in which cuDNN cannot be loaded: LD_LIBRARY_PATH begins with a folder that has an unusable file of its name. So the
    program uses its own attention kernel."""
    path = os.path.join(folder, "libcudnn.so.9")
    with open(path, "w", encoding="utf-8"):
        pass
    return folder


def operations(checker, part):
    """Every operation against the scalar reference, on random inputs, with poisoned outputs and guard zones."""
    tests = checker.place.device_tests()
    seed = {"STARRING_TEST_SEED": str(checker.options.seed), "STARRING_TEST_SHORT": str(int(checker.options.quick))}
    part.notes.append(f"random inputs of STARRING_TEST_SEED={checker.options.seed}")
    if not tests:
        part.check("the test programs", FAILED, f"none in {checker.place.tests}: run make tests")
    for family, path in tests.items():
        if checker.left() < 1:
            part.check(family, SKIPPED, NO_TIME)
            continue
        take_tests(part, family, checker.run([path], env=seed, limit=TEST_LIMIT))
    if "attention" in tests and checker.left() > 1:
        with tempfile.TemporaryDirectory() as folder:
            paths = [without_cudnn(folder)] + [p for p in [checker.place.env.get("LD_LIBRARY_PATH")] if p]
            take_tests(part, "attention without cuDNN",
                       checker.run([tests["attention"]], env={**seed, "LD_LIBRARY_PATH": ":".join(paths)}, limit=TEST_LIMIT))


def attention(checker, part):
    """Steps of a small model in 16 bits: checks that cuDNN computes attention, and reports its reason if it does not."""
    for dtype in ("bf16", "fp16"):
        log = os.path.join(checker.out, "logs", f"attention-cudnn-{dtype}.txt")
        os.makedirs(os.path.dirname(log), exist_ok=True)
        size = ["--model", "tiny", "--batch", 1, "--seq", 16] if checker.options.quick else \
            ["--model", "demo", "--batch", 2, "--seq", 128]
        outcome = checker.starring("bench", "step", "--device", "cuda", "--json", *size, "--dtype", dtype, "--steps", 1, "--matmul", 64,
                                   env={"CUDNN_LOGLEVEL_DBG": "2", "CUDNN_LOGDEST_DBG": log})
        if not outcome.ok:
            part.check(f"{dtype}: a step", outcome.verdict, outcome.why())
            continue
        part.check(f"{dtype}: a step", PASSED)
        device = json.loads(outcome.text)["device"]
        part.figure(dtype, **{k: v for k, v in device.items() if k.startswith("attention_")})
        ran = {device["attention_forward"], device["attention_backward"]}
        why = "; ".join(device.get("notes") or []) or f"it was {' and '.join(sorted(map(str, ran)))}, without a reason"
        if checker.facts.get("cudnn") is None:
            part.check(f"{dtype}: attention by cuDNN", SKIPPED, f"cuDNN is not there: {checker.facts.get('cudnn_missing')}")
            part.finding(f"attention in {dtype} takes our own kernel: {checker.facts.get('cudnn_missing')}")
        else:
            part.expect(f"{dtype}: attention by cuDNN", ran == {"cudnn"}, f"{why} (cuDNN's own words: {log})")


def parity(checker, part):
    """Logits, losses, gradients and ten steps of three small models, as PyTorch computed them in fp64."""
    path = os.path.join(checker.place.tests, "test_shared_parity")
    if not os.path.exists(path):
        part.check("the test program", FAILED, f"there is no {path}: run make tests")
        return
    take_tests(part, "PyTorch's vectors", checker.run([path], env={"STARRING_TEST_DEVICE": "cuda"}))


# ---------------------------------------------------------------- topologies
class NoRun(Exception):
    """A run that failed or cannot be made. status: of its check; why: the reason."""

    def __init__(self, status, why):
        super().__init__(why)
        self.status, self.why = status, why


class Trainer:
    """Short training runs on the device, kept in OUT/runs."""

    def __init__(self, checker):
        self.checker = checker
        quick = checker.options.quick
        self.model = "tiny" if quick else "demo"
        self.size = ["--batch", 2 if quick else 8, "--seq", 32 if quick else 128, "--steps", 3 if quick else 8]

    def run(self, name, label, dtype, ranks):
        """The finished run of a topology, or of "TOPOLOGY over ENGINE". Raises NoRun, with the reason, if there is none."""
        topology, _, over = label.partition(" over ")
        folder = os.path.join(self.checker.out, "runs", name.replace(":", "-").replace(" ", "-"))
        shutil.rmtree(folder, ignore_errors=True)
        argv = ["train", "--topology", topology, "--model", self.model, "--data", "demo", "--dtype", dtype, "--device", "cuda",
                "--seed", 1, "--set", "gradient_clipping=1.0", "--set", "eval_batches=1", "--quiet", "--no-weights",
                "--out", folder, *self.size]
        argv += [] if topology == "local" else ["--workers", ranks]
        argv += ["--servers", 2] if topology.startswith("ps:") else []
        argv += OVER[over] if over else []
        outcome = self.checker.starring(*argv, limit=RUN_LIMIT)
        if not outcome.ok:
            raise NoRun(outcome.verdict, outcome.why())
        try:
            run = runs.load(name, folder)
        except runs.RunError as e:
            raise NoRun(FAILED, str(e)) from None
        run.label = label
        if run.device != "cuda":
            raise NoRun(FAILED, f"it ran on {run.device}")
        if over in ("shm", "tcp") and run.medium != over:
            raise NoRun(FAILED, f"its payloads went over {run.medium}")
        return run


def check_memory(part, name, run):
    """Checks that the predicted bytes of every rank and class equal the measured ones."""
    wrong = [f"{m.get('role')} {m.get('rank')}, {c}: predicted {m['predicted'].get(c)}, counted {n}"
             for m in run.memory or [] for c, n in m["peak"].items() if m["predicted"].get(c) != n]
    part.expect(f"{name}: memory as predicted, to the byte", not wrong and bool(run.memory), "; ".join(wrong[:3]) or "none reported")


def missing_for(place, label):
    """The library or program that is missing on this machine for a run with this label; "" if none is."""
    if label.endswith("MPI") and not shutil.which("mpirun", path=place.env.get("PATH")):
        return "there is no mpirun"
    if label.endswith("NCCL") and any(n.startswith("libnccl") and not f for n, f, _ in place.libraries):
        return "libnccl.so.2 was not found"
    return ""


def check_group(trainer, part, dtype, ranks):
    """Checks that all topologies of one format and number of ranks have the same loss at each step and the same weights."""
    labels = (["local"] if ranks == 1 else []) + RINGS + (STARS if dtype == "bf16" else STARS[:1])
    labels += [OTHER_RINGS[ranks]] if ranks in OTHER_RINGS and dtype == "bf16" else []
    reference = None
    for label in labels:
        name = f"{dtype}, {ranks} rank{'s' * (ranks > 1)}: {label}"
        lacks = missing_for(trainer.checker.place, label)
        if lacks:
            part.check(name, SKIPPED, lacks)
            continue
        if trainer.checker.left() < 2:
            part.check(name, SKIPPED, NO_TIME)
            continue
        try:
            run = trainer.run(name, label, dtype, ranks)
        except NoRun as e:
            part.check(name, e.status, e.why)
            continue
        check_memory(part, name, run)
        if reference is None:
            reference = run
            part.check(name, PASSED, weights_hash=run.weights_hash, losses=run.losses)
            check_repeats(trainer, part, run, dtype, ranks)
            continue
        difference = equality.first_difference(reference, run)
        part.check(f"{name} = {reference.label}", FAILED if difference else PASSED,
                   difference[1] if difference else "", weights_hash=run.weights_hash)


def check_repeats(trainer, part, first, dtype, ranks):
    """Checks that a second run of the same topology gives the same bits."""
    name = f"{dtype}, {ranks} rank{'s' * (ranks > 1)}: {first.label} again"
    if trainer.checker.left() < 2:
        part.check(name, SKIPPED, NO_TIME)
        return
    try:
        again = trainer.run(name, first.label, dtype, ranks)
    except NoRun as e:
        part.check(name, e.status, e.why)
        return
    difference = equality.first_difference(first, again)
    part.check(name, FAILED if difference else PASSED, difference[1] if difference else "")


def check_groups(checker, part, groups):
    trainer = Trainer(checker)
    for dtype, ranks in groups:
        if checker.left() < 2:
            part.check(f"{dtype}, {ranks} ranks", SKIPPED, NO_TIME)
            continue
        check_group(trainer, part, dtype, ranks)


def bits(checker, part):
    """bf16 with 2 ranks and with 1: star and ring are equal to the bit, runs are repeatable, memory is as predicted; over NCCL and MPI if installed."""
    check_groups(checker, part, GROUPS)


def more_bits(checker, part):
    """The same in the other number formats, and with 4 ranks on the GPU."""
    check_groups(checker, part, MORE_GROUPS[:1] if checker.options.quick else MORE_GROUPS)


# ---------------------------------------------------------------- compute-sanitizer
def sanitizer_path():
    return shutil.which("compute-sanitizer") or next(
        (p for p in ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
         if os.access(p, os.X_OK)), None)


def sanitize(checker, part, tool, families):
    path, tests = sanitizer_path(), checker.place.device_tests()
    if not path:
        part.check(tool, SKIPPED, "compute-sanitizer is not installed (it comes with the CUDA toolkit)")
        return
    env = {"STARRING_TEST_SHORT": "1", "STARRING_TEST_GUARD": "0", "STARRING_TEST_SEED": str(checker.options.seed)}
    for family in [f for f in families if f in tests]:
        if checker.left() < 3:
            part.check(family, SKIPPED, NO_TIME)
            continue
        outcome = checker.run([path, "--tool", tool, "--error-exitcode", "99", tests[family]], env=env)
        summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: .*", outcome.text + outcome.errors)
        if outcome.out_of_time:
            part.check(family, SKIPPED, f"{NO_TIME} after {outcome.seconds:.0f} s")
        elif outcome.status == 0 and summary:
            part.check(family, PASSED, summary.group(0))
        else:
            part.check(family, FAILED, summary.group(0) if summary else outcome.why())


def memcheck(checker, part):
    """Finds reads and writes outside of allocations, and misaligned ones."""
    sanitize(checker, part, "memcheck", OWN_KERNELS + ["attention", "matmul"])


def racecheck(checker, part):
    """Finds threads of a block that access the same shared memory without a barrier between them."""
    sanitize(checker, part, "racecheck", OWN_KERNELS)
