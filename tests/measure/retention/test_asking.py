"""One item put to every arm: what is at the side says how long it is."""

from __future__ import annotations

from kvferry.measure.retention.asking import SHORT, Plan, ask
from kvferry.measure.retention.items import USER_TASK, Item
from kvferry.measure.retention.reader import Reader
from kvferry.measure.retention.records import record_of

from .texts import Identity, letters


def plan(reader: Reader, offset: int | None = None) -> Plan:
    return Plan(
        source=reader,
        target=reader,
        map=Identity(),
        arms=("target", "mapped", "none"),
        continuation_tokens=60,
        hold_back=(1, 16),
        offset=offset,
        seed=0,
    )


def test_short_comparisons_count_their_own_characters(reader: Reader) -> None:
    text = letters(1, 109)
    item = Item(task=USER_TASK, document="d", context=text[:49], continuation=text[49:])
    asked, _ = ask(plan(reader, 200), item, None)
    kept = record_of(asked, 1)
    assert kept["arms"]["mapped"]["characters"] == kept["arms"]["mapped"]["tokens"] == 60
    for one in (kept["hold_back"]["16"]["mapped"], kept["beyond"]["mapped"]):
        assert (one["tokens"], one["characters"]) == (SHORT, SHORT)
