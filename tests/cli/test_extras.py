from __future__ import annotations

import pytest

from kvferry.cli import extras
from kvferry.cli.extras import Extra, Part, extra_of, installed_extras
from kvferry.errors import pip_install


@pytest.mark.parametrize(
    ("module", "extra"), [("torch.nn", "transformers"), ("aiohttp", "gateway"), ("json", None)]
)
def test_a_module_belongs_to_an_extra(module: str, extra: str | None) -> None:
    assert extra_of(module) == extra


@pytest.mark.parametrize(
    ("versions", "state"), [(("1", "2"), "installed"), (("1", None), "partly"), ((None, None), "missing")]
)
def test_an_extra_is_there_when_all_of_its_parts_are(versions: tuple[str | None, ...], state: str) -> None:
    assert Extra("x", tuple(Part("p", "", version) for version in versions)).state == state


def test_the_extras_are_those_of_the_package() -> None:
    assert {
        "fast",
        "tables",
        "valkey",
        "objects",
        "gateway",
        "telemetry",
        "report",
        "events",
        "ray",
        "transformers",
        "vllm",
        "lm-eval",
    } == {extra.name for extra in installed_extras()}


def test_a_requirement_is_split_into_name_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        extras.metadata,
        "requires",
        lambda _: ["numpy>=1", "no-such-part[a,b]<2,>=1.5; extra == 'x'", "pytest; extra == 'dev'"],
    )
    assert installed_extras() == [Extra("x", (Part("no-such-part", "<2,>=1.5", None),))]


def test_the_remedy_is_a_pip_command() -> None:
    assert Extra("valkey", ()).remedy == pip_install("valkey")
