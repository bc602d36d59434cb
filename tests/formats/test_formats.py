"""Formats are contracts: what is written today equals the golden files, and they read back."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from kvferry.config import RequestFields
from kvferry.cost.profile import Profile, decode_profile, encode_profile
from kvferry.errors import FormatError
from kvferry.gate.decide import decide
from kvferry.gate.facts import Facts, GateTerms
from kvferry.keys import Namespace, block_hashes, pool_key, record_key, secret_of
from kvferry.keys.namespace import FIELDS
from kvferry.outcomes import CACHE_OUTCOMES, Outcome
from kvferry.runs.decisions import DecisionRecord, decode_record, encode_record
from kvferry.runs.directory import RunHeader
from kvferry.store.frame import HEADER_BYTES, Codec, flaw_of, parse
from kvferry.traces import open_trace
from kvferry.traces.convert import write_own
from kvferry.traces.gateway import GatewayRecord
from kvferry.traces.own.records import Header, Line
from kvferry.traces.vllm.record import EventLine

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden"
PAGE = (TESTS.parent / "docs" / "formats.md").read_text()


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_files", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILES = _load(GOLDEN / "regenerate.py").FILES
LINES = (GOLDEN / "decisions.jsonl").read_bytes().splitlines()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_is_written_now_equals_the_golden_file(path: Path) -> None:
    """On a change that is meant: python tests/golden/regenerate.py, and review the difference."""
    assert FILES[path]() == path.read_bytes()


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def test_a_golden_namespace_has_its_digest() -> None:
    document = golden("namespace.json")
    assert Namespace.from_fields(document["fields"]).digest().hex() == document["digest_hex"]


@pytest.mark.parametrize("tenant", ["default", "a"])
def test_a_golden_tenant_has_its_secret(tenant: str) -> None:
    document = golden("pool_keys.json")
    secret = secret_of(tenant, bytes.fromhex(document["root_secret_hex"]))
    assert secret.hex() == document["secrets"][tenant]["secret_hex"]


@pytest.mark.parametrize("tenant", ["published", "default", "a"])
def test_golden_blocks_have_their_keys(tenant: str) -> None:
    document = golden("pool_keys.json")
    expected = document["secrets"][tenant]
    blocks = block_hashes(document["token_ids"], document["block_tokens"])
    digest = bytes.fromhex(document["namespace_digest_hex"])
    keys = [pool_key(bytes.fromhex(expected["secret_hex"]), digest, block) for block in blocks]
    assert [key.hex() for key in keys] == expected["pool_keys_hex"]


def test_a_golden_frame_verifies() -> None:
    frame = (GOLDEN / "frame.bin").read_bytes()
    header = parse(frame[:HEADER_BYTES])
    payload = memoryview(frame)[HEADER_BYTES:]
    assert flaw_of(memoryview(frame)[:HEADER_BYTES], payload, header.namespace, header.key) is None


def test_a_golden_frame_lies_under_its_key() -> None:
    header = parse((GOLDEN / "frame.bin").read_bytes()[:HEADER_BYTES])
    assert header.key.hex() == golden("pool_keys.json")["secrets"]["published"]["pool_keys_hex"][0]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_golden_decision_reads_back_whole(line: bytes) -> None:
    assert encode_record(decode_record(line)) == line


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_the_ledger_of_a_golden_decision_sums_to_its_prompt(line: bytes) -> None:
    record = decode_record(line)
    assert sum(record.ledger.values()) == record.prompt_tokens


def test_a_golden_decision_shows_record_keys() -> None:
    keys = golden("pool_keys.json")["secrets"]["published"]["pool_keys_hex"]
    assert list(decode_record(LINES[0]).keys) == [record_key(bytes.fromhex(key)) for key in keys]


def test_a_record_replays_its_decision() -> None:
    """Facts and terms that went through JSON decide as those that did not."""
    record = decode_record(LINES[0])
    facts, terms = record.facts, record.terms
    assert facts is not None
    fresh = decide(facts, terms)
    again = decode_record(encode_record(msgspec.structs.replace(record, decision=fresh)))
    assert again.facts is not None
    assert decide(again.facts, again.terms) == again.decision


@pytest.mark.parametrize("kind", [Facts, GateTerms])
def test_what_a_decision_depends_on_is_always_whole(kind: type[msgspec.Struct]) -> None:
    """A default that changes in a later release must not change an old record."""
    assert not kind.__struct_config__.omit_defaults


def test_a_golden_profile_reads_back_whole() -> None:
    data = (GOLDEN / "profile.json").read_bytes()
    assert encode_profile(decode_profile(data, "profile.json")) == data


def test_a_profile_of_another_version_is_refused() -> None:
    other = msgspec.structs.replace(_profile(), version=2)
    with pytest.raises(FormatError, match=r"p\.json: profile version 2"):
        decode_profile(encode_profile(other), "p.json")


def _profile() -> Profile:
    return decode_profile((GOLDEN / "profile.json").read_bytes(), "profile.json")


def test_a_golden_run_header_reads_back() -> None:
    header = msgspec.json.decode((GOLDEN / "run.json").read_bytes(), type=RunHeader)
    assert header.config["gate.margin"].origin == "default"


def _section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def _first_cells(title: str) -> list[str]:
    """The names in the first column of a section's tables."""
    rows = [line.split("|")[1] for line in _section(title).splitlines() if line.startswith("| `")]
    return [name.strip(" `") for row in rows for name in row.split(",")]


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("namespace", list(FIELDS)),
        ("outcome", [str(outcome) for outcome in Outcome]),
        ("decisions.jsonl", sorted(DecisionRecord.__struct_fields__)),
        ("profile.json", list(Profile.__struct_fields__)),
        # `gives` is vLLM's do_remote_decode, which stands beside the object.
        ("per-request fields", [name for name in RequestFields.__struct_fields__ if name != "gives"]),
        ("gateway log", list(GatewayRecord.__struct_encode_fields__)),
    ],
)
def test_the_page_lists_every_name_and_no_other(title: str, names: list[str]) -> None:
    listed = _first_cells(title)
    assert (sorted(listed) if title == "decisions.jsonl" else listed) == names


@pytest.mark.parametrize(
    ("title", "kinds"), [("trace", (Header, Line)), ("recorded KV events", (EventLine,))]
)
def test_the_page_lists_every_field_of_a_line(title: str, kinds: tuple[type[msgspec.Struct], ...]) -> None:
    fields = [name for kind in kinds for name in kind.__struct_encode_fields__]
    assert sorted(_first_cells(title)) == sorted(fields)


@pytest.mark.parametrize("name", ["trace.jsonl", "gateway.jsonl", "vllm-events.jsonl"])
def test_a_golden_trace_reads_without_a_bad_row(name: str) -> None:
    trace = open_trace(GOLDEN / name, strict=True)
    assert sum(len(chunk) for chunk in trace.chunks()) > 0


def test_a_golden_trace_is_written_back_as_it_is(tmp_path: Path) -> None:
    """All but the format it came from."""
    write_own(open_trace(GOLDEN / "trace.jsonl"), tmp_path / "again.jsonl")
    lines = (tmp_path / "again.jsonl").read_bytes().splitlines()
    assert lines[1:] == (GOLDEN / "trace.jsonl").read_bytes().splitlines()[1:]


def test_the_page_names_what_a_live_cache_does_not_book() -> None:
    assert [str(outcome) for outcome in Outcome if outcome not in CACHE_OUTCOMES] == _first_cells("outcome")[
        -2:
    ]


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_the_page_lists_every_codec(codec: Codec) -> None:
    assert f"{codec.value} {codec.name.lower()}" in _section("frame")


@pytest.mark.parametrize("field", RunHeader.__struct_fields__)
def test_the_page_names_every_part_of_a_run_header(field: str) -> None:
    assert field == "format_version" or f"`{field}`" in _section("run directory")
