#!/usr/bin/env python3
"""64 ranks of a small model, more than there are cores: 10 steps, their time and memory."""
import os
import threading
import time
import unittest

from triax_runs import Runs, run


def memory_of(name):
    """Bytes of all processes of that name: proportional shares, so that shared libraries count once."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if os.path.basename(file.read().split(b"\0")[0]) != name.encode():
                    continue
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
        except OSError:
            pass  # it has ended
    return total


class ManyRanks(Runs):
    def test_64_ranks(self):
        for mesh in ({"dp": 16, "tp": 4}, {"pp": 2, "dp": 2, "cp": 4, "tp": 4}):
            with self.subTest(mesh=mesh):
                self.train(mesh)

    def train(self, mesh):
        name = " x ".join(f"{axis} {size}" for axis, size in mesh.items())
        config = self.config(name, model={"width": 64, "layers": 2, "heads": 8, "kv_heads": 4, "head_width": 8, "vocabulary": 401},
                             mesh=mesh, zero={"stage": 1}, train={"steps": 10, "global_batch": 32, "micro_batch": 2},
                             evaluate={"every": 0})
        peak, done = 0, threading.Event()

        def watch():
            nonlocal peak
            while not done.wait(2):
                peak = max(peak, memory_of("triax"))

        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.monotonic()
        try:
            run("train", config, ranks=64)
        finally:
            done.set()
            watcher.join()
        self.assertEqual(len(self.log(name)), 10)
        print(f"64 ranks, {name}, 10 steps: {time.monotonic() - began:.0f} s from start to end, {peak / 2**30:.1f} GiB in all "
              f"on {os.cpu_count()} cores", flush=True)
        self.assertGreater(peak, 64 << 20)  # they were seen
        self.assertLess(peak, 12 << 30)


if __name__ == "__main__":
    unittest.main(verbosity=2)
