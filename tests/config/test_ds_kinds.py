#!/usr/bin/env python3
"""Kinds of DeepSpeed files as they lie in public repositories (facts of each, in wording of our own): each is read as DeepSpeed
reads it, or refused by a sentence that says what to do."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs

ADAM = '"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}}'
AUTO = '"gradient_accumulation_steps": "auto", "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"'
# name: the file, and what --print-config has at the paths named
READ = {
    "getting started": ('{"train_batch_size": 8, "gradient_accumulation_steps": 1, "optimizer": {"type": "Adam", "params": '
                        '{"lr": 0.00015}}, "fp16": {"enabled": true}, "zero_optimization": true}',
                        {"topology": "zero:1", "dtype": "fp16", "optimizer.params.lr": 0.00015}),
    "zero off, first form": ('{"train_batch_size": 8, "zero_optimization": false, "allgather_size": 5e8, "fp32_allreduce": true}',
                             {"topology": "zero:0", "train_micro_batch_size_per_gpu": 4}),
    "first form with its bucket": ('{"train_batch_size": 8, "zero_optimization": true, "allgather_size": 5e7, "disable_allgather": true}',
                                   {"topology": "zero:1", "zero_optimization.allgather_bucket_size": 50000000}),
    "CIFAR tutorial": ('{"train_batch_size": 16, "steps_per_print": 2000, %s, "scheduler": {"type": "WarmupLR", "params": '
                       '{"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}}, "gradient_clipping": 1.0, '
                       '"prescale_gradients": false, "bf16": {"enabled": false}, "fp16": {"enabled": true, '
                       '"fp16_master_weights_and_grads": false, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, '
                       '"min_loss_scale": 1, "initial_scale_power": 15}, "wall_clock_breakdown": false, "zero_optimization": '
                       '{"stage": 0, "allgather_partitions": true, "reduce_scatter": true, "allgather_bucket_size": 50000000, '
                       '"reduce_bucket_size": 50000000, "overlap_comm": true, "contiguous_gradients": true, "cpu_offload": '
                       'false}}' % ADAM,
                       {"topology": "zero:0", "fp16.loss_scale_window": 500, "fp16.initial_scale_power": 15,
                        "scheduler.type": "WarmupLR", "optimizer.params.betas": [0.8, 0.999]}),
    "no fp16, its keys out of range": ('{"fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 0, "min_loss_scale": 0, '
                                       '"initial_scale_power": 512, "hysteresis": 0}, "train_batch_size": 2}', {"dtype": "fp32"}),
    "a scale that stands": ('{"fp16": {"enabled": true, "loss_scale": "128", "loss_scale_window": 0, "min_loss_scale": 0}}',
                            {"dtype": "fp16", "fp16.loss_scale": 128}),
    "texts for numbers": ('{"train_batch_size": 8, "zero_optimization": {"stage": "3", "reduce_bucket_size": "5e8", '
                          '"stage3_prefetch_bucket_size": "5e7", "stage3_max_live_parameters": "1e9", '
                          '"stage3_param_persistence_threshold": "1e6", "overlap_comm": "True", "zero_hpz_partition_size": "1"}, '
                          '"fp16": {"enabled": "true", "hysteresis": "2", "min_loss_scale": 1.0}}',
                          {"topology": "zero:3", "zero_optimization.reduce_bucket_size": 500000000, "dtype": "fp16",
                           "zero_optimization.stage3_max_live_parameters": 1000000000}),
    "inference: nothing kept": ('{"train_batch_size": 2, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, '
                                '"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, '
                                '"stage3_prefetch_bucket_size": 0, "reduce_bucket_size": 0, "sub_group_size": 0, '
                                '"zero_hpz_partition_size": 0}, "steps_per_print": 2e9}',
                                {"zero_optimization.stage3_prefetch_bucket_size": "none", "steps_per_print": 2000000000,
                                 "zero_optimization.stage3_max_live_parameters": 1, "zero_optimization.reduce_bucket_size": "auto",
                                 "zero_optimization.zero_hpz_partition_size": 1}),
    "sys.maxsize": ('{"zero_optimization": {"stage": 3, "stage3_model_persistence_threshold": 9223372036854775807, '
                    '"stage3_max_live_parameters": 9223372036854775807}}',
                    {"zero_optimization.stage3_max_live_parameters": 9007199254740991}),
    "checkpointing off by false": ('{"activation_checkpointing": {"partition_activations": false, "number_checkpoints": false, '
                                   '"profile": false}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}',
                                   {"activation_checkpointing.number_checkpoints": 0, "activation_checkpointing.recompute": "none"}),
    "all auto": ('{%s, "fp16": {"enabled": "auto", "auto_cast": "auto", "loss_scale": "auto", "hysteresis": "auto"}, "bf16": '
                 '{"enabled": "auto"}, "zero_optimization": {"stage": "auto", "overlap_comm": "auto", "offload_optimizer": "auto", '
                 '"offload_param": {"device": "auto", "pin_memory": "auto", "nvme_path": "auto"}, "zero_hpz_partition_size": '
                 '"auto", "allgather_bucket_size": "auto"}, "gradient_clipping": "auto", "aio": {"block_size": "auto"}}' % AUTO,
                 {"topology": "zero:0", "fp16.hysteresis": 2, "zero_optimization.offload_param.device": "none",
                  "zero_optimization.overlap_comm": True, "zero_optimization.stage": 0, "aio.block_size": 1048576}),
    "LLaMA-Factory, stage 3": ('{%s, "gradient_clipping": "auto", "zero_allow_untested_optimizer": true, "fp16": {"enabled": '
                               '"auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, '
                               '"min_loss_scale": 1}, "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, '
                               '"overlap_comm": false, "contiguous_gradients": true, "sub_group_size": 1e9, '
                               '"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", '
                               '"stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9, '
                               '"stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true}}' % AUTO,
                               {"topology": "zero:3", "zero_optimization.overlap_comm": False, "gradient_clipping": 1}),
    "torch's Adam of accelerate": ('{%s, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", '
                                   '"weight_decay": "auto", "torch_adam": true, "adam_w_mode": true}}, "scheduler": {"type": '
                                   '"WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", '
                                   '"warmup_num_steps": "auto", "total_num_steps": "auto"}}, "zero_optimization": {"stage": 2, '
                                   '"allgather_partitions": true, "round_robin_gradients": true}}' % AUTO,
                                   {"topology": "zero:2", "optimizer.params.lr": 5e-05, "scheduler.params.total_num_steps": 100}),
    "Megatron's template": ('{"train_batch_size" : 8,\n"train_micro_batch_size_per_gpu": 4,\n"steps_per_print": 100,\n'
                            '"zero_optimization": {"stage": 3, "reduce_bucket_size": 10000000, "reduce_scatter": true, '
                            '"zero_quantized_weights": false, "zero_quantized_gradients": false, "zero_hpz_partition_size": 1},\n'
                            '"gradient_clipping": 1.0, "prescale_gradients": false,\n"fp16": {"enabled": false, "loss_scale": '
                            '65536},\n"bf16": {\n"enabled": true,\n}\n"data_types": {"grad_accum_dtype": "float32"}, '
                            '"wall_clock_breakdown": true}',
                            {"topology": "zero:3", "dtype": "bf16", "data_types.grad_accum_dtype": "fp32", "train_batch_size": 8}),
    "switched off": ('{"train_batch_size": 2, "tensor_parallel": {"autotp_size": "1", "tp": {"tp_size": 1}}, "pipeline": {"stages": '
                     '"auto", "partition": "best", "seed_layers": false}, "elasticity": {"max_train_batch_size": 2000, '
                     '"micro_batch_sizes": [2, 4]}, "amp": {"opt_level": "O1"}, "torch_autocast": {"enabled": false, "dtype": '
                     '"bfloat16"}, "progressive_layer_drop": {"theta": 0.5, "gamma": 0.001}, "curriculum_learning": {"enabled": '
                     'false, "min_difficulty": 8}, "data_efficiency": {"enabled": true, "seed": 1234, "data_sampling": {"enabled": '
                     'false, "num_epochs": 3}, "data_routing": {"enabled": false}}, "compression_training": {"layer_reduction": '
                     '{"enabled": false, "keep_number_layer": 5}, "weight_quantization": {"shared_parameters": {"enabled": false, '
                     '"quantize_groups": 48}, "different_groups": {"wq1": {"params": {"start_bits": 8}}}}}, "eigenvalue": '
                     '{"enabled": false, "max_iter": 50}, "expert_parallel": {"enabled": false, "autoep_size": 8}, '
                     '"sequence_parallel_size": 1, "seq_parallel_communication_data_type": "FP32", "gradient_allreduce_op": '
                     '"MEAN", "gradient_predivide_factor": 1.0, "sparse_gradients": false, "zero_optimization": {"stage": 1, '
                     '"zeropp_loco_param": {"err_beta": 0.8}, "mics_shard_size": -1}}', {"topology": "zero:1"}),
    "monitors and profilers": ('{"train_batch_size": 2, "flops_profiler": {"enabled": true, "profile_step": 1, "output_file": null}, '
                               '"comms_logger": {"enabled": true, "prof_ops": ["all_reduce"]}, "wandb": {"enabled": true, "group": '
                               '"g"}, "compile": {"enabled": false, "backend": "inductor"}, "checkpoint": '
                               '{"use_node_local_storage": true}, "nebula": {"enabled": false}, "timers": {"throughput": '
                               '{"enabled": true}}, "hybrid_engine": {"enabled": false, "max_out_tokens": 512}}', {}),
    "remarks": ('{"_comment": "x", "//": "y", "$schema": "z", "#1": 1, "note": {"any": 1}, "zero_optimization": {"stage": 1, '
                '"_offload_optimizer": {"device": "cpu"}, "//stage": 3}, "optimizer_comment": "w"}', {"topology": "zero:1"}),
    "as Hjson": ("# by hand\ntrain_batch_size: 8 // all\n'zero_optimization': {\n  stage: 2\n  offload_optimizer: {\n    device: cpu"
                 "\n  }\n}\noptimizer: {\n  type: AdamW\n  params: {lr: 0.01, betas: [0.9, 0.95]\n}\n}\ntext: '''\n  two\n  lines\n  '''\n",
                 {"topology": "zero:2", "zero_optimization.offload_optimizer.device": "cpu", "optimizer.params.lr": 0.01}),
    "Ludwig's": ('{"type": "deepspeed", "zero_optimization": {"stage": 2}}', {"topology": "zero:2"}),
    "an AIO bench's": ('{"aio": {"block_size": 1000000, "queue_depth": 4096, "intra_op_parallelism": 2, "single_submit": false, '
                       '"overlap_events": true}}', {}),
    "types in any case": ('{"bf16": {"enabled": true}, "communication_data_type": "BF16", "data_types": {"grad_accum_dtype": '
                          '"torch.bfloat16", "param_dtype": "bfloat16", "buffer_dtype": "float32"}}',
                          {"dtype": "bf16", "data_types.grad_accum_dtype": "bf16"}),
    "0/1 for a switch": ('{"fp16": {"enabled": 1}, "zero_optimization": {"stage": true, "overlap_comm": 0}, "optimizer": {"type": '
                         '"SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": 1}}}',
                         {"dtype": "fp16", "topology": "zero:1", "zero_optimization.overlap_comm": False,
                          "optimizer.params.nesterov": True}),
    "true for a norm": ('{"gradient_clipping": true}', {"gradient_clipping": 1}),
    "rates of one group": ('{"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": [0], "warmup_max_lr": [1e-4, 1e-4], '
                           '"total_num_steps": 50}}}', {"scheduler.params.warmup_max_lr": 1e-4}),
    "a test of one group's rate": ('{"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": [1e-4]}}}',
                                   {"scheduler.params.lr_range_test_min_lr": 1e-4}),
    "a constant rate": ('{"scheduler": {"type": "ConstantLR", "params": {"factor": 1}}}', {"optimizer.type": "AdamW"}),
    "a step that changes nothing": ('{"scheduler": {"type": "StepLR", "params": {"step_size": 5, "gamma": 1.0}}}', {"optimizer.type": "AdamW"}),
    "a line that is level": ('{"scheduler": {"type": "LinearLR", "params": {"start_factor": 1}}}', {"optimizer.type": "AdamW"}),
    "texts of nothing": ('{"csv_monitor": {"job_name": "", "output_path": ""}, "tensorboard": {"job_name": ""}, "zero_optimization": '
                         '{"stage": 1, "offload_optimizer": {"device": "cpu", "nvme_path": ""}}}', {"csv_monitor.job_name": ""}),
    "harmless arguments": ('{"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "foreach": true, "fused": true, "capturable": false, '
                           '"differentiable": false, "maximize": false, "amsgrad": false, "set_grad_none": true, "torch_adam": true, '
                           '"weight_decay": 0, "_remark": 1}}}', {"optimizer.params.lr": 0.001}),
    "no clipping": ('{"gradient_clipping": -1}', {"gradient_clipping": 0}),
    "an empty scheduler": ('{"scheduler": {}, "optimizer": {"type": "AdamW"}}', {"optimizer.type": "AdamW"}),
    "a cycle": ('{"scheduler": {"type": "OneCycle", "params": {"cycle_first_step_size": 1000, "cycle_first_stair_count": 500, '
                '"cycle_second_step_size": 1000, "cycle_second_stair_count": 500, "decay_step_size": 1000, "cycle_min_lr": 0.0001, '
                '"cycle_max_lr": 0.001, "decay_lr_rate": 0.001, "cycle_min_mom": 0.85, "cycle_max_mom": 0.99, "decay_mom_rate": '
                '0.0}}, "optimizer": {"type": "Adam", "params": {"lr": 0.00015}}}', {"scheduler.params.cycle_max_mom": 0.99}),
}
# name: the file, and words of the error
REFUSED = {
    "an array": ("[1, 2]", "expected an object"),
    "nothing": ("", "1:1: expected a value"),
    "Python's words": ('{\n"fp16": {\n"enabled": True,\n}}', "fp16.enabled: expected true or false.*without quotes a text goes to the end"),
    "one line, no quotes": ("{optimizer: {type: AdamW}}", "the text at 1:20 has no quotes"),
    "a shell's word": ('{"train_batch_size": $GLOBAL_BATCH,\n "steps_per_print": 10}', "GLOBAL_BATCH,\"; without quotes"),
    "given twice": ('{"train_batch_size": 4, "train_batch_size": 8}', ":1:25: .* is given twice"),
    "a section as a switch": ('{"bf16": true}', 'bf16: expected an object {..}, as {"enabled": true}'),
    "a section as a number": ('{"zero_optimization": 2}', 'as {"stage": 1}, got 2'),
    "the optimizer's name alone": ('{"optimizer": "Adam"}', 'as {"type": "AdamW"}, got "Adam"'),
    "both types": ('{"fp16": {"enabled": true}, "bf16": {"enabled": true}}', "both true: enable one"),
    "a text for the rate": ('{"optimizer": {"type": "AdamW", "params": {"lr": "2e-5"}}}', "write the number 2e-05"),
    "a rate as C writes it": ('{"optimizer": {"params": {\n"lr": .0006\n}}}', "write the number 0.0006"),
    "a text for a switch": ('{"optimizer": {"params": {"adam_w_mode": "false"}}}', "takes any text for true: write false"),
    "a scale that moves by nothing": ('{"fp16": {"enabled": true, "loss_scale_window": 0}}', "loss_scale_window 0: a loss scale that moves"),
    "a truth value as a scale": ('{"fp16": {"enabled": true, "loss_scale": false}}', "fp16.loss_scale: expected a number"),
    "a bucket with a fraction": ('{"zero_optimization": {"stage3_prefetch_bucket_size": 15099494.4, "stage": 3}}', "expected an integer"),
    "a bucket below 0": ('{"zero_optimization": {"reduce_bucket_size": -1}}', "reduce_bucket_size: expected an integer of at least 0"),
    "torch's cosine": ('{"optimizer": {"type": "AdamW", "params": {"lr": 0.0005}}, "scheduler": {"type": "CosineAnnealingLR", '
                       '"params": {"T_max": 10, "eta_min": 5e-6}}}',
                       'nearest here is "type": "WarmupCosineLR" with "warmup_num_steps": 2, "total_num_steps": 10, "cos_min_ratio": 0.01'),
    "torch's others": ('{"scheduler": {"type": "StepLR", "params": {"step_size": 5}}}', "StepLR is torch's.*no schedule here is like it"),
    "a line that returns": ('{"scheduler": {"type": "LinearLR", "params": {"start_factor": 0.5, "end_factor": 2}}}', "the nearest here"),
    "two groups": ('{"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": [1e-4, 1e-5]}}}', "warmup_max_lr: expected a number, or a list of equal ones"),
    "no group": ('{"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": []}}}', "warmup_max_lr: expected a number"),
    "a scheduler's auto": ('{"scheduler": "auto"}', 'as {"type": "WarmupLR"}, got "auto"'),
    "a text for off, amp": ('{"amp": {"enabled": "false"}}', "amp.*any text for true: write false without quotes"),
    "a text for off, elasticity": ('{"elasticity": {"enabled": "False", "micro_batch_sizes": [2]}}', "elasticity.*write false without quotes"),
    "a text for off, one switch": ('{"prescale_gradients": "false"}', "prescale_gradients.*write false without quotes"),
    "a text for off, an argument": ('{"optimizer": {"params": {"amsgrad": "no"}}}', "amsgrad.*write false without quotes"),
    "another library's argument": ('{"optimizer": {"type": "AdamW", "params": {"epsilon": 1e-6}}}', "unknown key optimizer.params.epsilon; .* name is eps; DeepSpeed refuses"),
    "Hugging Face's bias": ('{"optimizer": {"type": "AdamW", "params": {"correct_bias": false}}}', "correct_bias; .* name is bias_correction;"),
    "an argument like none": ('{"optimizer": {"type": "AdamW", "params": {"qqqqqqq": 1}}}', "unknown key optimizer.params.qqqqqqq; DeepSpeed refuses"),
    "a schedule's argument": ('{"scheduler": {"type": "WarmupLR", "params": {"warmup_ratio": 0.1}}}', "warmup_ratio; .* name is warmup_num_steps;"),
    "typographic quotes": ('{ "train_batch_size": 4,\n \u201czero_optimization\u201d: {\u201cstage\u201d: 3}\n}', r":2:2: expected a member's name, got '\u201c' \(U\+201C\).*write a plain \""),
    "a typographic value": ('{ "topology": \u2018local\u2019\n}', r":1:15: expected a value.*got '\u2018' \(U\+2018\)"),
    "a blank that does not break": ('{\n\u00a0"zero_optimization": {"stage": 3}\n}', r":2:1: expected a member's name.*U\+00A0.*write a blank"),
    "tensors cut": ('{"tensor_parallel": {"tp_size": 8}}', "tensor_parallel.*remove the key or turn it off"),
    "a pipeline": ('{"pipeline": {"pipe_parallel_size": 2}}', "pipeline.*remove the key"),
    "quantized": ('{"zero_optimization": {"stage": 3, "zero_quantized_weights": "true"}}', "zero_quantized_weights.*remove the key"),
    "elastic": ('{"elasticity": {"enabled": true, "micro_batch_sizes": [2]}}', "elasticity.*give the batch sizes themselves"),
    "a curriculum": ('{"data_efficiency": {"enabled": true, "data_sampling": {"enabled": true}}}', "data_efficiency.*remove the key"),
    "compression": ('{"compression_training": {"row_pruning": {"shared_parameters": {"enabled": true}}}}', "compression_training.*remove"),
    "apex": ('{"amp": {"enabled": true, "opt_level": "O2"}}', "amp.*use bf16 or fp16"),
    "clipping of old": ('{"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "max_grad_norm": 1.0}}}', "max_grad_norm.*use gradient_clipping"),
    "Lamb": ('{"optimizer": {"type": "OneBitLamb", "params": {"lr": 1e-3, "max_coeff": 0.3}}}', "OneBitLamb.*possible are Adam, AdamW"),
    "0/1 Adam": ('{"optimizer": {"type": "ZeroOneAdam", "params": {"var_freeze_step": 1000}}}', "ZeroOneAdam.*possible are"),
    "another wire": ('{"communication_data_type": "bf32"}', 'communication_data_type: expected one of.*"bf16"'),
    "weights of another type": ('{"bf16": {"enabled": true}, "data_types": {"param_dtype": "float32"}}', "param_dtype fp32 is not the run's"),
    "accelerate's": ('{"compute_environment": "LOCAL_MACHINE"}', "accelerate's file.*deepspeed_config_file names"),
    "a trainer's": ('{"model_name_or_path": "m", "deepspeed": "ds.json"}', "its key deepspeed names"),
    "a model's": ('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}', "a model's config.json.*--model"),
    "accelerate's as YAML": ("compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  zero_stage: 2\n", "accelerate's file"),
}


class Kinds(Runs):
    def print_config(self, text, *words):
        self.write(text, "ds.json")
        return subprocess.run([PROGRAM, "train", "-c", "ds.json", "--print-config", "--workers", "2", *words], cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)

    def check_one_line(self, said):
        short = [line for line in said.splitlines() if line.endswith(": --print-config says why")]
        self.assertLessEqual(len(short), 1, said)
        counted = sum(int(n) for n in re.findall(r"(\d+) keys? ", short[0])) if short else 0
        self.assertEqual(counted > 0, bool(short), said)

    def test_read(self):
        for name, (text, wanted) in READ.items():
            with self.subTest(name):
                p = self.print_config(text)
                self.assertEqual(p.returncode, 0, p.stderr)
                for path, value in wanted.items():
                    at = json.loads(p.stdout)
                    for key in path.split("."):
                        at = at[key]
                    self.assertEqual(at, value, path)
                self.check_one_line(p.stderr)
                # The printed configuration means the same.
                again = self.print_config(p.stdout)
                self.assertEqual(json.loads(again.stdout), json.loads(p.stdout))

    def test_refused(self):
        for name, (text, words) in REFUSED.items():
            with self.subTest(name):
                p = self.print_config(text)
                self.assertEqual(p.returncode, 2, p.stderr)
                self.assertRegex(p.stderr.splitlines()[-1], words)
                self.assertIn("ds.json", p.stderr)

    def test_the_nearest_of_torchs_schedulers_trains(self):
        for name, params in (("CosineAnnealingLR", {"T_max": 50, "eta_min": 5e-6}), ("CosineAnnealingWarmRestarts", {"T_0": 20}),
                             ("LinearLR", {"total_iters": 20, "start_factor": 0.1}), ("ConstantLR", {"factor": 0.5}),
                             ("PolynomialLR", {"total_iters": 50}),
                             ("CyclicLR", {"base_lr": 1e-5, "max_lr": 1e-3}), ("OneCycleLR", {"max_lr": 0.01, "total_steps": 50, "pct_start": 0.4, "div_factor": 10})):
            file = {"optimizer": {"type": "AdamW", "params": {"lr": 5e-4}}, "scheduler": {"type": name, "params": params}}
            p = self.print_config(json.dumps(file))
            said = re.search(name + r' is torch\'s.* "type": "(\w+)" with (.*)', p.stderr)
            self.assertTrue(said, p.stderr)
            file["scheduler"] = {"type": said.group(1), "params": json.loads("{" + said.group(2) + "}")}
            p = self.print_config(json.dumps(file))
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertNotIn("warning", p.stderr)
            if name == "OneCycleLR":
                self.assertIn('"cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 20, "cycle_second_step_size": 30',
                              said.group(2))

    def test_remarks(self):
        self.assertIn("ConstantLR with these parameters keeps the rate constant: no schedule is used", self.print_config(READ["a constant rate"][0]).stderr)
        self.assertIn("gradient_clipping true is 1, in DeepSpeed as here", self.print_config(READ["true for a norm"][0]).stderr)
        self.assertIn("unknown key text is ignored", self.print_config(READ["as Hjson"][0]).stderr)
        self.assertNotIn("unknown", self.print_config(READ["remarks"][0]).stderr)

    def test_numbers_of_the_command_line(self):
        for flags, path, value in ((["--lr", ".001"], "lr", 0.001), (["--lr", "1.e-3"], "lr", 0.001), (["--lr", "+1E-3"], "lr", 0.001),
                                   (["--lr", "001e-3"], "lr", 0.001), (["--set", "optimizer.params.betas=0.9,0.95"], "betas", [0.9, 0.95]),
                                   (["--set", "optimizer.params.betas=(.8, .95)"], "betas", [0.8, 0.95]),
                                   (["--set", "optimizer.params.betas=[0.8,0.95]"], "betas", [0.8, 0.95])):
            p = self.print_config("{}", *flags)
            self.assertEqual(p.returncode, 0, (flags, p.stderr))
            self.assertEqual(json.loads(p.stdout)["optimizer"]["params"][path], value, flags)
        for flags, path, value in ((["--seed", "007"], "seed", 7), (["--steps", "+2"], "steps", 2), (["--steps", "1e3"], "steps", 1000),
                                   (["--dtype", "BFloat16"], "dtype", "bf16"), (["--dtype", "torch.float16"], "dtype", "fp16"),
                                   (["--set", "gradient_clipping=.5"], "gradient_clipping", 0.5), (["--set", "trace=yes"], "trace", True),
                                   (["--set", "zero_optimization=true"], "topology", "zero:1"), (["--set", "steps=5."], "steps", 5)):
            p = self.print_config("{}", *flags)
            self.assertEqual(p.returncode, 0, (flags, p.stderr))
            self.assertEqual(json.loads(p.stdout)[path], value, flags)
        for flags in (["--steps", "1_000"], ["--steps", "1,000"], ["--lr", "1e-3x"], ["--lr", "nan"], ["--lr", ""], ["--steps", "2.5"],
                      ["--set", "optimizer.params.betas=0.9"], ["--set", "optimizer.params.betas=0.9,x"], ["--seed", "1e30"]):
            p = self.print_config("{}", *flags)
            self.assertEqual(p.returncode, 2, flags)
            self.assertIn("expected", p.stderr)

    def test_flags_of_other_programs(self):
        for flag, words in (("--deepspeed", "did you mean -c FILE?"), ("--deepspeed_config=x", "did you mean -c FILE?"),
                            ("--local_rank=0", "the rank is read from the environment"), ("--local-rank", "read from the environment"),
                            ("--config_file", "did you mean -c FILE?"), ("--num_gpus", "did you mean --workers N?"),
                            ("--zero-stage=2", "did you mean --topology zero:S?"), ("--num_nodes=2", "experiments/over_ssh.py --hosts H:N,.. "),
                            ("--replicate", "give --restart N and --checkpoint-every K")):
            p = self.print_config("{}", flag, "x")
            self.assertEqual(p.returncode, 2)
            self.assertIn(words, p.stderr)

    def test_utf_16(self):
        for name, text in (("utf-16", "{}"), ("utf-16-le", '{"steps": 2}'), ("utf-16-be", '{"steps": 2}')):
            with open(self.at("wide.json"), "wb") as f:
                f.write(text.encode(name))
            self.refused("train", "-c", "wide.json", "--print-config", said="iconv -f UTF-16 -t UTF-8 wide.json")

    def test_a_pipe_is_read(self):
        self.write('{"steps": 3, "seed": 9}', "ds.json")
        for words in ("train -c <(cat ds.json) --print-config", "train -c /dev/stdin --print-config < <(cat ds.json)"):
            p = subprocess.run(["bash", "-c", f"{PROGRAM} {words}"], cwd=self.folder, stdout=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual((json.loads(p.stdout)["steps"], json.loads(p.stdout)["seed"]), (3, 9))
        # Ranks find it, whoever starts them.
        self.write("text " * 200, "text.txt")
        train = f"{PROGRAM} train -c <(cat ds.json) --model tiny --data text.txt --seq 16 --batch 1 --threads 1 --no-weights --quiet " \
                "--set eval_batches=none --topology zero:1 --workers 2 --out"
        for launch in ["processes"] + (["mpi"] if shutil.which("mpirun") else []):
            p = subprocess.run(["bash", "-c", f"{train} {launch} --launch {launch}"], cwd=self.folder, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertEqual(self.summary(launch)["steps"], 3)
        self.write("x: 1", "acc.yaml")
        self.refused("train", "-c", "acc.yaml", said="a file of YAML")
        self.refused("train", "-c", '{"steps": 1}', said="the text of a configuration, where a file is expected")


if __name__ == "__main__":
    unittest.main()
