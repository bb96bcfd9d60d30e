#!/usr/bin/env python3
"""The messages about a run's configuration before it begins: each remark once, however many processes read it; which value replaced a
missing one; all errors of its files at once; the cost of many ranks on few cores."""
import json
import os
import re
import shlex
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs

MODEL = {"model_type": "gpt2", "vocab_size": 257, "n_embd": 20, "n_layer": 1, "n_head": 5, "n_positions": 33,
         "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
DROPOUTS = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.2}
FILE = '{"wandb": {"enabled": true},\n "wall_clock_breakdown": true\n "steps": 2}\n'
TRAIN = ["train", "--seq", "16", "--batch", "1", "--threads", "1", "--steps", "2", "--no-weights", "--force", "--set",
         "eval_batches=none"]


class Told(Runs):
    def setUp(self):
        super().setUp()
        self.write(json.dumps(MODEL), "model.json")
        self.write(json.dumps(MODEL | DROPOUTS), "drops.json")
        self.write(FILE, "ds.json")

    def said(self, *more, **how):
        return self.run_it(*TRAIN, "--out", "r", *more, **how).stderr.splitlines()

    def test_each_remark_once(self):
        runs = (["--topology", "local"], ["--topology", "zero:1", "--workers", "3"],
                ["--topology", "zero:1", "--workers", "2", "--launch", "processes"],
                ["--topology", "ps:sync", "--workers", "3", "--servers", "2"],
                ["--topology", "ps:sync", "--workers", "2", "--restart", "1", "--checkpoint-every", "1"],
                ["--topology", "local", "--restart", "1", "--checkpoint-every", "1"])
        for run in runs:
            lines = self.said("-c", "ds.json", "--model", "drops.json", *run)
            self.assertEqual(sorted(set(lines)), sorted(lines), run)
            for words in ('"resid_pdrop" is 0.1', '"embd_pdrop" is 0.1', '"attn_pdrop" is 0.2', "wandb",
                          "wall_clock_breakdown", "names no optimizer", "gradient_clipping is not"):
                self.assertEqual(len([line for line in lines if words in line]), 1, (run, words, lines))
            quiet = self.said("-c", "ds.json", "--model", "drops.json", "--quiet", *run)
            self.assertEqual(len(quiet), 4, (run, quiet))
            for line in quiet:
                self.assertTrue(line.startswith("starring: warning: "), (run, line))

    def test_no_file_commands_the_terminal(self):
        """A stranger's file names things in its own words: none that a terminal obeys."""
        self.write(json.dumps({"\x1b[31mred\x07\x9b2J\x7f, and naïve": 1}, ensure_ascii=False).replace("\x7f", "\\u007f"), "evil.json")
        lines = self.said("-c", "evil.json", "--model", "drops.json", "--topology", "local")
        self.assertTrue([line for line in lines if "unknown key ?[31mred???2J?, and naïve is ignored" in line], lines)

    def test_ranks_of_another_mpirun(self):
        p = self.run_it("--oversubscribe", "-n", "2", PROGRAM, *TRAIN, "--out", "r", "-c", "ds.json", "--model", "drops.json", "--topology", "zero:1",
                        program="mpirun")
        lines = [line for line in p.stderr.splitlines() if line.startswith("starring")]
        self.assertEqual(sorted(set(lines)), sorted(lines))
        self.assertEqual(len(lines), 6, lines)

    def test_who_chose_what(self):
        self.write('{"gradient_clipping": 1.0, "optimizer": {"type": "Lion"}}', "all.json")
        self.write('{"optimizer": {"params": {"lr": 0.01}}}', "some.json")
        both = ["--model", "model.json", "--topology", "ps:sync", "--workers", "2"]
        self.assertEqual(self.said("-c", "all.json", *both), [])
        self.assertEqual(self.said("--set", "gradient_clipping=1", *both), [])
        self.assertEqual(len(self.said(*both)), 1)
        lines = self.said("-c", "some.json", *both)
        self.assertEqual(lines, ["starring: some.json names no optimizer: AdamW with lr 0.01 is used (DeepSpeed would use the "
                                 "optimizer that your Python program gives it)",
                                 "starring: gradient_clipping is not given: 1 is used, DeepSpeed's default (0: no clipping)"])

    def test_flags_that_take_away_what_another_asks_for(self):
        for flags in (["--quiet", "--full"], ["--save-on-interrupt", "--no-weights"], ["--dry-run", "--print-config"]):
            lines = self.said("--topology", "local", *flags, status=2)
            self.assertEqual(len(lines), 1, lines)
            for word in (*flags, "give one of them"):
                self.assertIn(word, lines[0])

    def test_a_network_that_the_ranks_do_not_choose(self):
        for flags, said in ((["--interface", "lo"], "--interface lo: the ranks of this run are on one machine"),
                            (["--interface", "eth1", "--collective", "mpi"], "set OMPI_MCA_btl_tcp_if_include=eth1")):
            self.assertIn(said, "".join(self.said("--topology", "zero:1", "--workers", "2", *flags, status=2)))

    def test_all_that_is_wrong_at_once(self):
        self.write("", "file")
        for run in (["--topology", "local"], ["--topology", "ps:sync", "--workers", "2"],
                    ["--topology", "zero:0", "--workers", "2", "--launch", "processes"]):
            lines = self.said(*run, "--model", "no-model", "--data", "no-data", "--set", "data.val_path=no-text", "--resume",
                              "no-run", "--out", "file", "--quiet", status=2)
            for name in ("no-model", "no-data", "no-text", "no-run", "file: is a file"):
                self.assertEqual(len([line for line in lines if name in line]), 1, (run, name, lines))
            self.assertEqual(len(lines), 5, lines)
        lines = self.said("--model", "model.json", "--data", "no-data", "--out", "file/below", "--quiet", status=2)
        self.assertEqual(len(lines), 2, lines)
        # Beside them what this machine lacks, whoever starts the ranks, and where monitors write.
        monitors = [word for key in ("tensorboard", "csv_monitor")
                    for word in ("--set", f"{key}.enabled=true", "--set", f"{key}.output_path=file/{key}")]
        disk = "zero_optimization.offload_optimizer"
        for run, name, env in ((["--topology", "ps:sync"], "STARRING_JOB_KEY", {"STARRING_JOB_KEY": "none"}),
                               (["--topology", "zero:1", "--set", f"{disk}.device=nvme", "--set", f"{disk}.nvme_path=no-disk"], "no-disk", {})):
            for more in ([], ["--restart", "1", "--checkpoint-every", "1"]):
                lines = self.said(*run, *more, "--model", "no-model", "--data", "no-data", "--out", "/proc/zz", *monitors, status=2, env=env)
                for word in (name, "no-model", "no-data", "/proc/zz", "tensorboard.output_path", "csv_monitor.output_path"):
                    self.assertEqual(len([line for line in lines if word in line]), 1, (run, word, lines))
                self.assertEqual(len(lines), 6, lines)

    @unittest.skipUnless(os.geteuid() == 0, "root alone can be somebody else")
    def test_a_folder_that_may_not_be_read_is_not_called_empty(self):
        os.chmod(self.folder, 0o755)
        os.mkdir(self.at("closed"), 0o700)
        for words in (["summary", "closed"], ["evaluate", "closed"], ["generate", "--model", "closed", "--prompt", "x"],
                      [*TRAIN, "--model", "model.json", "--topology", "local", "--resume", "closed"]):
            try:
                p = self.run_it(*words, status=2, user=65534, group=65534, extra_groups=[])
            except PermissionError:
                self.skipTest("another user does not reach the program")
            self.assertRegex(p.stderr, r"^starring: error: (\S+ )?closed: Permission denied\n$|--resume: closed: Permission denied\n$")
        self.assertEqual(self.run_it("evaluate", "none", status=2).stderr, "starring: error: evaluate none: No such file or directory\n")

    # A key of an earlier version, and words of the sentence that names the replacement.
    GONE = {"train --print-config --set parameter_server.distinct_workers=true": "distinct_workers: .*are no longer supported: leave it out.* or use ps:backup:B",
            "train --print-config --set cuda.products=table.json": "cuda.products: tables of measured matrix products have gone: leave it out",
            "train --hosts h1:2,h2": "--hosts: experiments/over_ssh.py --hosts H:N,.. starring train .. starts ranks on other hosts over ssh",
            "train --hostfile=f": "--hostfile: experiments/over_ssh.py --hosts H:N,.. starring train ..",
            "train --stage": "--stage: copy what the hosts need by rsync .*, and start the ranks with experiments/over_ssh.py",
            "train --print-config --launch ssh": "launch \"ssh\" has gone: experiments/over_ssh.py --hosts H:N,.. starring train ..",
            "bench tune --model tiny": "bench tune: tables of measured products were removed: .*starring bench kernels --device cuda times"}

    def test_what_has_gone_says_what_to_use(self):
        for words, said in self.GONE.items():
            with self.subTest(words):
                self.assertRegex(self.run_it(*words.split(), status=2).stderr, said)

    def test_a_key_that_has_gone_and_is_off_is_accepted(self):
        for value in ("auto", "none"):
            p = self.run_it("train", "--print-config", "--set", f"cuda.products={value}")
            self.assertNotIn("products", p.stdout)

    def test_a_run_of_an_earlier_version_is_shown(self):
        self.run_it(*TRAIN, "--model", "model.json", "--topology", "local", "--out", "earlier")
        with open(self.at("earlier", "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        config["security"]["keys"] = "keys"
        with open(self.at("earlier", "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        p = self.run_it("summary", "earlier", status=1)
        self.assertRegex(p.stderr, "earlier/config.json: security.keys: all processes of a job have one key, .*\n"
                                   ".*earlier/config.json is damaged or of another version, so the configuration of the run is not known")
        self.assertRegex(p.stdout, r"(?m)^weights +hash [0-9a-f]{16}$")

    def test_the_last_line_can_be_typed(self):
        out = "my runs/100%s of mine"
        p = self.run_it(*TRAIN, "--model", "model.json", "--topology", "local", "--out", out)
        files, typed = re.fullmatch(r"files +(.*)   \(every figure: (.*)\)", p.stdout.splitlines()[-1]).groups()
        self.assertEqual((files, shlex.split(typed)), (out, [PROGRAM, "summary", out]))

    def test_commands_are_printed_as_this_program_was_called(self):
        benches = [f"bench {name}" for name in ("", "step", "kernels", "adam", "collective", "zero", "ps", "checkpoint", "offload")]
        for words in ("", "train", "scheduler", "server", "worker", "plan", "keygen", "data", "summary", "evaluate", "generate", *benches):
            said = self.run_it(*words.split(), "--help").stdout
            self.assertIn(f"{shlex.quote(PROGRAM)} ", said)
            self.assertEqual(re.findall(r"(?m)^(?: *|.*mpirun .*)\bstarring .*", said.replace(shlex.quote(PROGRAM), "")), [], words)
        for words in (["data", "info"], ["data", "wrap", "x"], ["keygen", "--nope"], ["train", "--nope"], ["plan", "word"]):
            p = self.run_it(*words, status=None)
            self.assertIn(f"ee {shlex.quote(PROGRAM)} {' '.join(words[:1 + (words[0] == 'data')])} --help", p.stderr)

    def test_what_many_ranks_cost(self):
        cores = os.cpu_count()
        # More than its device has, so that nothing starts.
        run = ["--model", "model.json", "--topology", "ps:sync", "--workers", "2", "--device-memory", "1K", "--set",
               "gradient_clipping=1"]
        lines = self.said(*run, "--servers", str(8 * cores), status=2)
        self.assertRegex(lines[0], rf"^starring: {8 * cores + 2} ranks share {cores} cores?, so a step is slow and needs .* more memory. Use fewer.$")
        self.assertEqual(len([line for line in self.said(*run, "--servers", str(8 * cores - 2), status=2) if "share" in line]), 0)
        self.assertEqual(len([line for line in self.said(*run, "--servers", "1000", "--quiet", status=2) if "share" in line]), 0)


if __name__ == "__main__":
    unittest.main()
