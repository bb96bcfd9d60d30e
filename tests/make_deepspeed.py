#!/usr/bin/env python3
"""Writes tests/data/deepspeed: what DeepSpeed's own loss scaler and schedulers give, for test_shared_deepspeed.c, and which
keys it documents, for test_shared_config_table.c.

    python3 tests/make_deepspeed.py SOURCE [OUT]     SOURCE: DeepSpeed's unpacked source; needs nothing else

runtime/fp16/loss_scaler.py and runtime/lr_schedules.py are loaded from SOURCE as they are, alone: the modules that
they import get stand-ins that hold no arithmetic. Lines of scaler.txt, for each case:

    case WINDOW HYSTERESIS CONSECUTIVE MIN POWER    the fp16 section's values; POWER is initial_scale_power
    steps ..x.                                      a step each; x: a gradient overflowed
    trace SCALE/HYSTERESIS*STEPS ...                after each step, equal ones counted; "end": DeepSpeed raises

and of schedules.txt (absent parameters keep DeepSpeed's defaults; the optimizer's lr is given first):

    case LR TYPE KEY=VALUE ...
    lr VALUE ...                                    of the update that follows 0, 1, 2, .. applied ones
    betas VALUE VALUE ...                           the same of the optimizer's betas; one pair: they stand

and of keys.txt a key each, with the names above it and its type: those of docs/_pages/config-json.md (of sections that are not
about data parallel training the section alone), of the classes that sections are read into, of the schedulers' constructors, and of
runtime/config.py and the optimizers, which have no types (UNTYPED). A type is

    bool int int>=0 int0..3 float float0..1 name:A|B text    of a pydantic model, which converts and drops "auto"
    raw:bool raw:int raw:number raw:pair raw:dtype raw:text  of a plain dictionary: what the code that uses it takes
    section                                                  or a member of one that is looked at as a whole
"""

import ast
import importlib.util
import itertools
import logging
import pathlib
import random
import re
import sys
import types

SCALER = "deepspeed/runtime/fp16/loss_scaler.py"
SCHEDULES = "deepspeed/runtime/lr_schedules.py"
BASE_LR = 0.5
BETAS = (0.9, 0.999)
FLAGS = {"true": True, "false": False}  # as the configuration writes them


PAGE = "docs/_pages/config-json.md"
CLASSES = {  # section: the class it is read into, or the constants' names
    "zero_optimization": ("deepspeed/runtime/zero/config.py", "DeepSpeedZeroConfig"),
    "zero_optimization.offload_param": ("deepspeed/runtime/zero/offload_config.py", "DeepSpeedZeroOffloadParamConfig"),
    "zero_optimization.offload_optimizer": ("deepspeed/runtime/zero/offload_config.py",
                                            "DeepSpeedZeroOffloadOptimizerConfig"),
    "fp16": ("deepspeed/runtime/precision_config.py", "DeepSpeedFP16Config"),
    "bf16": ("deepspeed/runtime/precision_config.py", "DeepSpeedBF16Config"),
    "tensorboard": ("deepspeed/monitor/config.py", "TensorBoardConfig"),
    "csv_monitor": ("deepspeed/monitor/config.py", "CSVConfig"),
    "wandb": ("deepspeed/monitor/config.py", "WandbConfig"),
    "comet": ("deepspeed/monitor/config.py", "CometConfig"),
}
CONSTANTS = {"activation_checkpointing": ("deepspeed/runtime/activation_checkpointing/config.py", "ACT_CHKPT_"),
             "aio": ("deepspeed/runtime/swap_tensor/constants.py", "AIO_")}
HEADINGS = {  # of the page: the section whose keys stand below it; where there is none, the section's own name
    "Batch Size": ".", "Optimizer Parameters": ".", "Scheduler": ".", "Communication options": ".", "FP16": ".",
    "BFLOAT16": ".", "Gradient Clipping": ".", "Logging": ".", "ZeRO": "zero_optimization",
    "Parameter offloading": "zero_optimization.offload_param", "Optimizer offloading": "zero_optimization.offload_optimizer",
    "Asynchronous": "aio", "Activation Checkpointing": "activation_checkpointing", "Data Type": "data_types",
    "Checkpoint options": "checkpoint", "Flops": "flops_profiler", "Autotuning": "autotuning",
}
SECTIONS = ("amp", "torch_autocast", "tensor_parallel", "hybrid_engine", "expert_parallel", "sparse_attention",
            "data_efficiency", "curriculum_learning", "elasticity", "comms_logger", "compression_training", "compile")


UNTYPED = {  # read by runtime/config.py from a dictionary, or handed to an optimizer
    "raw:int": "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print vocabulary_size "
               "sequence_parallel_size activation_checkpointing.number_checkpoints aio.block_size aio.queue_depth aio.thread_count "
               "aio.intra_op_parallelism optimizer.params.freeze_step scheduler.params.warmup_num_steps "
               "scheduler.params.total_num_steps scheduler.params.last_batch_iteration scheduler.params.cycle_first_step_size "
               "scheduler.params.cycle_second_step_size scheduler.params.cycle_first_stair_count "
               "scheduler.params.cycle_second_stair_count scheduler.params.decay_step_size "
               "scheduler.params.lr_range_test_step_size allgather_size",
    "raw:number": "gradient_clipping gradient_predivide_factor optimizer.params.lr optimizer.params.eps "
                  "optimizer.params.weight_decay optimizer.params.momentum optimizer.params.dampening "
                  "optimizer.params.max_grad_norm scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr "
                  "scheduler.params.warmup_min_ratio scheduler.params.cos_min_ratio scheduler.params.cycle_min_lr "
                  "scheduler.params.cycle_max_lr scheduler.params.decay_lr_rate scheduler.params.cycle_min_mom "
                  "scheduler.params.cycle_max_mom scheduler.params.decay_mom_rate scheduler.params.lr_range_test_min_lr "
                  "scheduler.params.lr_range_test_step_rate",
    "raw:pair": "optimizer.params.betas",
    "raw:bool": "prescale_gradients sparse_gradients managed_gradient_accumulation disable_allgather dump_state memory_breakdown "
                "wall_clock_breakdown zero_allow_untested_optimizer zero_force_ds_cpu_optimizer graph_harvesting "
                "use_data_before_expert_parallelism dataloader_drop_last fp32_allreduce optimizer.legacy_fusion "
                "optimizer.params.nesterov optimizer.params.torch_adam optimizer.params.adam_w_mode "
                "optimizer.params.bias_correction optimizer.params.amsgrad optimizer.params.maximize optimizer.params.fused "
                "optimizer.params.foreach optimizer.params.set_grad_none optimizer.params.fp32_optimizer_states "
                "optimizer.params.cuda_aware activation_checkpointing.partition_activations "
                "activation_checkpointing.contiguous_memory_optimization activation_checkpointing.cpu_checkpointing "
                "activation_checkpointing.synchronize_checkpoint_boundary activation_checkpointing.profile aio.single_submit "
                "aio.overlap_events aio.use_gds scheduler.params.cycle_momentum scheduler.params.lr_range_test_staircase",
    "raw:dtype": "communication_data_type seq_parallel_communication_data_type data_types.grad_accum_dtype "
                 "data_types.param_dtype data_types.buffer_dtype",
    "raw:text": "log_level optimizer.type scheduler.type scheduler.params.warmup_type optimizer.params.comm_backend_name "
                "gradient_allreduce_op",
    "bool": "zero_optimization.grad_hooks",  # of the page alone
    "section": "pipeline eigenvalue progressive_layer_drop quantize_training weight_quantization nebula datastates_ckpt timers",
}


class Optimizer:
    """What a scheduler asks of torch.optim.Optimizer: parameter groups."""

    def __init__(self, lr):
        self.defaults = {"lr": lr, "betas": BETAS}
        self.param_groups = [dict(self.defaults)]


def stand_in(name, **members):
    """Puts a module that holds only `members` where `import name` finds it."""
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def stand_ins():
    """The modules that the two files import, without arithmetic."""
    quiet = logging.getLogger("deepspeed")
    quiet.disabled = True
    comm = types.SimpleNamespace(get_rank=lambda: 0)
    stand_in("torch", half="half", float16="half", is_tensor=lambda x: False)
    stand_in("torch.optim", Optimizer=Optimizer)
    stand_in("deepspeed", comm=comm)
    stand_in("deepspeed.utils", logger=quiet)
    stand_in("deepspeed.runtime.config_utils", DeepSpeedConfigObject=object)
    stand_in("deepspeed.runtime.utils", has_inf_or_nan=None)


def load(source, path):
    """The module in one file of DeepSpeed's source."""
    name = pathlib.Path(path).stem
    spec = importlib.util.spec_from_file_location(name, source / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def trace(scaler_class, case, steps):
    """SCALE/HYSTERESIS after each of `steps`, up to the one that ends the run."""
    window, hysteresis, consecutive, minimum, power = case
    scaler = scaler_class(2**power, window, minimum, hysteresis, bool(consecutive))
    out = []
    for step in steps:
        try:
            scaler.update_scale(step == "x")
        except Exception:  # DeepSpeed raises the bare class at the minimum
            return out + ["end"]
        out.append("%.17g/%d" % (scaler.cur_scale, scaler.cur_hysteresis))
    return out


def scaler_cases():
    """Cases chosen for their edges, then random ones: (case, steps)."""
    yield (1000, 2, 0, 1, 16), "." * 1003 + "x" + "." * 1002
    yield (4, 2, 0, 1, 16), "xx..x...x.....xxxx....x"
    yield (1, 1, 0, 1, 4), "....x..x.xx"
    yield (3, 1, 0, 2, 3), "xx...x......xxx"
    yield (2, 3, 0, 3, 3), "xxxx" + "." * 7 + "xxxxxx"  # a minimum that is no power of two
    yield (3, 2, 1, 1, 2), "x.x.x.x.xx.xx.xxxx"
    draw = random.Random(19)
    for number in range(18):
        case = (draw.choice((1, 2, 3, 5, 8)), draw.choice((1, 1, 2, 3, 4)), number % 2, draw.choice((1, 1, 2, 5)))
        case += (draw.choice((3, 10, 16)),)
        share = draw.choice((0.05, 0.15, 0.4))
        yield case, "".join("x" if draw.random() < share else "." for _ in range(60))


def schedule_cases():
    """(type, parameters)."""
    for kind in ("log", "linear"):
        yield "WarmupLR", {"warmup_min_lr": 1e-5, "warmup_max_lr": 1e-3, "warmup_num_steps": 10, "warmup_type": kind}
        yield "WarmupLR", {"warmup_num_steps": 1, "warmup_type": kind}
        for total, warmup in ((30, 10), (10, 10), (5, 10), (12, 1)):
            yield "WarmupDecayLR", {
                "total_num_steps": total,
                "warmup_min_lr": 1e-4,
                "warmup_max_lr": 1e-2,
                "warmup_num_steps": warmup,
                "warmup_type": kind,
            }
            yield "WarmupCosineLR", {
                "total_num_steps": total,
                "warmup_min_ratio": 0.1,
                "cos_min_ratio": 0.05,
                "warmup_num_steps": warmup,
                "warmup_type": kind,
            }
    for first, second, stairs in ((10, 6, (0, None)), (7, None, (0, None)), (9, 12, (3, 4)), (10, 0, (5, None)), (1, 1, (0, None))):
        cycle = {"cycle_min_lr": 1e-4, "cycle_max_lr": 2e-2, "cycle_first_step_size": first}
        if second is not None:
            cycle["cycle_second_step_size"] = second
        if stairs[0]:
            cycle["cycle_first_stair_count"] = stairs[0]
        if stairs[1]:
            cycle["cycle_second_stair_count"] = stairs[1]
        yield "OneCycle", cycle
        cycle = dict(cycle, cycle_min_mom=0.7, cycle_max_mom=0.95, decay_step_size=5, decay_lr_rate=0.5)
        yield "OneCycle", dict(cycle, decay_mom_rate=0.001)
        yield "OneCycle", dict(cycle, cycle_momentum="false")
    for stairs in ("false", "true"):
        test = {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 3.5}
        yield "LRRangeTest", dict(test, lr_range_test_staircase=stairs)
    yield "LRRangeTest", {}
    yield "WarmupLR", {}
    yield "WarmupDecayLR", {"total_num_steps": 20, "warmup_num_steps": 3}  # warmup_max_lr's default is no one's lr
    yield "WarmupCosineLR", {"total_num_steps": 20, "warmup_num_steps": 3}


def learning_rates(schedules, kind, parameters, count=45):
    """As the engine uses it, one scheduler step after each update: learning rates, and beta1s where they move."""
    optimizer = Optimizer(BASE_LR)
    parameters = {key: FLAGS.get(value, value) for key, value in parameters.items()}
    scheduler = getattr(schedules, kind)(optimizer, **parameters)
    rates, betas = [], []
    for _ in range(count):
        group = optimizer.param_groups[0]
        rates.append("%.10g" % group["lr"])
        betas.append("%.10g %.10g" % group["betas"])
        scheduler.step()
    moves = getattr(scheduler, "cycle_momentum", False)
    return rates, betas if moves else ["%g %g" % BETAS]


def type_of(node, tree):
    """The type of a field, of its annotation and the bounds in its Field(..)."""
    words = ast.unparse(node.annotation).replace("Optional[", "").replace("]", "")
    bounds = {k.arg: ast.literal_eval(k.value) for k in getattr(node.value, "keywords", ()) if k.arg in ("ge", "le")}
    if words == "ZeroStageEnum":
        return "int0..3"
    if words == "OffloadDeviceEnum":
        found = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == words)
        return "name:" + "|".join(n.value.value for n in found.body if isinstance(n, ast.Assign))
    if words in ("str", "Path"):
        return "text"
    if words not in ("bool", "int", "float"):
        return "section"
    return words + ("%g..%g" % (bounds["ge"], bounds["le"]) if "le" in bounds else ">=0" if "ge" in bounds else "")


def members(source, path, name):
    """The fields of a class of settings, by the names that a configuration has for them, with their types."""
    tree = ast.parse((source / path).read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    for node in found.body:
        if isinstance(node, ast.AnnAssign):
            kind = type_of(node, tree)
            yield node.target.id, kind
            for keyword in getattr(node.value, "keywords", ()):
                if keyword.arg == "alias":
                    yield keyword.value.value, kind


def constants(source, path, prefix):
    tree = ast.parse((source / path).read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id.startswith(prefix) and isinstance(node.value, ast.Constant):
            if re.fullmatch("[a-z_]+", str(node.value.value)) and not node.targets[0].id.endswith("_DEFAULT"):
                yield node.value.value


def constructors(source):
    tree = ast.parse((source / SCHEDULES).read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            init = next(f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__")
            yield from (a.arg for a in init.args.args[2:])


def documented(source):
    """The keys of the page, by the headings above them."""
    section = None
    for line in (source / PAGE).read_text().splitlines():
        if line.startswith("### "):
            section = next((path for start, path in HEADINGS.items() if line[4:].startswith(start)), None)
        found = re.match(r"^(?:<i>)?\*{2,3}([a-z0-9_:]+)\*{2,3}(?:</i>)?: *\[", line)
        if found and section:
            name = found.group(1).replace(":", ".")
            yield name if section in (".", name) else f"{section}.{name}"


def all_keys(source):
    keys = set(SECTIONS) | set(documented(source)) | {f"scheduler.params.{name}" for name in constructors(source)}
    keys |= {f"{section}.{name}" for section, where in CONSTANTS.items() for name in constants(source, *where) if name != section}
    types = dict.fromkeys(keys, "section")
    types |= {key: kind for kind, words in UNTYPED.items() for key in words.split()}
    types |= {f"{section}.{name}": kind for section, where in CLASSES.items() for name, kind in members(source, *where)}
    return sorted(types.items())


def main():
    source = pathlib.Path(sys.argv[1])
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "data" / "deepspeed"
    version = (source / "version.txt").read_text().strip()
    head = "# DeepSpeed %s, %s; written by tests/make_deepspeed.py\n"
    stand_ins()
    scaler = load(source, SCALER).DynamicLossScaler
    schedules = load(source, SCHEDULES)
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "scaler.txt", "w") as file:
        file.write(head % (version, SCALER))
        for case, steps in scaler_cases():
            got = trace(scaler, case, steps)
            runs = ("%s*%d" % (state, len(list(same))) for state, same in itertools.groupby(got))
            file.write("case %d %d %d %d %d\n" % case)
            file.write("steps %s\ntrace %s\n" % (steps[: len(got)], " ".join(runs)))
    with open(out / "keys.txt", "w") as file:
        file.write(head % (version, PAGE))
        file.write("".join("%s %s\n" % item for item in all_keys(source)))
    with open(out / "schedules.txt", "w") as file:
        file.write(head % (version, SCHEDULES))
        for kind, parameters in schedule_cases():
            given = " ".join("%s=%s" % item for item in parameters.items())
            file.write(("case %g %s %s" % (BASE_LR, kind, given)).rstrip() + "\n")
            rates, betas = learning_rates(schedules, kind, parameters)
            file.write("lr %s\nbetas %s\n" % (" ".join(rates), " ".join(betas)))


if __name__ == "__main__":
    main()
