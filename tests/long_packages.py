"""Packages for tests that compare triax with others' code: a virtual environment under build/, made at first use."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
ROOT = Path(__file__).resolve().parent.parent
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable  # Debian's, which has its modules


def skip(sentence):
    print(f"skipped: {sentence}")
    sys.exit(SKIPPED)


def lacks(module):
    return subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True).returncode != 0


def need_from_distribution(modules):
    """`modules`: what Python must be able to import, and the package of Debian that has it."""
    packages = [package for module, package in modules.items() if lacks(module)]
    if not packages:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        skip(f"{PYTHON} lacks what {' and '.join(packages)} of Debian would bring, and only root can install it there")
    apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(apt + command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            skip(f"apt-get cannot install {' '.join(packages)}: {done.stdout[-500:]}")


def go_on_with(name, packages, modules=None):
    """Starts this script again in build/venv_NAME, which holds `packages` (pip's words, with versions) from PyPI and
    sees the distribution's `modules`. Returns where it runs in there already; ends with 77 where it cannot be made."""
    venv = ROOT / "build" / f"venv_{name}"
    if Path(sys.prefix) == venv:
        return
    modules = {"ensurepip": "python3-venv", **(modules or {})}
    need_from_distribution(modules)
    whole, wanted = venv / "packages", "\n".join(packages)
    if not whole.exists() or whole.read_text() != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        shared = ["--system-site-packages"] if len(modules) > 1 else []
        subprocess.run([PYTHON, "-m", "venv", *shared, venv], check=True)
        pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, *packages], stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            skip(f"pip cannot install {' '.join(packages)}: {done.stderr[-500:]}")
        whole.write_text(wanted)
    os.execv(venv / "bin" / "python", [str(venv / "bin" / "python"), *sys.argv])
