"""scripts/gpu_check --pack FOLDER: what a machine with a GPU needs for the check, and nothing beside it.

bin/       triax, the tests and the part for MPI, stripped, for one architecture
lib/       every shared library that they are linked to, but for the C library's; lib/newer: the C++ library, for a
           machine whose own is older; NCCL where it was asked for
mpi/       mpirun and what Open MPI loads when it runs on one machine, where the binaries are with MPI
data/      token shards to train on
gpu_check  the script, which finds all of it, and gpu_ranks.py, a part of it
pack.json  what it was made from, and what the machine itself must have
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from gpu_ranks import SHARES_GPUS, nccl_number, version_text

ROOT = Path(__file__).resolve().parent.parent
C_LIBRARY = re.compile(r"(libc|libm|libpthread|libdl|librt|libresolv|ld-linux.*|linux-vdso)\.so.*")
NCCL_VERSION = "2.30.7"  # of PyPI's nvidia-nccl-cu12 and nvidia-nccl-cu13, for --nccl pypi
# What components of Open MPI may be linked to beside what mpirun and our part are: of its own, and what starts ranks.
OF_MPI = re.compile(r"lib(mca_common_(sm|ompio|monitoring)|pmix|munge|mpi|open-).*")
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


def carry_mpi(folder, mpi_part):
    """Copies mpirun and its components into `folder`, as OPAL_PREFIX wants them, but for those of special networks.
    Returns the libraries that all of it is linked to; none where this machine's MPI is not Open MPI."""
    mpirun, ompi_info = shutil.which("mpirun"), shutil.which("ompi_info")
    if not mpi_part.exists() or not mpirun or not ompi_info:
        return {}
    paths = dict(re.findall(r"^path:(\w+):(.*)$", run(ompi_info, "--path", "all", "--parsable"), re.M))
    prefix, components = Path(paths["prefix"]), Path(paths["pkglibdir"])
    if not components.is_relative_to(prefix):
        return {}
    libraries = libraries_of([mpirun, mpi_part])
    (folder / "bin").mkdir(parents=True)
    shutil.copy(Path(mpirun).resolve(), folder / "bin" / "mpirun")
    into = folder / components.relative_to(prefix)
    into.mkdir(parents=True)
    for component in sorted(components.glob("mca_*.so")):
        of_it = libraries_of([component])
        if all(name in libraries or OF_MPI.fullmatch(name) for name in of_it):
            shutil.copy(component, into)
            libraries.update(of_it)
    if Path(paths["pkgdatadir"]).is_relative_to(prefix):  # its sentences
        shutil.copytree(paths["pkgdatadir"], folder / Path(paths["pkgdatadir"]).relative_to(prefix))
    return libraries


def carry_nccl(folder, where):
    """Copies a libnccl.so.2 into `folder`; returns its version."""
    with tempfile.TemporaryDirectory() as aside:
        if where == "pypi":
            nvcc = os.environ.get("NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
            major = re.search(r"release (\d+)", run(nvcc, "--version"))[1]
            run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", aside,
                f"nvidia-nccl-cu{major}=={NCCL_VERSION}")
            (wheel,) = Path(aside).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                where = archive.extract("nvidia/nccl/lib/libnccl.so.2", aside)
            if version_text(nccl_number(where)) != NCCL_VERSION:
                sys.exit(f"gpu_check --pack: {wheel.name} holds NCCL {version_text(nccl_number(where))}, not {NCCL_VERSION}")
        number = nccl_number(where)
        if number < SHARES_GPUS:
            sys.exit(f"gpu_check --pack: {where} is " + (f"NCCL {version_text(number)}; ranks share a GPU from 2.30 on"
                     if number else "no library of NCCL, or does not load"))
        shutil.copyfile(where, folder / "libnccl.so.2")
        return version_text(number)


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
    if (own_mpi := folder / "bin" / "libtriax_mpi.so").exists():
        for name, path in carry_mpi(folder / "mpi", own_mpi).items():
            if not CXX_LIBRARY.fullmatch(name):
                shutil.copyfile(path, folder / "lib" / name)
    nccl = carry_nccl(folder / "lib", options.nccl) if options.nccl else None
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
    for name in ("gpu_check", "gpu_ranks.py"):
        shutil.copy(ROOT / "scripts" / name, folder / name)
    (folder / "pack.json").write_text(json.dumps({
        "revision": revision(), "architecture": "cpu" if options.dry else f"sm_{options.arch}",
        "libraries": {name: str(path) for name, path in sorted(libraries.items()) if name not in left_out},
        "open mpi": (folder / "mpi").exists(), "nccl": nccl, "the machine must have": left_out}, indent=1) + "\n")
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
