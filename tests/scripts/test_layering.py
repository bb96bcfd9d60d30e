#!/usr/bin/env python3
"""Which file may include which, that rooms are layers, and that no files use each other in a circle.
`test_layering.py --circles` prints the circles and what ties them."""
import functools
import os
import re
import subprocess
import sys
import tempfile
import unittest

import circles

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODULES = {
    "kernels": {"kernels"},
    "shared": {"shared", "kernels", "proto"},
    "ps": {"ps", "shared", "kernels", "proto"},
    "decentral": {"decentral", "shared", "kernels"},
}
# The rooms of a box from the lowest to the highest: a file may include its own room and those of lower layers. A room is a
# box, or a folder of it with all that lies below; rooms of one layer do not see each other. Boxes that are not named have
# no order yet.
LAYERS = {
    "kernels": [{"kernels"},                                      # the device's interface, operations, codes, loading
                {"kernels/queue"},                                # what a stream is
                {"kernels/ref", "kernels/cpu", "kernels/cuda"}],  # the backends: one never sees another
    "shared": [{"shared/core"},                                   # errors, files, JSON, units, the hooks of a topology
               {"shared/model"}, {"shared/config"},               # the model without ranks; keys as rows
               {"shared/device", "shared/time"},                  # choosing a device; where a step's time went
               {"shared/fabric"},                                 # the processes of a job: who is there, what they say to each other
               {"shared/hf"}, {"shared/data"},
               {"shared/state"}, {"shared/report"},               # what survives; the files of a run
               {"shared/infer"},                                  # passes without training: snapshots' losses, text
               {"shared/train"},                                  # the loop, one rank's session
               {"shared/launch"},                                 # processes, restarts, the end of a run
               {"shared/predict", "shared/offload"},              # memory and bytes before a run, and what fits
               {"shared/bench"},
               {"shared/command"}],                               # what a person types
    "ps": [{"ps/job"},                                            # facts of a star's job: keys, codes, shards, rules, times
           {"ps/net"},                                            # messages, and the link under them
           {"ps/record"},                                         # orders of arrivals, and staleness
           {"ps/agree"},                                          # what the roles agree on: batches, members, the start
           {"ps/server", "ps/worker", "ps/scheduler"},            # the roles: one never sees another
           {"ps/bench"}, {"ps"}],
    "decentral": [{"decentral/collective"},                       # what each collective does; threads and processes
                  {"decentral/mpi", "decentral/tcp", "decentral/nccl", "decentral/zero"},
                  {"decentral"}, {"decentral/bench"}],
}
# header pattern: the only files that may include it
PRIVATE = {
    r"zmq\.h": r"shared/fabric/.*",
    r"mpi\.h": r"decentral/mpi/.*",
    r"nccl\.h": r"tests/.*",
    r"liburing\.h": r"shared/offload/disk_lane\.c",
    r"(cuda|cublas|cudnn|cuda_).*": r"kernels/cuda/.*",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


def includes_against_rules(path, text):
    """Sentences about the includes of one file; path is relative to the top of the repository."""
    module = path.split("/")[0]
    found = []
    for header in INCLUDE.findall(text):
        header = os.path.normpath(header)
        if header.startswith(".."):
            found.append(f"{path} includes {header}: write the path from the top of the repository")
        target = header.split("/")[0]
        if module in MODULES and "/" in header and target in set(MODULES) | {"proto", "tests", "experiments"} \
                and target not in MODULES[module]:
            found.append(f"{path} includes {header}: {module}/ may use {', '.join(sorted(MODULES[module]))} only")
        for pattern, allowed in PRIVATE.items():
            if re.fullmatch(pattern, header) and not re.fullmatch(allowed, path):
                if not path.startswith("tests/"):
                    found.append(f"{path} includes {header}: only {allowed} may")
    if path not in ("starring.c",) and not path.startswith("tests/"):
        if {"ps", "decentral"} <= {h.split("/")[0] for h in INCLUDE.findall(text)}:
            found.append(f"{path} sees both ps/ and decentral/: only starring.c may")
    return found


def room_of_file(path):
    return "/".join(path.split("/")[:-1][:2])


def includes_against_layers(path, text, layers=None):
    """Sentences about the includes of one file that go to a room of its own layer or of a higher one."""
    order = {room: at for rows in (layers or LAYERS).values() for at, rooms in enumerate(rows) for room in rooms}
    box, room = path.split("/")[0], room_of_file(path)
    if box not in (layers or LAYERS):
        return []
    if room not in order:
        return [f"{path}: {room}/ has no layer: give it one in LAYERS of tests/scripts/test_layering.py"]
    found = []
    for header in INCLUDE.findall(text):
        used = room_of_file(header)
        if header.split("/")[0] == box and "/" in header and used != room and order.get(used, order[room]) >= order[room]:
            found.append(f"{path} includes {header}: {room}/ is not above {used}/")
    return found


def sources(*endings):
    for folder, folders, files in os.walk(TOP):
        folders[:] = [d for d in folders if not d.startswith((".", "build", "runs")) and d not in ("data", "vectors", "__pycache__")]
        for name in files:
            if name.endswith(endings):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as f:
                    yield os.path.relpath(path, TOP), f.read()


@functools.cache
def read_uses():
    """(circles.Uses of the whole tree, the files whose objects were read)."""
    texts = dict(sources(*circles.ENDINGS))
    uses = circles.Uses()
    circles.add_includes(uses, texts)
    circles.add_imports(uses, texts)
    build = os.path.dirname(os.environ.get("STARRING", "")) or os.path.join(TOP, "build")
    symbols, old = circles.symbols_of(TOP, build, texts)
    circles.add_calls(uses, symbols)
    if old:
        print(f"circles: {old} objects are older than their sources: their calls are not seen", file=sys.stderr)
    return uses, set(symbols)


def room_of(circle):
    return os.path.commonpath([os.path.dirname(file) or "." for file in circle])


class Layering(unittest.TestCase):
    def test_includes(self):
        found = [s for path, text in sources(".c", ".h", ".cc", ".cu", ".cuh") for s in includes_against_rules(path, text)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_rooms_are_layers(self):
        found = [s for path, text in sources(".c", ".h", ".cc", ".cu", ".cuh") for s in includes_against_layers(path, text)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_cpp_is_where_a_library_wants_it(self):
        found = [path for path, _ in sources(".cc", ".cpp", ".cxx") if not re.match(r"tests/|ps/bench/pslite_peer\.cc", path)]
        self.assertEqual(found, [])

    def test_there_is_no_circle_of_files(self):
        uses, _ = read_uses()
        found = [line for circle in uses.circles() for line in [" ".join(circle) + " use each other:"] + uses.describe(circle)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_calls_are_seen(self):
        _, seen = read_uses()
        missing = [path for path, _ in sources(".c") if path.split("/")[0] in MODULES
                   and not path.startswith("kernels/cuda/") and circles.file_of(path) not in seen]
        if len(missing) > 10:
            self.skipTest(f"{len(missing)} sources have no object of their age: build first, so that circles of calls are seen")

    def test_there_is_something_to_check(self):
        self.assertGreater(sum(1 for _ in sources(".c", ".h")), 20)


class TheRulesThemselves(unittest.TestCase):
    """The checks above must be able to fail."""

    def test_forbidden_includes_are_found(self):
        for path, header in (("shared/train/train.c", "ps/job/ps.h"), ("shared/report/x.c", "decentral/zero/zero.h"),
                             ("kernels/cpu/adamw.c", "shared/core/error.h"), ("ps/worker/worker.c", "decentral/zero/zero.h"),
                             ("decentral/zero/zero.c", "ps/net/wire.h"), ("decentral/zero/zero.c", "mpi.h"),
                             ("shared/train/train.c", "zmq.h"), ("kernels/cpu/x.c", "cuda_runtime.h"),
                             ("decentral/zero/zero.c", "nccl.h"), ("ps/server/server.c", "../shared/core/error.h")):
            self.assertEqual(len(includes_against_rules(path, f'#include "{header}"\n')), 1, (path, header))
        both = '#include "ps/job/ps.h"\n#include "decentral/zero/zero.h"\n'
        self.assertTrue(includes_against_rules("experiments/x.c", both))
        self.assertFalse(includes_against_rules("starring.c", both))

    def test_allowed_includes_pass(self):
        for path, header in (("shared/fabric/sockets.c", "zmq.h"), ("decentral/mpi/collective_mpi.c", "mpi.h"),
                             ("ps/net/wire.c", "proto/ps.pb-c.h"), ("shared/train/train.c", "kernels/backend.h")):
            self.assertEqual(includes_against_rules(path, f"#include <{header}>\n"), [], (path, header))

    def test_includes_of_higher_rooms_are_found(self):
        layers = {"a": [{"a"}, {"a/low"}, {"a/high", "a/beside"}]}
        for path, header, count in (("a/high/x.c", "a/low/y.h", 0), ("a/high/x.c", "a/high/deep/y.h", 0), ("a/high/x.c", "a/y.h", 0),
                                    ("a/high/x.c", "b/y.h", 0), ("b/x.c", "a/high/y.h", 0), ("a/low/x.c", "y.h", 0),
                                    ("a/low/x.c", "a/high/y.h", 1), ("a/x.c", "a/low/y.h", 1), ("a/high/deep/x.c", "a/beside/y.h", 1),
                                    ("a/new/x.c", "a/y.h", 1)):
            self.assertEqual(len(includes_against_layers(path, f'#include "{header}"\n', layers)), count, (path, header))

    @staticmethod
    def circles_of(texts, symbols=None):
        uses = circles.Uses()
        circles.add_includes(uses, texts)
        circles.add_imports(uses, texts)
        circles.add_calls(uses, symbols or {})
        return uses.circles()

    def test_circles_of_includes_are_found(self):
        tree = {"a/x.h": '#include "a/y.h"\n', "a/x.c": '#include "a/x.h"\n', "a/y.h": "", "a/y.c": '#include "z.h"\n', "a/z.h": ""}
        self.assertEqual(self.circles_of(tree), [])
        tree["a/z.h"] = '#include "a/x.h"\n'
        self.assertEqual(self.circles_of(tree), [["a/x", "a/y", "a/z"]])

    def test_the_inside_of_a_file_may_include_it(self):
        tree = {"a/x.h": "", "a/x.c": '#include "a/x_impl.h"\n', "a/x_impl.h": '#include "a/x.h"\n'}
        self.assertEqual(self.circles_of(tree), [])
        calls = {"a/x": ({"open"}, {"step"}), "a/x_impl": ({"step"}, {"open"})}
        self.assertEqual(self.circles_of(tree, calls), [["a/x", "a/x_impl"]])

    def test_circles_of_calls_are_found(self):
        calls = {"a/x": ({"f"}, {"g", "printf"}), "b/y": ({"g"}, {"h"}), "c/z": ({"h"}, set())}
        self.assertEqual(self.circles_of({}, calls), [])
        calls["c/z"][1].add("f")
        self.assertEqual(self.circles_of({}, calls), [["a/x", "b/y", "c/z"]])
        calls["tests/fake"] = ({"f", "h"}, set())  # what a test puts in a file's place does not hide the circle
        self.assertEqual(self.circles_of({}, calls), [["a/x", "b/y", "c/z"]])
        calls["d/other"] = ({"f"}, set())  # two to choose from: neither is tied
        self.assertEqual(self.circles_of({}, calls), [])

    def test_circles_of_imports_are_found(self):
        tree = {"e/one.py": "import two\n", "e/two.py": "from pack import three\n", "e/pack/__init__.py": "",
                "e/pack/three.py": "import os\n"}
        self.assertEqual(self.circles_of(tree), [])
        tree["e/pack/three.py"] = "from one import f\n"
        self.assertEqual(self.circles_of(tree), [["e/one", "e/pack/three", "e/two"]])

    def test_symbols_are_read_from_objects_as_old_as_their_sources(self):
        with tempfile.TemporaryDirectory() as top:
            for name, text in (("x", "int g(void); int f(void); int f(void) { return g(); }"), ("y", "int g(void); int g(void) { return 1; }")):
                os.makedirs(os.path.join(top, "b/obj/a"), exist_ok=True)
                os.makedirs(os.path.join(top, "a"), exist_ok=True)
                with open(os.path.join(top, f"a/{name}.c"), "w", encoding="utf-8") as f:
                    f.write(text)
                subprocess.run(["cc", "-c", "-o", os.path.join(top, f"b/obj/a/{name}.o"), f.name], check=True)
            os.utime(os.path.join(top, "a/y.c"), (2**31, 2**31))
            self.assertEqual(circles.symbols_of(top, os.path.join(top, "b"), {"a/x.c", "a/y.c"}), ({"a/x": ({"f"}, {"g"})}, 1))


if __name__ == "__main__":
    if sys.argv[1:] == ["--circles"]:
        tree, _ = read_uses()
        for ring in tree.circles():
            print("\n".join([room_of(ring) + ": " + " ".join(ring)] + tree.describe(ring)))
        sys.exit(0)
    unittest.main()
