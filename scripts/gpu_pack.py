"""scripts/gpu_check --pack FOLDER: what a machine with a GPU needs for the check, and nothing beside it.

bin/       triax, the tests and the part for MPI, stripped, for one architecture
lib/       every shared library that they are linked to, but for the C library's; lib/newer: the C++ library, for a
           machine whose own is older
data/      token shards to train on
gpu_check  the script, which finds all of it
pack.json  what it was made from, and what the machine itself must have
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
C_LIBRARY = re.compile(r"(libc|libm|libpthread|libdl|librt|libresolv|ld-linux.*|linux-vdso)\.so.*")
CXX_LIBRARY = re.compile(r"(libstdc\+\+|libgcc_s)\.so.*")


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, **options)
    if done.returncode:
        sys.exit(f"gpu_check --pack: {' '.join(map(str, command[:4]))} ... failed; it says why above")
    return done.stdout


def build_for(arch, dry):
    """The folder of what was built, for one architecture, or for the CPU."""
    if dry:
        sys.exit("gpu_check --pack --dry: name the folder of a CPU build with --build")
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    run(ROOT / "scripts" / "cuda_toolkit", nvcc)
    build = ROOT / "build" / f"gpu_{arch}"
    generator = ["-G", "Ninja"] if shutil.which("ninja") and not (build / "CMakeCache.txt").exists() else []
    run("cmake", "-S", ROOT, "-B", build, *generator, "-DTRIAX_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}",
        f"-DTRIAX_CUDA_ARCHS={arch}")
    print(f"building {build}", flush=True)
    run("cmake", "--build", build, "-j", os.cpu_count(), "--target", "triax", "test_cuda")
    return build


def libraries_of(binaries):
    """{name: path} of what the binaries are linked to, the libraries of libraries among them."""
    found = {}
    for binary in binaries:
        for name, path in re.findall(r"^\s*(\S+) => (/\S+|not found)", run("ldd", binary), re.M):
            if path == "not found":
                sys.exit(f"gpu_check --pack: {binary} needs {name}, which is not here")
            if not C_LIBRARY.fullmatch(name):
                found[name] = Path(path).resolve()
    return found


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def revision():
    said = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True)
    return said.stdout.strip() or "unknown"


def collect(folder, build, options, prepare_data):
    """Fills the new folder; returns the libraries that the machine itself must have."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / "newer").mkdir(parents=True)
    names = ["triax", "test_kernels" if options.dry else "test_cuda"]
    for name in [*names, "libtriax_mpi.so"]:
        if (build / name).exists():
            run("strip", "-o", folder / "bin" / name, build / name)
        elif name in names:
            sys.exit(f"gpu_check --pack: {build / name} is missing: cmake --build {build} --target {name}")
    own = [folder / "bin" / name for name in names]
    limit, left_out = options.limit_mib * 2**20, []
    libraries = libraries_of(own)
    for name, path in sorted(libraries.items(), key=lambda library: library[1].stat().st_size):
        if name.startswith("libcublas") and size_of(folder) + path.stat().st_size > limit:
            left_out.append(name)
            continue
        shutil.copyfile(path, folder / "lib" / ("newer" if CXX_LIBRARY.fullmatch(name) else ".") / name)
    environment = dict(os.environ, LD_LIBRARY_PATH=str(folder / "lib"), ASAN_OPTIONS="detect_leaks=0")
    prepare_data(folder / "data", ROOT, lambda *words: run(folder / "bin" / "triax", *words, env=environment))
    shutil.copy(ROOT / "scripts" / "gpu_check", folder / "gpu_check")
    (folder / "pack.json").write_text(json.dumps({
        "revision": revision(), "architecture": "cpu" if options.dry else f"sm_{options.arch}",
        "libraries": {name: str(path) for name, path in sorted(libraries.items()) if name not in left_out},
        "the machine must have": left_out}, indent=1) + "\n")
    return left_out


def pack(options, prepare_data):
    target = Path(options.pack)
    if target.exists() and not (target / "pack.json").exists() and (not target.is_dir() or any(target.iterdir())):
        sys.exit(f"gpu_check --pack: {target} is there and no pack of an earlier time; name another folder")
    build = Path(options.build) if options.build else build_for(options.arch, options.dry)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
    try:
        left_out = collect(aside / "pack", build, options, prepare_data)
        size = size_of(aside / "pack") / 2**20
        if size > options.limit_mib:
            sys.exit(f"gpu_check --pack: {size:.1f} MiB are more than the {options.limit_mib:g} of --limit-mib")
        if target.exists():
            shutil.rmtree(target)
        (aside / "pack").rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    print(f"{target}: {size:.1f} MiB; there: {target.name}/gpu_check --out FOLDER")
    for name in left_out:
        print(f"{name} is larger than --limit-mib allows: the machine's own CUDA must supply it")
