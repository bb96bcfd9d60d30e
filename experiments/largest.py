#!/usr/bin/env python3
"""Finds the largest model that trains within a memory limit, with and without offload, and runs it there.

    experiments/largest.py -c experiments/recipes/offload.json --limit 512M

For one worker and for two, with state in memory and with state on disk, the script finds the largest number of blocks (n_layer of the
configuration's model) whose dry run fits. It then trains that model. It also runs the model that fits only with offload without offload:
once as it is, which the program refuses, and once with memory.check=off, where the kernel kills it. --limit makes a control group and
needs root. Without it the limit is that of the group in which the script was started:
`systemd-run --user --scope -p MemoryMax=512M -p MemorySwapMax=0 experiments/largest.py ..`"""
import argparse
import errno
import json
import os
import re
import shutil
import sys
import tempfile
import time

import cli
import program
import tables

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MOST_BLOCKS = 4096
SHARE = 0.98   # the usable share of the limit: the kernel counts a varying number of its own pages to the group


class Failed(Exception):
    pass


def offload(directory):
    return [f"--set=zero_optimization.{what}.{key}={value}" for what in ("offload_optimizer", "offload_param")
            for key, value in (("device", "nvme"), ("nvme_path", directory))]


def ways(directory):
    """Yields (workers, the offload in words, flags); for each number of workers first without offload, then with it."""
    for workers in (1, 2):
        yield workers, "none", ["--topology", "local" if workers == 1 else "zero:0", *(["--workers", str(workers)] if workers > 1 else [])]
        yield workers, "offload to disk", ["--topology", "zero:3", "--workers", str(workers), *offload(directory)]


class Group:
    """A new control group with a memory limit. Works with cgroup v1 and v2, mounted at `root`."""

    def __init__(self, limit, root="/sys/fs/cgroup"):
        old = os.path.isdir(os.path.join(root, "memory"))
        self.folder = os.path.join(root, *(["memory"] if old else []), f"starring-{os.getpid()}")
        made = False
        try:
            if not old:
                self.put("+memory", "../cgroup.subtree_control")   # v2: without this the group has no memory.max
            os.mkdir(self.folder)
            made = True
            self.put(limit, "memory.limit_in_bytes" if old else "memory.max")
            if not old and os.path.exists(os.path.join(self.folder, "memory.swap.max")):
                self.put(0, "memory.swap.max")
        except OSError as e:
            if made:
                self.close()
            raise Failed(f"--limit: no control group can be made here ({e}): start the script as root, or without --limit in a limited group "
                         "(--help shows how)") from e

    def put(self, value, name):
        with open(os.path.normpath(os.path.join(self.folder, name)), "w", encoding="utf-8") as f:
            f.write(str(value))

    def enter(self):
        self.put(os.getpid(), "cgroup.procs")

    def close(self):
        """Removes the group. After Ctrl-C its processes are still ending."""
        until = time.monotonic() + 10
        while True:
            try:
                return os.rmdir(self.folder)
            except OSError as e:
                if e.errno != errno.EBUSY or time.monotonic() > until:
                    raise
            time.sleep(0.05)


def size(text):
    m = re.fullmatch(r"([1-9]\d*)([KMG]?)(?:i?B)?", text)
    if not m:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 512M or 1G")
    return int(m[1]) * UNITS[m[2]]


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-c", "--config", required=True, help="a configuration whose model is a config.json with n_layer")
    p.add_argument("--limit", type=size, metavar="SIZE", help="memory of all ranks together, such as 512M")
    p.add_argument("--nvme", default="/var/tmp", metavar="DIR", help="where offloaded state is written (%(default)s)")
    p.add_argument("--dry-run", action="store_true", help="find the models, run none")
    p.add_argument("--program", default=program.built(), help="(%(default)s)")
    p.add_argument("--json", action="store_true", help="print one JSON document")
    return p.parse_args(argv)


class Search:
    def __init__(self, args, folder, group):
        self.args, self.folder, self.group = args, folder, group
        resolved = json.loads(self.start("--topology", "local", "--print-config")[1])
        name = resolved["model"]["name"]
        if not os.path.isfile(name):
            raise Failed(f"{args.config}: model.name {name} is no config.json: the number of blocks in it, n_layer, is what this script changes")
        with open(name, encoding="utf-8") as f:
            self.model = json.load(f)
        if "n_layer" not in self.model:
            raise Failed(f"{name} has no n_layer: the number of blocks is what this script changes")

    def start(self, *words, status=0):
        """Runs `train` in the group. Returns (exit status, stdout, stderr). Raises Failed for another status than `status`; None allows any."""
        before = cli.dies_with_us()
        p = program.run([self.args.program, "train", "-c", self.args.config, *words], Failed,
                        preexec_fn=lambda: (before(), self.group and self.group.enter()))
        if status is not None and p.returncode == -9:
            raise Failed(f"the program was killed when it was asked what fits: the limit leaves no memory for itself{': a larger --limit' * bool(self.group)}")
        if status is not None and p.returncode != status:
            raise Failed(f"{' '.join(p.args)}: exit status {p.returncode}\n{p.stderr.strip()}")
        return p.returncode, p.stdout, p.stderr

    def of(self, blocks):
        path = os.path.join(self.folder, f"{blocks}-blocks.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({**self.model, "n_layer": blocks}, f)
        return path

    def predicted(self, blocks, flags):
        return json.loads(self.start(*flags, "--model", self.of(blocks), "--dry-run", "--json")[1])

    def fits(self, blocks, flags):
        return all(limit["predicted_bytes"] + limit["allowed_bytes"] <= SHARE * limit["available_bytes"]
                   for limit in self.predicted(blocks, flags)["here"]["limits"])

    def largest(self, flags):
        """The number of blocks of the largest model that fits, and its prediction."""
        low, high = 0, MOST_BLOCKS
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(middle, flags) else (low, middle)
        if not low:
            raise Failed(f"a model of one block does not fit the memory limit with {' '.join(flags)}")
        return low, self.predicted(low, flags)

    def run(self, blocks, flags):
        out = os.path.join(self.folder, "run")
        status, _, errors = self.start(*flags, "--model", self.of(blocks), "--quiet", "--no-weights", "--force", "--out", out, status=None)
        said = next((line for line in errors.splitlines() if "error:" in line), "").removeprefix("starring: error: ")
        found = {"status": status, "said": said}
        if status == 0:
            with open(os.path.join(out, "summary.json"), encoding="utf-8") as f:
                summary = json.load(f)
            found |= {"loss": summary["loss"], "seconds": summary["step_seconds"]["median"],
                      "device_bytes": sum(e["device_bytes"] for e in summary["memory"])}
        shutil.rmtree(out, ignore_errors=True)
        return found


def outcome(run):
    if run["status"] == 0:
        return f"trains: {run['seconds']:.1f} s a step"
    if run["status"] in (-9, 137):
        return "killed by the kernel"
    return f"exit status {run['status']}: {run['said']}"


def measure(search, directory, dry):
    rows = []
    for workers, how, flags in ways(directory):
        blocks, said = search.largest(flags)
        mine = said["here"]["limits"][0]
        rows.append({"workers": workers, "offload": how, "topology": said["topology"], "blocks": blocks, "params": said["params"],
                     "predicted_bytes": mine["predicted_bytes"], "allowed_bytes": mine["allowed_bytes"], "available_bytes": mine["available_bytes"],
                     "limit": mine["limit"], "times": said["params"] / rows[-1]["params"] if how != "none" else 1})
        if not dry:
            rows[-1]["run"] = search.run(blocks, flags)
        if how == "none":
            without = flags
        elif not dry:
            rows[-1]["without"] = {"refused": search.run(blocks, without), "unchecked": search.run(blocks, [*without, "--set", "memory.check=off"])}
    return rows


def show(rows):
    mib = lambda n: f"{n / UNITS['M']:.0f}"
    head = ["workers", "offload", "blocks", "parameters", "times", "predicted", "+ allowed", "of MiB", "run"]
    print(tables.text([head] + [[r["workers"], r["offload"], r["blocks"], f"{r['params']:,}", f"{r['times']:.1f}", mib(r["predicted_bytes"]),
                                 mib(r["allowed_bytes"]), mib(r["available_bytes"]), outcome(r["run"]) if "run" in r else "-"] for r in rows], left=2))
    for r in rows:
        for words, run in (r.get("without") or {}).items():
            print(f"\n{r['params']:,} parameters without offload, {r['workers']} worker{'s' * (r['workers'] > 1)}"
                  f"{', memory.check off' * (words == 'unchecked')}: {outcome(run)}")


def main(argv=None):
    args = parse(argv)
    group = None
    try:
        group = Group(args.limit) if args.limit else None
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(Search(args, folder, group), args.nvme, args.dry_run)
    except Failed as e:
        print(f"largest.py: error: {e}", file=sys.stderr)
        return 1
    finally:
        if group:
            group.close()
    if args.json:
        print(json.dumps({"limit": rows[0]["limit"], "rows": rows}, indent=1))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    cli.run(main)
