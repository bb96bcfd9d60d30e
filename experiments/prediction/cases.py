"""The judged runs: what is trained over shaped links, and then predicted. They were chosen before any of them was measured, and cover
topologies, ranks, servers, models, bandwidths, stragglers and delays."""
import os
from dataclasses import dataclass, replace

FOLDER = os.path.dirname(os.path.abspath(__file__))
# The model, batch, sequence length and dtype of one worker's micro-batch. --calibrate measures exactly these.
MODELS = {
    "tiny": ("tiny", 8, 64, "bf16"),
    "demo": ("demo", 4, 128, "bf16"),
    "demo32": ("demo", 2, 128, "fp32"),
    "wide": (os.path.join(FOLDER, "models", "wide.json"), 4, 128, "bf16"),
}


@dataclass(frozen=True)
class Case:
    family: str
    topology: str
    workers: int
    servers: int        # 0: a ring
    model: str          # of MODELS
    bandwidth: str
    more: str = ""      # further options of `starring train`
    steps: int = 12
    engine: str = ""    # a ring's engine. "": Open MPI, which is calibrated over shaped links; tcp: the program's own

    @property
    def name(self):
        words = [self.topology, f"n{self.workers}"] + ([f"s{self.servers}"] if self.servers else []) + [self.model, self.bandwidth]
        words += [self.engine] if self.engine else []
        return "-".join(words + self.more.replace("--set ", "").replace("--", "").split()).replace(":", "-").replace("/", "-").replace("*", "all")

    def words(self):
        """The options of train, and of predict.py."""
        model, batch, seq, dtype = MODELS[self.model]
        return ["--topology", self.topology, "--workers", str(self.workers), *(["--servers", str(self.servers)] if self.servers else []),
                "--model", model, "--batch", str(batch), "--seq", str(seq), "--dtype", dtype,
                "--set", "data.tokenizer=byte", *(["--collective", self.engine] if self.engine else []), *self.more.split()]


NO_CLIP = "--set gradient_clipping=0"
SMALL = "--set parameter_server.partition_bytes=65536"
H4, H8 = "--local-steps 4", "--local-steps 8"
JUDGED = (
    # ---- rings
    Case("ring", "zero:0", 2, 0, "demo", "200Mbit"),
    Case("ring", "zero:0", 4, 0, "demo", "100Mbit", steps=10),
    Case("ring", "zero:0", 8, 0, "demo", "200Mbit"),
    Case("ring", "zero:0", 3, 0, "wide", "500Mbit", steps=20),
    Case("ring", "zero:1", 2, 0, "demo", "50Mbit", steps=8),
    Case("ring", "zero:1", 4, 0, "demo", "200Mbit"),
    Case("ring", "zero:1", 6, 0, "wide", "100Mbit", steps=10),
    Case("ring", "zero:1", 3, 0, "tiny", "50Mbit", steps=40),
    Case("ring", "zero:1", 4, 0, "demo", "1Gbit", steps=20),
    Case("ring", "zero:2", 2, 0, "wide", "100Mbit"),
    Case("ring", "zero:2", 4, 0, "demo32", "200Mbit", steps=10),
    Case("ring", "zero:2", 5, 0, "demo", "300Mbit"),
    Case("ring", "zero:2", 8, 0, "tiny", "50Mbit", steps=40),
    Case("ring", "zero:3", 2, 0, "demo", "100Mbit", steps=10),
    Case("ring", "zero:3", 4, 0, "demo", "200Mbit"),
    Case("ring", "zero:3", 6, 0, "wide", "200Mbit"),
    Case("ring", "zero:3", 8, 0, "demo", "500Mbit"),
    Case("ring", "zero:3", 4, 0, "demo", "200Mbit", "--set zero_optimization.overlap_comm=false"),
    Case("ring", "zero:2", 4, 0, "demo", "100Mbit", "--set gradient_accumulation_steps=2", steps=8),
    # ---- groups, and hpZ
    Case("groups", "zero:1", 4, 0, "demo", "200Mbit", "--reduce-group 2"),
    Case("groups", "zero:2", 8, 0, "wide", "200Mbit", "--reduce-group 4"),
    Case("groups", "zero:0", 6, 0, "demo", "300Mbit", "--reduce-group 3"),
    Case("groups", "zero:3", 4, 0, "demo", "100Mbit", "--set zero_optimization.zero_hpz_partition_size=2", steps=10),
    Case("groups", "zero:3", 8, 0, "wide", "300Mbit", "--set zero_optimization.zero_hpz_partition_size=4"),
    # ---- gossip, local steps
    Case("gossip", "gossip", 4, 0, "demo", "300Mbit", steps=8),
    Case("gossip", "gossip", 8, 0, "wide", "200Mbit", "--set gossip.graph=exponential", steps=8),
    Case("gossip", "gossip", 3, 0, "tiny", "50Mbit", "--set gossip.graph=static_exponential", steps=20),
    Case("local steps", "zero:0", 4, 0, "demo", "100Mbit", H4, steps=24),
    Case("local steps", "zero:1", 3, 0, "wide", "50Mbit", H8, steps=32),
    Case("local steps", "ps:sync", 4, 2, "demo", "100Mbit", H4, steps=24),
    # ---- stragglers in rings
    Case("straggler", "zero:1", 2, 0, "demo", "200Mbit", "--straggle 1:3"),
    Case("straggler", "zero:3", 4, 0, "demo", "500Mbit", "--delay 2:constant:150"),
    Case("straggler", "zero:2", 4, 0, "wide", "1Gbit", "--delay *:exponential:60", steps=40),
    # ---- synchronous stars
    Case("star", "ps:sync", 2, 1, "demo", "200Mbit"),
    Case("star", "ps:sync", 4, 1, "demo", "200Mbit", NO_CLIP, steps=8),
    Case("star", "ps:sync", 4, 2, "demo", "200Mbit"),
    Case("star", "ps:sync", 4, 4, "demo", "200Mbit", f"{NO_CLIP} {SMALL}"),
    Case("star", "ps:sync", 8, 2, "demo", "500Mbit"),
    Case("star", "ps:sync", 8, 4, "wide", "300Mbit", NO_CLIP),
    Case("star", "ps:sync", 3, 3, "wide", "100Mbit", SMALL),
    Case("star", "ps:sync", 3, 1, "tiny", "50Mbit", steps=30),
    Case("star", "ps:sync", 6, 3, "demo32", "500Mbit"),
    Case("star", "ps:sync", 2, 2, "demo", "50Mbit", NO_CLIP, steps=8),
    Case("star", "ps:sync", 4, 2, "demo", "100Mbit", "--set zero_optimization.overlap_comm=false", steps=8),
    Case("star", "ps:sync", 4, 2, "wide", "1Gbit", steps=24),
    Case("star", "ps:sync", 4, 1, "demo", "100Mbit", "--set parameter_server.compression=int8"),
    Case("servers on workers", "ps:sync", 4, 0, "demo", "200Mbit", "--servers-on workers"),
    Case("servers on workers", "ps:sync", 2, 0, "wide", "100Mbit", f"--servers-on workers {NO_CLIP}"),
    Case("servers on workers", "ps:sync", 4, 0, "demo", "200Mbit", "--servers-on workers --resident units"),
    Case("straggler", "ps:sync", 4, 2, "demo", "500Mbit", "--straggle 1:2"),
    Case("straggler", "ps:sync", 4, 2, "wide", "500Mbit", "--delay *:exponential:60", steps=40),
    # ---- stars that do not wait for all workers
    Case("ssp", "ps:ssp:2", 4, 2, "demo", "200Mbit", "--delay *:exponential:100", steps=40),
    Case("ssp", "ps:ssp:4", 3, 1, "wide", "200Mbit", "--straggle 1:2:0.3", steps=40),
    Case("backup", "ps:backup:1", 4, 2, "demo", "300Mbit", "--delay *:exponential:100", steps=30),
    Case("backup", "ps:backup:1", 4, 1, "wide", "500Mbit", "--straggle 3:3", steps=30),
    Case("backup", "ps:quorum:3", 4, 2, "demo", "300Mbit", "--straggle 0:3", steps=30),
    Case("backup", "ps:quorum:2", 3, 1, "wide", "300Mbit", "--delay *:exponential:100", steps=30),
    Case("async", "ps:async", 2, 1, "demo", "200Mbit", steps=20),
    Case("async", "ps:async", 4, 1, "demo", "200Mbit", steps=12),
    Case("async", "ps:async", 4, 2, "demo", "500Mbit", "--straggle 1:3", steps=20),
    Case("async", "ps:async", 8, 2, "wide", "200Mbit", steps=10),
    Case("async", "ps:async", 4, 4, "wide", "1Gbit", "--delay *:exponential:100", steps=30),
    Case("async", "ps:async", 3, 1, "tiny", "50Mbit", steps=60),
    Case("async", "ps:async", 4, 2, "demo", "200Mbit", "--set parameter_server.pushes_per_update=4", steps=12),
    Case("async", "ps:async", 4, 2, "demo", "300Mbit", "--set parameter_server.max_lead=1 --delay *:exponential:100", steps=24),
    Case("async", "ps:ringleader", 4, 2, "demo", "300Mbit", steps=16),
)

# The rings again over the program's own tcp. No bench measures it between hosts, so it is not calibrated.
CASES = (*JUDGED, *(replace(case, engine="tcp", family="rings over our tcp") for case in JUDGED if not case.topology.startswith("ps:")))
