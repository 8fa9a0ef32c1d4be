"""Several ranks on the machine of scripts/gpu_check: what starts them, what carries their exchanges, and the layouts
whose losses and gradient norms are held to those of one rank."""
import os
import re
import shutil
import subprocess
import sys

# Two ranks each; those whose settings this triax refuses are left out.
LAYOUTS = [("dp 2", {"mesh.dp": 2}), ("dp 2, ZeRO-3", {"mesh.dp": 2, "zero.stage": 3}), ("tp 2", {"mesh.tp": 2}),
           ("pp 2", {"mesh.pp": 2}), ("cp 2", {"mesh.cp": 2})]
AGREE = 1e-4  # relative, of each loss and gradient norm in f32, as tests/layouts.py has it
SHARES_GPUS = 23000  # the version of NCCL from which ranks may share a GPU


def nccl_number(path):
    """As ncclGetVersion gives it; 0 where the library is none of NCCL. Asked in another process: it may not load here."""
    ask = "import ctypes, sys; n = ctypes.c_int(); ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(n)); print(n.value)"
    done = subprocess.run([sys.executable, "-c", ask, str(path)], capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else 0


def version_text(number):
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def carrier(dry, folders):
    """(environment, options, sentence) of what carries the exchanges of ranks that share a GPU: NCCL where it can."""
    by_mpi = {}, ["--set", "comm.transport=mpi"]
    if dry:
        return *by_mpi, "by MPI"
    paths = [os.environ["TRIAX_NCCL"]] if os.environ.get("TRIAX_NCCL") else [f / "libnccl.so.2" for f in folders]
    if not paths:
        return *by_mpi, "by MPI, not by NCCL: there is no libnccl.so.2 here, nor does TRIAX_NCCL name one"
    number, path = max(((nccl_number(path), str(path)) for path in paths), key=lambda found: found[0])
    if number < SHARES_GPUS:
        return *by_mpi, f"by MPI, not by NCCL: {path} is {version_text(number)}, and ranks share a GPU from 2.30 on"
    return ({"TRIAX_NCCL": path, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}, ["--set", "comm.transport=nccl"],
            f"by NCCL {version_text(number)}")


def launcher(packed, mpi_part, run):
    """(command, environment, problem): what starts ranks here; `problem` says why nothing does."""
    if not mpi_part.exists():
        return None, {}, f"{mpi_part.name} is not beside the binary: it was built without MPI"
    mpirun, environment = shutil.which("mpirun"), {}
    if packed and (packed / "bin" / "mpirun").exists():
        mpirun = str(packed / "bin" / "mpirun")
        environment = {"OPAL_PREFIX": str(packed), "OMPI_MCA_plm": "isolated",
                       "PMIX_MCA_pcompress_base_silence_warning": "1"}
    if not mpirun:
        return None, {}, "there is no mpirun here, and nothing else starts several ranks"
    missing = re.findall(r"(\S+) => not found", run("ldd", mpi_part, check=False, **environment))
    if missing:
        return None, {}, f"{mpi_part.name} needs {', '.join(missing)}, which this machine has not"
    if os.geteuid() == 0:
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    environment.update({"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
                        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_btl": "^tcp",
                        "PRTE_MCA_hwloc_default_binding_policy": "none"})
    return mpirun, environment, ""


def offered(help_text):
    """The layouts whose axes this triax offers, by what it says of its settings."""
    def refused(key):
        sentence = re.search(rf"^{re.escape(key)} = .*\n(.*)", help_text, re.M)
        return not sentence or "only 1 is offered" in sentence[1]
    return [(name, settings) for name, settings in LAYOUTS if not any(refused(key) for key in settings)]


def worst_difference(one, many, key):
    """The largest relative difference of a figure over all steps, and where it is."""
    return max((abs(b[key] - a[key]) / abs(a[key]) if a[key] else abs(b[key]), a["step"]) for a, b in zip(one, many, strict=True))


def print_layouts(layouts):
    if layouts:
        print(f"\n{'layout':14} {'result':7} {'losses differ':>14} {'norms differ':>13}  exchanges")
    for layout in layouts:
        figures = [f"{layout[key]:.1e}" if key in layout else "-" for key in ("loss", "gradient_norm")]
        print(f"{layout['layout']:14} {layout['result']:7} {figures[0]:>14} {figures[1]:>13}  {layout['exchanges']}")
