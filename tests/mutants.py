#!/usr/bin/env python3
"""tests/mutants.py --list | FOLDER NAME: kernels with one fault each, made from the tree's own source.

--list names each mutant and the kernel's unit that it is compiled in. Otherwise writes, under FOLDER, the changed file of
the mutant NAME, which hides the tree's. A change that no longer finds its place is an error: change the list with the
source. tests/emulator_mutants.cpp runs them: the emulation must report each.
"""
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent

# Name: the unit, the file to change, what stands there once, and what it becomes.
MUTANTS = {
    "reduce_no_barrier_before": ("cross_entropy.cu", "simt.h",
        "      __syncthreads(); // the previous reduction's readers are done with part[]\n", ""),
    "reduce_no_barrier_after": ("cross_entropy.cu", "simt.h",
        "part[threadIdx.x / 32] = v;\n      __syncthreads();\n", "part[threadIdx.x / 32] = v;\n"),
    "reduce_one_lane_less": ("cross_entropy.cu", "simt.h", "__shfl_xor_sync(0xffffffffu, v, o)",
        "(threadIdx.x % 32 == 31 ? v : __shfl_xor_sync(0x7fffffffu, v, o))"),
    "loss_overwrites_label": ("cross_entropy.cu", "cross_entropy.cu",
        "  __syncthreads(); // all have read z[label]\n", ""),
    "loss_no_last_barrier": ("cross_entropy.cu", "cross_entropy.cu",
        "  scaled_exp<Block, V>(z, classes, maximum, factor);\n  __syncthreads(); // z[label] is written\n",
        "  scaled_exp<Block, V>(z, classes, maximum, factor);\n"),
    "loss_early_return": ("cross_entropy.cu", "cross_entropy.cu", "  const Softmax own = softmax_of<Block, V>(z, classes);\n",
        "  if (int64_t(threadIdx.x) >= classes) return;\n  const Softmax own = softmax_of<Block, V>(z, classes);\n"),
    "rope_heads_overlap": ("rope.cu", "rope.cu", "int64_t(head) * 2 * half", "int64_t(head) * half"),
    "rope_wrong_pitch": ("rope.cu", "rope.cu", "x + row * stride +", "x + row * (stride + 1) +"),
    "each_one_too_many": ("floor.cu", "each.h", "for (int64_t i = (V > 1 ? full : begin) + threadIdx.x; i < end;",
        "for (int64_t i = (V > 1 ? full : begin) + threadIdx.x; i <= end;"),
    "norm_all_write": ("adamw.cu", "adamw.cu", "  if (threadIdx.x == 0) blocks[blockIdx.x] = total;",
        "  blocks[blockIdx.x] = total;"),
    "embedding_two_owners": ("embedding.cu", "embedding.cu",
        "first == 0 || tokens[order[first - 1]] != token", "true"),
    "flash_no_wait": ("attention_cuda.cu", "attention_flash.h",
        "  cp_async_wait<0>();\n", ""),
    "flash_no_barrier": ("attention_cuda.cu", "attention_flash.h",
        "  __syncthreads(); // this tile is there, and nobody reads the one before\n", ""),
}


def write(folder, name):
    """The changed file, where the compiler finds it before the tree's."""
    _, file, old, new = MUTANTS[name]
    text = (TREE / "kernels" / file).read_text(encoding="utf-8")
    if text.count(old) != 1:
        sys.exit(f"tests/mutants.py: {name}: kernels/{file} has {text.count(old)} times, not once:\n{old}")
    path = Path(folder, "kernels", file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace(old, new), encoding="utf-8")


def main(arguments):
    if arguments == ["--list"]:
        print(";".join(f"{name}:{unit}:{file}" for name, (unit, file, _, _) in MUTANTS.items()), end="")
    elif len(arguments) == 2 and arguments[1] in MUTANTS:
        write(*arguments)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
