#!/usr/bin/env python3
"""The benchmarks' commands, and the check for a machine with a GPU, walked in small on this one."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from triax_runs import ENVIRONMENT, TRIAX, run

ROOT = Path(__file__).resolve().parent.parent


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def call(*words, environment=ENVIRONMENT, timeout=200, **options):
    return subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True, timeout=timeout, **options)


STAGES = ("tests", "attention", "kernels", "matrix", "steps", "train", "ranks", "layouts")


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="triax-bench-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def check(self, program, *words, environment=ENVIRONMENT):
        """gpu_check's JSON, by stage. Its limits are those of a GPU; a loaded CPU may take longer."""
        limits = ",".join(f"{stage}=150" for stage in STAGES)
        done = call(program, "--dry", "--limits", limits, "--out", self.folder / "out", *words, cwd=self.folder,
                    environment=environment, timeout=400)
        path = self.folder / "out" / "gpu_check.json"
        self.assertTrue(path.exists(), done.stdout + done.stderr)
        return {stage["stage"]: stage for stage in json.loads(path.read_text())["stages"]}, done

    def test_a_pack_walks_all_stages(self):
        build = Path(TRIAX).parent
        if not (build / "test_kernels").exists():
            self.skipTest(f"{build} has no test_kernels")
        pack = self.folder / "pack"
        done = call(ROOT / "scripts/gpu_check", "--pack", pack, "--dry", "--build", build, "--limit-mib", "2000")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(any(path.name.startswith("libdnnl") for path in (pack / "lib").iterdir()))
        # As on a machine without Open MPI: the pack brings its own along.
        with_mpi = (pack / "mpi" / "bin" / "mpirun").exists()
        self.assertEqual(with_mpi, bool(shutil.which("ompi_info")))
        (self.folder / "bin").mkdir()
        for tool in ("python3", "ldd"):
            (self.folder / "bin" / tool).symlink_to(sys.executable if tool == "python3" else shutil.which(tool))
        stages, done = self.check(pack / "gpu_check", environment={"PATH": str(self.folder / "bin")})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(tuple(stages), STAGES)
        for name, stage in stages.items():
            self.assertEqual(stage["result"], "ok" if with_mpi or name not in ("ranks", "layouts") else "skipped", stage)
        if with_mpi:
            layouts = {layout["layout"]: layout for layout in stages["layouts"]["layouts"]}
            self.assertLessEqual({"dp 2", "dp 2, ZeRO-3", "tp 2", "pp 2"}, set(layouts))
            for layout in layouts.values():
                self.assertEqual((layout["result"], layout["exchanges"]), ("ok", "by MPI"), layout)
                self.assertLess(layout["gradient_norm"], 1e-4, layout)
            self.assertRegex(done.stdout, r"tp 2 +ok +\S+e\S+ +\S+e\S+  by MPI\n")
        self.assertGreater(stages["steps"]["rows"][0]["planned_bytes"], 0)
        self.assertGreater(len(stages["kernels"]["rows"]), 20)
        self.assertIn("figures mean nothing", done.stdout)

    def test_a_stage_that_fails_or_hangs_stops_no_other(self):
        script(self.folder / "build" / "triax", f"""#!/bin/sh
case "$*" in
  *"--kind attention"*) sleep 60 ;;
  *"--kind rows"*) echo "triax: the kernels are not well"; exit 1 ;;
  *) exec "{TRIAX}" "$@" ;;
esac
""")
        stages, done = self.check(ROOT / "scripts/gpu_check", "--build", self.folder / "build", "--limits", "attention=1",
                                  "--only", "tests,attention,kernels,matrix")
        self.assertEqual(done.returncode, 1)
        self.assertEqual({name: stage["result"] for name, stage in stages.items()},
                         {"tests": "skipped", "attention": "FAIL", "kernels": "FAIL", "matrix": "ok"})
        for said in ("FAILED attention: not done within its 1 s", "FAILED kernels: ", "the kernels are not well"):
            self.assertIn(said, done.stdout)

    def test_a_layout_that_trains_otherwise_or_hangs_is_found(self):
        """mpirun is a script here: one rank stands for two, but for two layouts."""
        script(self.folder / "bin" / "mpirun", """#!/bin/sh
shift 2
case "$*" in
  *mesh.tp=2*) exec "$@" --set mesh.tp=1 --set train.seed=9 ;;
  *mesh.pp=2*) echo "rank 1 is lost"; exit 1 ;;
  *mesh.dp=2*) exec "$@" --set mesh.dp=1 ;;
  *) exec "$@" ;;
esac
""")
        build = Path(TRIAX).parent
        if not (build / "libtriax_mpi.so").exists():
            self.skipTest("no part for MPI")
        stages, done = self.check(ROOT / "scripts/gpu_check", "--build", build, "--only", "layouts",
                                  environment={**ENVIRONMENT, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 1, done.stdout)
        results = {layout["layout"]: layout["result"] for layout in stages["layouts"]["layouts"]}
        self.assertEqual([results[name] for name in ("dp 2", "dp 2, ZeRO-3", "tp 2", "pp 2")], ["ok", "ok", "FAIL", "FAIL"])
        self.assertRegex(done.stdout, r"FAILED layouts: tp 2: loss of step \d+ differs from one rank's by")
        self.assertIn("FAILED layouts: pp 2: ", done.stdout)
        self.assertIn("rank 1 is lost", done.stdout)

    def nccl(self, number):
        """A library that says of itself which NCCL it is, and can no more."""
        if not shutil.which("c++"):
            self.skipTest("no compiler")
        library = self.folder / str(number) / "libnccl.so.2"
        script(library.with_suffix(".cpp"), f'extern "C" int ncclGetVersion(int* version) {{ *version = {number}; return 0; }}\n')
        done = call("c++", "-shared", "-fPIC", library.with_suffix(".cpp"), "-o", library)
        self.assertEqual(done.returncode, 0, done.stderr)
        return library

    def test_which_nccl_a_pack_takes_along(self):
        build = Path(TRIAX).parent
        if not (build / "test_kernels").exists():
            self.skipTest(f"{build} has no test_kernels")
        new, old = self.nccl(23007), self.nccl(22809)
        words = [ROOT / "scripts/gpu_check", "--dry", "--build", build, "--limit-mib", "2000", "--pack"]
        for library, says in ((old, "libnccl.so.2 is NCCL 2.28.9; ranks share a GPU from 2.30 on"),
                              (build / "libtriax_mpi.so", "is no library of NCCL, or does not load")):
            done = call(*words, self.folder / "pack", "--nccl", library)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(says, done.stderr)
        done = call(*words, self.folder / "pack", "--nccl", new)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.folder / "pack/lib/libnccl.so.2").exists())
        self.assertEqual(json.loads((self.folder / "pack/pack.json").read_text())["nccl"], "2.30.7")

    def test_what_carries_the_exchanges_of_ranks_on_one_gpu(self):
        sys.path.insert(0, str(ROOT / "scripts"))
        import gpu_ranks
        folders = [self.nccl(22809).parent, self.nccl(23007).parent]
        environment, options, sentence = gpu_ranks.carrier(False, folders)
        self.assertEqual(environment, {"TRIAX_NCCL": str(folders[1] / "libnccl.so.2"), "NCCL_MULTI_RANK_GPU_ENABLE": "1"})
        self.assertEqual((options, sentence), (["--set", "comm.transport=nccl"], "by NCCL 2.30.7"))
        for where, says in (([], "no libnccl.so.2 here"), (folders[:1], "is 2.28.9, and ranks share a GPU from 2.30 on")):
            environment, options, sentence = gpu_ranks.carrier(False, where)
            self.assertEqual((environment, options), ({}, ["--set", "comm.transport=mpi"]))
            self.assertIn(says, sentence)

    def test_words_that_gpu_check_does_not_know(self):
        for words, says in ((["--only", "trian"], "there is no stage trian; there are tests"),
                            (["--limits", "train"], "is not of the form attention=60"),
                            (["--build", self.folder], "triax is missing; build it where nvcc is")):
            done = call(ROOT / "scripts/gpu_check", "--dry", *words)
            self.assertEqual(done.returncode, 1)
            self.assertIn(says, done.stderr)
        (self.folder / "mine").write_text("")
        done = call(ROOT / "scripts/gpu_check", "--pack", self.folder, "--dry", "--build", Path(TRIAX).parent)
        self.assertIn("is there and no pack of an earlier time", done.stderr)

    def test_against_a_revision_that_knows_no_names(self):
        """The revision's binary is a script here: it has rows of its own and one that both have."""
        own = self.folder / "build" / "triax"
        own.parent.mkdir()
        try:
            os.link(TRIAX, own)
        except OSError:
            shutil.copy(TRIAX, own)
        rows = [{"kernel": "rope", "dtype": "f32", "shape": "[64, 128]", "seconds": 1e-9},
                {"kernel": "gone", "dtype": "f32", "shape": "[1]", "seconds": 1.0}]
        script(self.folder / "old", f"""#!/bin/sh
case "$*" in
  "bench kernels --help") echo "Usage: triax bench kernels [OPTIONS]" ;;
  "bench --threads 1 --out "*" kernels") echo '{json.dumps(rows)}' >"$5/kernels.json"; echo o >>"{self.folder}/order" ;;
  *) exit 1 ;;
esac
""")
        script(self.folder / "scripts/build_revision", f"#!/bin/sh\n[ \"$1\" = v1 ] && echo '{self.folder}/old'\n")
        words = [own, "bench", "kernels", "rope", "--size", "tiny", "--dtype", "f32", "--threads", "1", "--target", "cpu", "--pairs", "6",
                 "--out", self.folder / "out", "--against"]
        done = call(*words, "v1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("v1 is older than `bench kernels NAME`", done.stdout)
        self.assertRegex(done.stdout, r"rope .*slower")
        self.assertIn("by the sign test, and holds the median in 96.9% of cases", done.stdout)
        (row,) = json.loads((self.folder / "out/against.json").read_text())
        self.assertEqual((row["kernel"], row["differs"], len(row["seconds"]), len(row["against_seconds"])), ("rope", True, 6, 6))
        self.assertEqual((self.folder / "order").read_text(), "o\n" * 6)
        done = call(*words, "v2")
        self.assertEqual(done.returncode, 1)
        self.assertIn("build_revision v2 failed", done.stderr)

    @unittest.skipUnless(shutil.which("git"), "no git")
    def test_a_revision_is_built_once(self):
        script(self.folder / "scripts/build_revision", (ROOT / "scripts/build_revision").read_text())
        (self.folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.22)\nproject(t NONE)\n"
                                                    "add_custom_target(triax COMMAND cmake -E touch ${CMAKE_BINARY_DIR}/triax)\n")
        git = ["git", "-C", self.folder, "-c", "user.name=t", "-c", "user.email=t@t"]
        for words in (["init", "-q"], ["add", "CMakeLists.txt", "scripts"], ["commit", "-qm", "one"]):
            self.assertEqual(call(*git, *words).returncode, 0)
        first = call(self.folder / "scripts/build_revision", "HEAD")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("some minutes, once", first.stderr)
        self.assertTrue(Path(first.stdout.strip()).exists())
        again = call(self.folder / "scripts/build_revision", "HEAD")
        self.assertEqual((again.stdout, again.stderr), (first.stdout, ""))
        for words, says in ((["v9"], "git knows no revision 'v9'"), ([], "scripts/build_revision [--cuda] REVISION"), (["--x"], "no option --x")):
            done = call(self.folder / "scripts/build_revision", *words)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(says, done.stderr)

    def test_facts_of_kernels_by_the_nvcc_that_is_named(self):
        facts = self.folder / "scripts" / "kernel_facts"
        facts.parent.mkdir()
        shutil.copy(ROOT / "scripts" / "kernel_facts", facts)
        sources = self.folder / "kernels"
        script(sources / "cuda" / "tiles.cu", '__global__ void tiles() {}\nREGISTER_IMPLEMENTATION("matmul", "tiles", launch);\n')
        script(sources / "cuda" / "library.cu", 'REGISTER_LAUNCH("matmul", launch_matmul);\n')
        script(sources / "sum.cu", '__global__ void sum() {}\nREGISTER_LAUNCH("sum", launch_sum);\n')
        tools = self.folder / "toolkit" / "bin"
        script(tools / "nvcc", f"""#!/bin/sh
echo "$@" >>"{self.folder}/compiled"
for to; do :; done
printf '.entry tiles(\n.maxntid 128\n ld.global.v4.f32 x;\n st.global.f32 x;\n' >"$to"
""")
        script(tools / "ptxas", "#!/bin/sh\necho \"ptxas info : Compiling entry function 'tiles' for 'sm_90a'\" >&2\n"
                                "echo 'ptxas info : Used 32 registers' >&2\n")
        for variable, value in (("NVCC", tools / "nvcc"), ("CUDA_HOME", tools.parent)):
            done = call(facts, "matmul", environment={"PATH": "/usr/bin:/bin", variable: str(value)})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("unchecked without a GPU: matmul 'tiles' (kernels/cuda/tiles.cu)\n", done.stdout)
            self.assertIn("unchecked without a GPU: matmul 'triax' (kernels/cuda/library.cu)\n", done.stdout)
            self.assertRegex(done.stdout, r"\n +32 +0 +0 +- +64/64 +1/2  tiles\n")
        launches = self.folder / "launches"
        launches.write_text("0 128 triax::(anonymous namespace)::other<true>(int)\n"
                            "49152 128 void triax::(anonymous namespace)::tiles(triax::(anonymous namespace)::A)\n"
                            "65536 128 triax::(anonymous namespace)::tiles(triax::(anonymous namespace)::A)\n")
        done = call(facts, "matmul", "--launches", launches, environment={"PATH": "/usr/bin:/bin", "NVCC": str(tools / "nvcc")})
        self.assertRegex(done.stdout, r"\n +32 +0 +0 +65536 +12/64 +1/2  tiles\n")  # three blocks of 65 KiB fit in 228
        compiled = (self.folder / "compiled").read_text().splitlines()
        self.assertEqual(len(compiled), 3)  # what has no kernel of its own is not
        done = call(facts, "sum", environment={"PATH": "/usr/bin:/bin", "NVCC": str(self.folder / "nvcc")})
        self.assertIn(f"NVCC is {self.folder}/nvcc, which cannot be run", done.stderr)
        self.assertNotIn("unchecked", done.stdout)

    def test_what_only_a_gpu_can_run_is_said_to_be_unchecked(self):
        done = run("bench", "--threads", 1, "--out", self.folder, "kernels", "attention forward", "--size", "tiny", "--dtype", "bf16")
        self.assertRegex(done.stdout, r"attention forward \(cudnn\) +bf16 +any +unchecked without a GPU\n")
        rows = json.loads(next(self.folder.glob("kernels*.json")).read_text())
        self.assertEqual([row["implementation"] for row in rows if row.get("unchecked")], ["cudnn"])

    def test_what_bench_refuses(self):
        for words, says in ((["kernels", "atention"], "'atention' in its name; there are"), (["kernels", "--pairs", 9], "--against"),
                            (["kernels", "--against", "x", "--pairs", 5], "5 is not a whole number from 6"),
                            (["kernels", "--target", "sm_10", "rope"], "target sm_10"), (["training", "--model", "lama"], "did you mean llama?")):
            done = run("bench", *words, check=False)
            self.assertNotEqual(done.returncode, 0, done.stdout)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
