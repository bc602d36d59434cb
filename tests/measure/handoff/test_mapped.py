"""KV that was mapped from another model serves a request where operator and caller let it, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvferry.config import RequestFields, load
from kvferry.engines.transformers.capture import Captured, open_captured
from kvferry.engines.transformers.runner import Runner
from kvferry.errors import FormatError, UsageError
from kvferry.gate.facts import GateTerms
from kvferry.handoff.mapping.file import save_map
from kvferry.handoff.mapping.mapper import Mapper
from kvferry.handoff.mapping.passing import fit_map
from kvferry.handoff.mapping.rows import Recipe, Sequences
from kvferry.handoff.mapping.shapes import LayerKv, Prefill
from kvferry.measure.handoff.decoding import Answered
from kvferry.measure.handoff.lines import receive_line, send_line
from kvferry.measure.handoff.mapped import KvCarrier, read_receiver
from kvferry.measure.handoff.namespace import handoff_namespace
from kvferry.measure.handoff.prefilling import HandedOver, PrefillNode
from kvferry.measure.handoff.records import handoff_record
from kvferry.outcomes import Outcome
from kvferry.runs.decisions import DecisionRecord

Prompts = Callable[..., list[int]]


@pytest.fixture(scope="module")
def mapper(runner: Runner, stranger: Runner) -> Mapper:
    """From the other model's KV to ours: of so little text that its answers differ."""
    import torch

    def captured(one: Runner) -> Captured:
        return open_captured(one.folder, name=one.name, threads=1)

    def part(name: str, count: int) -> list[tuple[str, list[int]]]:
        dice = torch.Generator().manual_seed(len(name))
        return [(f"{name}{at}", torch.randint(0, 250, (64,), generator=dice).tolist()) for at in range(count)]

    text = Sequences(part("train", 8), part("validation", 1), part("test", 1))
    return fit_map(captured(stranger), captured(runner), text, Recipe(warm_rows=256, most_layers=1))


@pytest.fixture
def carrier(mapper: Mapper, stranger: Runner, roles: Any) -> KvCarrier:
    return KvCarrier(mapper, handoff_namespace(load().config, stranger), roles.namespace)


@pytest.fixture
def sender(carrier: KvCarrier, stranger: Runner, roles: Any) -> PrefillNode:
    from kvferry.keys.pool import DEFAULT_SECRET

    space = handoff_namespace(load().config, stranger)
    return PrefillNode(stranger, space, DEFAULT_SECRET, roles.clock, carrier=carrier)


def crossed(
    roles: Any,
    sender: PrefillNode,
    ids: list[int],
    *,
    permit: bool,
    here: bool | None = None,
    sunk: bool = True,
    **options: Any,
) -> tuple[HandedOver, Answered]:
    """`here`: the word of the request as it came to the decode node."""
    answer = roles.serving(
        roles.decode(codecs=("raw", "int8")), permit_mapped=permit, fields=RequestFields(accept_mapped=here)
    )
    handed = sender.hand_over(ids, roles.dial, handoff_id="a", sunk=sunk, **options)
    return handed, answer()


def recorded(answered: Answered) -> DecisionRecord:
    return handoff_record(
        answered,
        request_id="a",
        replica="decode",
        arrival_wall_seconds=0.0,
        data_class="default",
        terms=GateTerms(policy="always"),
        transport="tcp",
    )


def mapped_answer(runner: Runner, stranger: Runner, mapper: Mapper, ids: list[int], count: int = 8) -> Any:
    """What our model says behind the other one's KV, mapped by hand."""
    import torch

    given = stranger.new_span(len(ids))
    stranger.prefill_chunk(given, ids[:-1])
    tokens = len(ids) - 1
    layers = [LayerKv(layer[0, :, :tokens], layer[1, :, :tokens]) for layer in given.kv]
    mapped = mapper.apply(Prefill(layers, torch.arange(tokens)))
    span = runner.new_span(len(ids) + count)
    for at, layer in enumerate(mapped.layers):
        span.kv[at, 0, :, :tokens], span.kv[at, 1, :, :tokens] = layer.keys, layer.values
    span.length = tokens
    said = [int(runner.decode(span, ids[-1]).argmax())]
    while len(said) < count:
        said.append(int(runner.decode(span, said[-1]).argmax()))
    return tuple(said)


@pytest.mark.parametrize("sunk", [True, False])
def test_where_it_is_permitted_a_request_is_answered_behind_mapped_kv(
    roles: Any, prompts: Prompts, sender: PrefillNode, stranger: Runner, mapper: Mapper, sunk: bool
) -> None:
    ids = prompts()
    handed, answered = crossed(roles, sender, ids, permit=True, sunk=sunk)
    assert answered.received.detail == "mapped"
    assert answered.token_ids == mapped_answer(roles.runner, stranger, mapper, ids)
    assert answered.ledger == {Outcome.HANDOFF: 149, Outcome.NOT_CACHEABLE: 1}
    assert answered.mapped == handed.mapped == mapper.digest()
    assert handed.map_seconds > 0.0


def test_mapped_kv_is_not_what_the_model_computes(
    runner: Runner, roles: Any, prompts: Prompts, stranger: Runner, mapper: Mapper
) -> None:
    """Without this the test above shows nothing."""
    ids = prompts()
    assert mapped_answer(runner, stranger, mapper, ids) != roles.local(ids)


@pytest.mark.parametrize(
    ("permit", "here", "offered", "why"),
    [
        (False, None, None, "this node does not permit it"),
        (False, True, True, "this node does not permit it"),
        (True, False, None, "the request does not accept it"),
        (True, None, False, "the request does not accept it"),
        (True, True, False, "the request does not accept it"),
    ],
)
def test_without_permission_and_consent_it_is_computed_here_and_says_why(
    roles: Any,
    prompts: Prompts,
    sender: PrefillNode,
    permit: bool,
    here: bool | None,
    offered: bool | None,
    why: str,
) -> None:
    ids = prompts()
    fields = RequestFields(accept_mapped=offered)
    handed, answered = crossed(roles, sender, ids, permit=permit, here=here, fields=fields)
    assert answered.token_ids == roles.local(ids)
    assert answered.ledger == {Outcome.INCOMPATIBLE: 149, Outcome.NOT_CACHEABLE: 1}
    assert answered.mapped == ""
    assert handed.sent.receipt is None
    record = recorded(answered)
    assert (record.path, record.fallback) == ("fallback", Outcome.INCOMPATIBLE)
    assert any("mapped KV is lossy" in note and why in note for note in record.notes)


@pytest.mark.parametrize(("here", "offered"), [(True, None), (None, True), (True, True)])
def test_a_request_may_say_that_it_accepts_it(
    roles: Any, prompts: Prompts, sender: PrefillNode, here: bool | None, offered: bool | None
) -> None:
    fields = RequestFields(accept_mapped=offered)
    _, answered = crossed(roles, sender, prompts(), permit=True, here=here, fields=fields)
    assert answered.received.detail == "mapped"


@pytest.mark.parametrize("word", [True, False])
def test_its_word_is_nothing_to_exact_kv(roles: Any, prompts: Prompts, word: bool) -> None:
    ids = prompts()
    fields = RequestFields(accept_mapped=word)
    answer = roles.serving(roles.decode(), fields=fields)
    roles.prefill().hand_over(ids, roles.dial, handoff_id="a", fields=fields)
    answered = answer()
    assert answered.received.cause is None
    assert answered.token_ids == roles.local(ids)


def test_permitting_it_leaves_exact_kv_exact(roles: Any, prompts: Prompts) -> None:
    ids = prompts()
    answer = roles.serving(roles.decode(), permit_mapped=True)
    roles.prefill().hand_over(ids, roles.dial, handoff_id="a")
    answered = answer()
    assert (answered.token_ids, answered.mapped, answered.received.detail) == (roles.local(ids), "", "")


def test_a_codec_is_agreed_to_for_mapped_kv_too(roles: Any, prompts: Prompts, sender: PrefillNode) -> None:
    _, answered = crossed(roles, sender, prompts(), permit=True, codec="int4")
    assert "kv_dtype is float32+int4 there" in answered.received.detail
    _, answered = crossed(roles, sender, prompts(), permit=True, codec="int8")
    assert answered.received.detail == "mapped"


def test_kv_that_was_mapped_for_another_is_refused(
    roles: Any, prompts: Prompts, sender: PrefillNode, carrier: KvCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal in every field but the mark, which names another target."""
    import msgspec

    other = carrier.namespace.implementation.replace(roles.namespace.digest().hex(), "0" * 64)
    monkeypatch.setattr(
        carrier, "namespace", msgspec.structs.replace(carrier.namespace, implementation=other)
    )
    _, answered = crossed(roles, sender, prompts(), permit=True)
    assert "mapped for another namespace" in answered.received.detail


def test_a_map_of_other_models_is_refused(mapper: Mapper, roles: Any) -> None:
    with pytest.raises(FormatError, match=r"the map's source is .* differs in weights_revision"):
        KvCarrier(mapper, roles.namespace, roles.namespace)


def test_what_happened_is_recorded(roles: Any, prompts: Prompts, sender: PrefillNode) -> None:
    handed, answered = crossed(roles, sender, prompts(), permit=True)
    record = recorded(answered)
    assert record.path == "handoff"
    assert record.loads[0].detail == "mapped"
    assert any("mapped from another model" in note for note in record.notes)
    assert receive_line(answered, "")["mapped"] == send_line(handed, "a", "raw", None)["mapped"] != ""


def test_a_receiver_is_known_by_its_first_line(roles: Any, tmp_path: Path) -> None:
    path = tmp_path / "receiver.json"
    path.write_text(json.dumps({"address": "x", "namespace": roles.namespace.fields()}) + "\n")
    assert read_receiver(path) == roles.namespace


@pytest.mark.parametrize("text", ["", "no json", "{}", '{"namespace": {"model": "m"}}'])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "receiver.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"receiver\.json.*first line of kvferry handoff receive"):
        read_receiver(path)


@pytest.mark.slow
def test_two_models_as_two_processes(folder: Path, stranger: Runner, mapper: Mapper, tmp_path: Path) -> None:
    """As a user runs it: the receiver's first line is written to a file, and the sender reads it."""
    import asyncio

    from kvferry.measure.handoff.roles import Role

    save_map(mapper, tmp_path / "map.safetensors")
    (tmp_path / "prompt.txt").write_text("A ferry carries what would take longer to make again. " * 6)

    async def run() -> list[tuple[dict[str, Any], dict[str, Any]]]:
        decode = await Role.start(
            "decode",
            ["receive", "--model", str(folder), "--policy", "always", "--accept-mapped", "--count", "2"],
            log=tmp_path / "decode.log",
        )
        found = []
        try:
            first = await decode.line(120)
            (tmp_path / "receiver.json").write_text(json.dumps(first) + "\n")
            words = ["send", "--to", first["address"], "--model", str(stranger.folder)]
            words += ["--file", str(tmp_path / "prompt.txt"), "--map", str(tmp_path / "map.safetensors")]
            words += ["--receiver", str(tmp_path / "receiver.json")]
            for more in ([], ["--no-accept-mapped"]):
                prefill = await Role.start("prefill", [*words, *more], log=tmp_path / "prefill.log")
                try:
                    found.append((await prefill.line(120), await decode.line(120)))
                finally:
                    await prefill.stop()
        finally:
            await decode.stop()
        return found

    (sent, received), (_, refused) = asyncio.run(run())
    assert received["taken"], received["detail"]
    assert sent["mapped"] == received["mapped"] == mapper.digest()
    assert received["ledger"]["handoff"] == received["prompt_tokens"] - 1
    assert (refused["cause"], refused["mapped"]) == ("incompatible", "")
    assert "the request does not accept it" in refused["detail"]
