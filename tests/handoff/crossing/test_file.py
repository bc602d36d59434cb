"""The file gives back the map that was saved, and nothing that is not it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from test_network import stirred
from two_families import SOURCE, context, prefill, shape

from kvferry.errors import FormatError
from kvferry.handoff.crossing.crossmap import CrossFacts, CrossMap
from kvferry.handoff.crossing.file import open_cross_map, save_cross_map
from kvferry.handoff.mapping.container import FORMAT
from kvferry.handoff.mapping.file import load_map
from kvferry.runs.retention_summary import Interval, Refused

FACTS = CrossFacts(
    kvferry="0",
    trained_tokens=7,
    calibration_tokens=5,
    steps=1,
    positions=8,
    device="one",
    settings={"blocks": 2, "hold_back": [1, 4]},
    nll={"mapped": 2.5},
    gains={"none": Interval(value=0.5, low=0.1, high=0.9, n=4), "random": Refused(reason="one document")},
    seen_documents=("aa", "bb"),
)


def saved(place: Path) -> CrossMap:
    made = CrossMap(stirred(shape()), FACTS)
    assert save_cross_map(made, place) == place.stat().st_size
    return made


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "cross.safetensors"
    made, found = saved(place), open_cross_map(place)
    assert found.facts == FACTS
    assert found.seen_documents == {"aa", "bb"}
    assert found.digest() == made.digest()
    text = context(6)
    given, at = prefill(SOURCE, len(text.source_ids)), torch.arange(6)
    assert torch.equal(
        made.carry(text, given, at).layers[1].keys, found.carry(text, given, at).layers[1].keys
    )
    assert list(place.parent.iterdir()) == [place]


def test_a_file_without_the_documents_it_has_seen_still_opens(tmp_path: Path) -> None:
    place = tmp_path / "cross.safetensors"
    saved(place)
    rewritten(place, facts=msgspec.json.encode({
        name: value for name, value in msgspec.to_builtins(FACTS).items() if name != "seen_documents"
    }).decode())  # fmt: skip
    assert open_cross_map(place).seen_documents == frozenset()


def test_the_header_names_its_kind(tmp_path: Path) -> None:
    place = tmp_path / "cross.safetensors"
    saved(place)
    with safe_open(place, framework="pt") as file:
        header = file.metadata()
    assert (header["format"], header["kind"]) == (FORMAT, "cross")


def rewritten(place: Path, **changes: str) -> None:
    with safe_open(place, framework="pt") as file:
        header = {**file.metadata(), **changes}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    if "number" in header:
        tensors["first"][0] += float(header.pop("number"))
    save_file(tensors, place, metadata=header)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"number": "0.5"}, "its digest is not that of its numbers"),
        ({"version": "9"}, "cross map format 9, this kvferry reads 1"),
        (
            {"kind": "closed form"},
            "a map of kind 'closed form', not 'cross'; write one with kvferry handoff train",
        ),
        ({"format": "other"}, "a safetensors file, but no map"),
        ({"shape": "{}"}, "its header does not describe its numbers"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    place = tmp_path / "cross.safetensors"
    saved(place)
    rewritten(place, **changes)
    with pytest.raises(FormatError, match=said):
        open_cross_map(place)


def test_no_file_and_no_safetensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file; write one with kvferry handoff train"):
        open_cross_map(tmp_path / "none")
    (tmp_path / "text").write_text("nothing of the kind")
    with pytest.raises(FormatError, match="not a map"):
        open_cross_map(tmp_path / "text")


def test_it_is_not_taken_for_a_closed_form(tmp_path: Path) -> None:
    place = tmp_path / "cross.safetensors"
    saved(place)
    with pytest.raises(FormatError, match="a map of kind 'cross', not 'closed form'"):
        load_map(place)
