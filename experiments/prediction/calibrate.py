"""Measures this machine for predictions, and writes its machine file.

    units     the times of forward, backward and update, from `bench step` with one process of one thread on each core; `bench kernels --model`
              gives the shares of embedding, blocks and head
    cores     the CPU time of a byte, from the rate at which all ranks together move bytes over links that are faster than this machine
    network   the share of the rate that payload reaches, the time of a message, and the latency, from `bench collective` between ranks with
              shaped links (netlab)
    server    the sum of a gradient and the update, from `bench kernels`; the time of an answer, from `bench ps`

No run is trained for the calibration, so that later predictions are of steps that were not measured.
"""
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

import tables
from netlab import lab, rate, train

from . import machine, shares
from .cases import MODELS

STEPS, ROUNDS = 25, 3
CROWD = 3                     # processes per core, to measure how crowded cores slow computing down
MATMUL = 256                  # side of the product that the bench times between steps; small, since its rate is not used
SHAPED = ("50Mbit", "200Mbit", "1Gbit")
EXCHANGING = (2, 4, 8)        # numbers of ranks
SIZES = {1 << 20: ("--iterations", "12", "--warmup", "3"), 4 << 20: ("--iterations", "6", "--warmup", "2")}   # bytes: fits in the links' queues; exceeds them
ANSWERED = 4 << 10            # bytes of a push and of its answer, whose time is measured
SHARING = 4                   # connections on one link
UNSHAPED = "100Gbit"          # a rate that this machine does not reach
EMBEDDING = {"forward": ("embed_fwd",), "backward": ("embed_bwd",)}
HEAD = {"forward": ("logits", "norm_fwd", "xent", "loss_sum"), "backward": ("logits' grad", "head's grad", "norm_bwd")}
TIMEOUT_S = 300


class CalibrationError(Exception):
    """A bench failed; the text is the bench's error."""


def bench(words, count=1):
    """Runs `count` processes of a bench at the same time, and returns their JSON documents."""
    children = [subprocess.Popen(words + ["--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for _ in range(count)]
    out = []
    for child in children:
        text, error = child.communicate(timeout=TIMEOUT_S)
        if child.returncode:
            raise CalibrationError(f"{' '.join(words)}: {error.strip() or f'exit status {child.returncode}'}")
        out.append(json.loads(text))
    return out


def fastest(runs):
    """Each operation's row from the run in which it was fastest."""
    return [min(rows, key=lambda row: row["seconds"]) for rows in zip(*runs)]


def mean(documents, value):
    return statistics.fmean(value(d) for d in documents)


# ---------------------------------------------------------------- units
def kernel_seconds(rows, names):
    """Seconds of the operations with these names, without the cost of a queue, which a bench adds to each operation separately."""
    alone = next(row["seconds"] for row in rows if row["operation"] == "busy")
    total = 0
    for name in names:
        found = [row["seconds"] for row in rows if row["operation"] == name or (row["operation"] == "matmul" and row["shape"].split(" ", 1)[1] == name)]
        if not found:
            raise CalibrationError(f"bench kernels has no operation {name}")
        total += max(0, found[0] - alone)
    return total


def units_of(program, model, batch, seq, dtype, cores, layers):
    """The section `units` of one model, and its kernels' rows."""
    words = ["--model", model, "--batch", str(batch), "--seq", str(seq), "--dtype", dtype, "--threads", "1", "--matmul", str(MATMUL)]
    # Other programs can only make a round slower, so the fastest one counts.
    steps = min((bench([program, "bench", "step", *words, "--steps", str(STEPS)], cores) for _ in range(ROUNDS)),
                key=lambda documents: mean(documents, lambda d: d["step_seconds"]))
    rows = fastest([bench([program, "bench", "kernels", *words, "--rounds", "7"])[0]["operations"] for _ in range(ROUNDS)])
    seconds = {"embedding": {}, "block": {}, "head": {}}
    for way in ("forward", "backward"):
        whole = mean(steps, lambda d: d["step_seconds"] * d[way + "_share"])
        first, last = kernel_seconds(rows, EMBEDDING[way]), kernel_seconds(rows, HEAD[way])
        seconds["embedding"][way], seconds["head"][way] = first, last
        seconds["block"][way] = (whole - first - last) / layers
    params = steps[0]["params"]
    return {"model": steps[0]["model"], "dtype": dtype, "micro_batch_size": batch, "seq_len": seq, "threads": 1, "seconds": seconds,
            "update_seconds_per_element": mean(steps, lambda d: d["step_seconds"] * d["optimizer_share"]) / params,
            "begin_seconds": mean(steps, lambda d: d["idle_seconds"])}, rows


def crowding(program, model, batch, seq, dtype, cores):
    """The slowdown of computing, beyond its share of the cores, when CROWD threads per core compute."""
    words = [program, "bench", "step", "--model", model, "--batch", str(batch), "--seq", str(seq), "--dtype", dtype, "--threads", "1", "--matmul", str(MATMUL),
             "--steps", str(STEPS)]
    few, many = (min(mean(bench(words, count), lambda d: d["step_seconds"] - d["idle_seconds"]) for _ in range(ROUNDS)) for count in (cores, CROWD * cores))
    return max(1.0, many / CROWD / few)


def layers_of(program, model, batch, seq, dtype):
    """The number of the model's blocks, from the dry run's units."""
    words = [program, "train", "--model", model, "--batch", str(batch), "--seq", str(seq), "--dtype", dtype, "--topology", "zero:1", "--workers", "2",
             "--device", "cpu", "--dry-run"]
    units = bench(words)[0]["step"]["units"]
    return sum(unit["name"].startswith("block") for unit in units)


# ---------------------------------------------------------------- links
def collective(program, bandwidth, ranks, words):
    """The rows of `bench collective` with its ranks behind links of a bandwidth. Open MPI sends its messages as in a run over tcp
    (decentral/mpi/mpi_medium.c)."""
    set_of_run = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_flags": "9"}
    before = {key: os.environ.get(key) for key in set_of_run}
    os.environ.update(set_of_run)
    try:
        with lab.Lab(rate.parse(bandwidth), [f"r{i}" for i in range(ranks)]) as made, tempfile.TemporaryFile() as log:
            child = train.start_ranks(made, ranks, [os.path.abspath(program), "bench", "collective", "--dtype", "bf16", "--json", *words], log)
            status = train.wait([child], TIMEOUT_S)
            log.seek(0)
            text = log.read().decode(errors="replace")
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
    if status != 0:
        raise CalibrationError(f"bench collective over {bandwidth}: {status}\n{text[-1000:]}")
    return json.loads(text[text.index("{"):])["rows"]


def sent(row, ranks):
    """Bytes that a rank sends in a call of all_gather or reduce_scatter."""
    return row["size"] * (ranks - 1) / ranks


def busy_seconds():
    """CPU seconds that all of this machine's cores have spent since boot, in programs and in the kernel."""
    with open("/proc/stat", encoding="ascii") as f:
        ticks = list(map(int, f.readline().split()[1:9]))
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def sockets(bandwidth, senders, seconds):
    """(bytes of each connection in every window, the cores' seconds) of plain connections that begin together (shares.py), over a lab's links."""
    hosts = ["s0"] + [f"w{i}" for i in range(senders)]
    with lab.Lab(rate.parse(bandwidth), hosts) as made, tempfile.TemporaryFile("w+") as log:
        before = busy_seconds()
        children = [made.start("s0", [sys.executable, shares.__file__, "receive", str(senders), str(seconds)], log)]
        children += [made.start(host, [sys.executable, shares.__file__, "send", made.address("s0"), str(seconds)], log) for host in hosts[1:]]
        status = train.wait(children, TIMEOUT_S)
        busy = busy_seconds() - before
        log.seek(0)
        text = log.read()
    if status != 0:
        raise CalibrationError(f"{shares.__file__}: {status}: {text}")
    return json.loads(text), busy


def byte_seconds(bandwidth):
    """CPU seconds per byte, at both ends and in the kernel's links between them. It is the difference of two durations, so that the start
    of the processes is not counted."""
    (few, least), (many, most) = (min((sockets(bandwidth, 1, seconds) for _ in range(5)), key=lambda found: found[1]) for seconds in (0.4, 2.4))
    return max(0.0, most - least) / (sum(map(sum, many)) - sum(map(sum, few)))


def waiting_share(program, byte):
    """The share of a core that a rank uses while it waits for a transfer over MPI, which polls. byte: CPU seconds per byte, which are
    subtracted."""
    ranks, found = 4, []
    for iterations in (5, 45):
        before = busy_seconds()
        row = collective(program, "50Mbit", ranks, ["--op", "all_gather", "--min-bytes", "1M", "--max-bytes", "1M", "--warmup", "3", "--iterations",
                                                    str(iterations)])[0]
        found.append((busy_seconds() - before, iterations * (row["out_of_place"]["seconds"] + row["in_place"]["seconds"]), 2 * iterations))
    (few, short, first), (many, long, last) = found
    sent = (last - first) * ranks * row["size"] * (ranks - 1) / ranks
    return max(0.0, (many - few - sent * byte) / (ranks * (long - short)))


def exchanges(program):
    """(share of the rate that payload reaches between two ranks, {bytes: {ranks: {bytes per second: share}}} of several that all send to each
    other, rows of a table)."""
    two, several, shown = [], {}, []
    for size, words in SIZES.items():
        for bandwidth in SHAPED:
            for ranks in EXCHANGING:
                found = []
                for row in collective(program, bandwidth, ranks, ["--op", "all_gather,reduce_scatter", "--min-bytes", str(size), "--max-bytes", str(size), *words]):
                    seconds = row["out_of_place"]["seconds"]
                    found.append(row["size"] * (ranks - 1) / ranks / seconds / (rate.parse(bandwidth) / 8))
                    shown.append([f"{row['operation']} of {size >> 20} MiB, {ranks} ranks", bandwidth, f"{seconds * 1e3:.1f} ms", f"{found[-1]:.3f} of the rate"])
                share = round(min(1.0, statistics.fmean(found)), 4)
                if ranks == 2:
                    two.append(share)
                else:
                    several.setdefault(str(size), {}).setdefault(str(ranks), {})[f"{rate.parse(bandwidth) / 8:.0f}"] = share
    return statistics.median(two), several, shown


def links(program, sources):
    """The sections network and cores, and the rows of a table. sources: the machine file's `sources`, to which these sections' commands are
    added."""
    reached, exchange, shown = exchanges(program)
    small = ["--op", "all_gather", "--min-bytes", "1K", "--max-bytes", "1K", "--iterations", "200"]
    few, many = (collective(program, UNSHAPED, ranks, small)[0]["out_of_place"]["seconds"] for ranks in (2, 8))
    message = max(0.0, (many - few) / 6)
    spread = statistics.median(shares.spread(sockets(bandwidth, SHARING, 0.6)[0]) for bandwidth in ("100Mbit", "300Mbit") for _ in range(3))
    kernel = byte_seconds("1Gbit")
    star = bench([program, "bench", "ps", "--min-bytes", "1M", "--max-bytes", "1M", "--medium", "tcp", "--rounds", "3"])[0]["rows"][0]["star"]["tcp"]
    program_seconds = sum(star["cpu_seconds_per_gb"][role] for role in ("worker", "server")) * 1e-9
    waiting = waiting_share(program, kernel + program_seconds)
    shown += [["a rank that waits, over MPI", "50Mbit", f"{waiting:.2f} of a core", ""], ["all_gather of 1 KiB, 2 ranks", "none", f"{few * 1e6:.0f} us", ""], ["each message more", "none", f"{message * 1e6:.0f} us", ""],
              [f"shares of {SHARING} connections, sd / mean", "100, 300 Mbit", "", f"{spread:.2f}"],
              ["a GB, kernel's part", "1Gbit", f"{kernel * 1e9:.2f} s of a core", ""],
              ["a GB, program's part", "loopback", f"{program_seconds * 1e9:.2f} s of a core", ""]]
    sources["network"] = (f"starring bench collective between network namespaces (netlab), {', '.join(map(str, EXCHANGING))} ranks at {', '.join(SHAPED)}; "
                       "share_spread: plain sockets there; burst_seconds: the netlab's")
    sources["node"] = "a rank a node in a lab: these links are not used"
    sources["cores"] = "transport: /proc/stat while a plain socket sends over a netlab's link, and cpu_seconds_per_gb of starring bench ps"
    network = {"kind": "switch", "bytes_per_second": rate.parse("1Gbit") / 8, "links_per_node": 1, "latency_seconds": few, "oversubscription": 1,
               "efficiency": reached, "exchange": exchange, "per_message_seconds": message, "burst_seconds": lab.BURST_MS * 1e-3,
               "share_spread": round(spread, 3)}
    return network, {"count": os.cpu_count(), "ranks_share": "job", "transport_seconds_per_byte": kernel + program_seconds,
                     "waiting_share": waiting}, shown


# ---------------------------------------------------------------- servers
def server(program, rows, latency, sources):
    """The section server. rows: of bench kernels; latency: of a link, in seconds."""
    alone = next(row["seconds"] for row in rows if row["operation"] == "busy")

    def of(operation):
        row = next(r for r in rows if r["operation"] == operation)
        return int(row["shape"].split()[0].removeprefix("n=")), row["seconds"] - alone
    summed, sum_seconds = of("reduce")       # of 4 gradients
    updated, update_seconds = of("adamw")
    star = bench([program, "bench", "ps", "--min-bytes", str(ANSWERED), "--max-bytes", str(ANSWERED), "--medium", "tcp", "--rounds", "3"])[0]["rows"][0]["star"]["tcp"]
    answer = star["push_to_acknowledgement"]["median_us"] * 1e-6
    reply = min(answer, star["cpu_seconds_per_gb"]["server"] * 1e-9 * 2 * ANSWERED)   # a push and the weights of its answer
    sources["server"] = "starring bench kernels (reduce of 4, adamw), bench ps --max-bytes 4K (reply: the server's CPU time per push and answer; latency: from push to acknowledgement, without it and the links')"
    return {"sum_bytes_per_second": 4 * 2 * summed / sum_seconds, "update_elements_per_second": updated / update_seconds,
            "reply_seconds": reply, "answer_latency_seconds": max(0.0, answer - reply - 2 * latency)}


# ---------------------------------------------------------------- the file
def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def calibrated(program, models, say):
    """The machine file's document. models: [(model, batch, seq, dtype)]. say: called with a table to print."""
    lab.check_possible()
    cores, sources, shown = os.cpu_count(), {}, []
    units, rows = [], None
    for model, batch, seq, dtype in models:
        found, kernels = units_of(program, model, batch, seq, dtype, cores, layers_of(program, model, batch, seq, dtype))
        units.append(found)
        rows = rows or kernels
        for unit, ways in found["seconds"].items():
            shown.append([f"{found['model']} {dtype}: {unit}", f"{batch} x {seq}", f"{ways['forward'] * 1e3:.2f} ms", f"{ways['backward'] * 1e3:.2f} ms"])
        shown.append(["    update, begin", "", f"{found['update_seconds_per_element'] * 1e9:.2f} ns/element", f"{found['begin_seconds'] * 1e3:.2f} ms"])
    sources["units"] = f"starring bench step, {cores} processes of one thread at once; shares of a unit by starring bench kernels --model"
    say(tables.text([["unit", "micro-batch", "forward", "backward"], *shown]))
    network, shared, shown = links(program, sources)
    shared["crowding"] = crowding(program, *models[-1], cores)
    shown.append([f"computing, {CROWD} ranks a core", "", f"{shared['crowding']:.2f} of its share", ""])
    say("\n" + tables.text([["link", "rate", "time", "share"], *shown]))
    served = server(program, rows, network["latency_seconds"], sources)
    say(f"\nserver: sums {served['sum_bytes_per_second'] / 1e9:.1f} GB/s, updates {served['update_elements_per_second'] / 1e9:.2f} elements a ns, "
        f"works {served['reply_seconds'] * 1e6:.0f} us for an answer, which takes {served['answer_latency_seconds'] * 1e6:.0f} us more")
    return {"name": "this-machine", "date": datetime.date.today().isoformat(),
            "notes": f"{processor()}, {cores} cores, {platform.system()} {platform.release()}", "sources": sources, "device": None, "units": units,
            "cores": shared, "node": {"devices": 1, "bytes_per_second": 2e9, "latency_seconds": network["latency_seconds"]}, "network": network,
            "server": served}


def write(path, document):
    machine.checked(document, path)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(document, f, indent=1)
        f.write("\n")


def run(program, path, models=None):
    """predict.py --calibrate. models: as of calibrated; None: the judged ones. Exit status."""
    try:
        write(path, calibrated(program, models or list(MODELS.values()), lambda text: print(text, flush=True)))
    except (CalibrationError, lab.LabError, OSError) as e:
        print(f"predict.py: error: {e}", file=sys.stderr)
        return 2 if isinstance(e, lab.LabError) else 1
    print(f"\nwritten: {path}")
    return 0
