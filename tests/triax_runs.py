"""What the end-to-end tests share: a small data folder, runs of the built binary, and their logs."""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TRIAX = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "build/cpu/triax"
WORDS = ("and the of that in unto he shall lord his for all them is be not they it with him their which god thou "
         "was as will thy said my from have when this were are by up there her upon out man out one israel").split()
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none", OMPI_MCA_btl="^tcp",
                   PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe", PRTE_MCA_hwloc_default_binding_policy="none",
                   ASAN_OPTIONS="detect_leaks=0")  # Open MPI itself leaks

MODEL = {"family": "llama", "width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "mlp": 128, "vocabulary": 400, "context": 64}


def run(*arguments, ranks=1, check=True, **options):
    command = [TRIAX, *map(str, arguments)]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *command]
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=240, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


class Runs(unittest.TestCase):
    """Each class has a folder with text, tokenizer and shards; it is removed at the end."""

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="triax é's "))
        rng = random.Random(7)
        with open(cls.folder / "text.jsonl", "w") as out:
            for _ in range(120):
                text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(60, 160))).capitalize() + "."
                out.write(json.dumps({"text": text}) + "\n")
        run("data", "tokenizer", "train", "--input", cls.folder / "text.jsonl", "--vocab", 400, "--held-out", 0.1, "--out", cls.folder / "tok")
        run("data", "prepare", "--input", cls.folder / "text.jsonl", "--tokenizer", cls.folder / "tok", "--held-out", 0.1, "--out", cls.folder / "data")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def config(self, name, **changes):
        """Writes NAME.json, with sections of `changes` merged in; its run's folder is NAME."""
        config = {"model": dict(MODEL), "data": {"folder": str(self.folder / "data"), "sequence": 32},
                  "train": {"steps": 20, "global_batch": 8, "micro_batch": 2, "dtype": "f32"},
                  "optimizer": {"lr": 3e-3}, "evaluate": {"every": 10, "samples": 8},
                  "checkpoint": {"every": 0}, "run": {"folder": str(self.folder / name)}, "threads": 1}
        for section, values in changes.items():
            config[section] = {**config.get(section, {}), **values} if isinstance(values, dict) else values
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(config))
        return path

    def log(self, name, event="step"):
        lines = (self.folder / name / "log.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    def checkpoint(self, name, step):
        return self.folder / name / "checkpoints" / f"step_{step:08d}"

    def assert_same_files(self, a, b, names=("model.safetensors", "optimizer.safetensors")):
        for name in names:
            self.assertEqual((a / name).read_bytes(), (b / name).read_bytes(), f"{name} differs between {a} and {b}")
