"""An environment for each rival: its own packages, kept in `.bench-rivals` until they change."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.place import ROOT

SOURCES = ROOT / "bench" / "rivals"
FOLDER = ROOT / ".bench-rivals"
JAVA_HEAP = "-Xmx2g"
SHOWN = 500  # characters of what Maven says


class Unavailable(Exception):
    """A rival cannot run here; the text says why."""


def python(name: str) -> list[str]:
    """Returns the command of the Python rival `name`, in a virtual environment of its own."""
    requirements, program = SOURCES / f"{name}.txt", SOURCES / f"{name}.py"
    folder = _made(name, [requirements], lambda place: _install(place, requirements))
    return [str(folder / "bin" / "python"), str(program)]


def java(name: str) -> list[str]:
    """Returns the command of the Java rival `name`, built by Maven. Raises Unavailable without."""
    sources = SOURCES / name
    files = sorted(path for path in sources.rglob("*") if path.is_file())
    folder = _made(name, files, lambda place: _build(place, sources))
    home = os.environ.get("JAVA_HOME")
    return [f"{home}/bin/java" if home else "java", JAVA_HEAP, "-jar", str(_jar(folder))]


def _made(name: str, files: Iterable[Path], make: Callable[[Path], None]) -> Path:
    """Returns the folder that `make` filled; it does so again when one of the files changes."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
    folder = FOLDER / name
    stamp = folder / "made-of"
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"preparing {name}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (FOLDER / ".gitignore").write_text("*\n")
        make(folder)
        stamp.write_text(digest)
    return folder


def _install(folder: Path, requirements: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", *quiet]
    if subprocess.run([*pip, "-r", str(requirements)], check=False).returncode:
        raise Unavailable(f"pip cannot install {requirements.name}")


def _build(folder: Path, sources: Path) -> None:
    if shutil.which("mvn") is None:
        raise Unavailable("Maven is not installed")
    build = ["mvn", "-q", "-B", "-f", str(sources / "pom.xml"), f"-DbuildDirectory={folder}/build"]
    built = subprocess.run(
        [*build, "package"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if built.returncode:
        raise Unavailable(f"Maven cannot build {sources.name}: {built.stdout[-SHOWN:]}")


def _jar(folder: Path) -> Path:
    [jar] = (folder / "build").glob("*.jar")
    return jar
