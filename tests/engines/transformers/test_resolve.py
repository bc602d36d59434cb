from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from kvferry.engines.transformers.resolve import model_name, resolve_model
from kvferry.errors import ModelError


def test_a_folder_is_taken_as_it_is(tiny_folder: Path, tmp_path: Path) -> None:
    assert resolve_model(str(tiny_folder), tmp_path) == tiny_folder


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_model(str(tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["nope", "./nope", "/no/such", "a/b/c"])
def test_what_is_no_model_says_what_to_write(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="smollm2-135m-instruct"):
        resolve_model(name, tmp_path)


def test_a_hub_that_cannot_be_reached_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ModelError, match=r"owner/name.*no route.*--model DIR"):
        resolve_model("owner/name", tmp_path)


def test_a_hub_snapshot_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    assert resolve_model("owner/name", tmp_path) == tmp_path


def test_a_folder_is_called_by_its_last_part(tiny_folder: Path) -> None:
    assert model_name(f"{tiny_folder}/") == "tiny-llama"


def test_a_hub_model_keeps_its_id() -> None:
    assert model_name("owner/name") == "owner/name"
