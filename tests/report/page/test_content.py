from __future__ import annotations

from kvferry.report.page.content import Section, in_rows


def halves(*sections: Section | None) -> list[tuple[str, bool]]:
    return [(section.name, section.half) for section in in_rows(sections)]


def half(name: str) -> Section:
    return Section(name, name, half=True)


def test_what_is_not_there_takes_no_place() -> None:
    assert halves(None, Section("a", "a"), None) == [("a", False)]


def test_two_halves_share_a_row() -> None:
    assert halves(half("a"), None, half("b")) == [("a", True), ("b", True)]


def test_a_half_alone_is_whole() -> None:
    assert halves(half("a"), Section("b", "b"), half("c"), half("d"), half("e")) == [
        ("a", False),
        ("b", False),
        ("c", True),
        ("d", True),
        ("e", False),
    ]
