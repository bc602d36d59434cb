"""The golden files, and how each is made: `python tests/golden/regenerate.py` writes them all anew.

A format is a contract with files that already exist. A test compares these bytes with what the code writes
now, so a change shows as a difference in a file under review: run this on purpose, raise the format's
version if old files can no longer be read, and say so in docs/formats.md. `vllm-block-hashes.json` was made
by vLLM and is not written here.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kvferry.config import Config
from kvferry.config.fields import fields_of, show_value
from kvferry.cost.profile import (
    Figure,
    InterferenceProfile,
    LegProfile,
    Origin,
    PrefillProfile,
    Profile,
    SpreadRecord,
    SumsRecord,
    encode_profile,
)
from kvferry.gate.facts import Arm, Decision, Facts, GateTerms, Live, Reason, Segment
from kvferry.keys import (
    DEFAULT_SECRET,
    Manifest,
    Namespace,
    block_hashes,
    canonical_text,
    pool_key,
    record_key,
    secret_of,
)
from kvferry.outcomes import Outcome
from kvferry.runs.decisions import SCHEMA_VERSION, Actual, DecisionRecord, LoadRecord, encode_record
from kvferry.runs.directory import RunHeader, Setting
from kvferry.runs.machine import Machine
from kvferry.store.frame import HEADER_BYTES, encode_into
from kvferry.traces import Request, from_requests
from kvferry.traces.convert import write_own
from kvferry.traces.gateway import GATEWAY_VERSION, GatewayRecord
from kvferry.traces.own.records import Header, Line
from kvferry.traces.vllm.record import EventLine, EventRecorder

GOLDEN = Path(__file__).parent
DOCS = GOLDEN.parents[1] / "docs"

NAMESPACE = Namespace(
    model="smollm2-135m",
    weights_revision="sha256:0f1e2d3c",
    tokenizer="sha256:4b5a6978",
    attention=canonical_text({"kind": "full", "heads": 9, "kv_heads": 3, "head_dim": 64, "bias": False}),
    position=canonical_text({"kind": "rope", "theta": 100000.0, "scaling": None}),
    implementation="transformers-sdpa",
    kv_dtype="float32",
    layout="l2htd/AVX512",
    block_tokens=32,
    parallel_size=2,
    adapter="",
    tenant="größe",
)
MANIFEST = Manifest(
    engine="transformers 5.16.1",
    connector="embedded 0.1.0",
    kvferry="0.1.0",
    chat_template="sha256:8c7d6e5f",
    created_wall_seconds=1700000000.0,
)
ROOT_SECRET = b"a root secret of more than sixteen bytes"
PAYLOAD = bytes(range(256)) * 4
PROMPT = list(range(100))


def namespace() -> bytes:
    """Fields, canonical bytes and digest of one namespace, and its manifest."""
    return _document(
        {
            "fields": NAMESPACE.fields(),
            "encoded_hex": NAMESPACE.encoded().hex(),
            "digest_hex": NAMESPACE.digest().hex(),
            "rank_1_digest_hex": NAMESPACE.with_rank(1).digest().hex(),
            "manifest": msgspec.to_builtins(MANIFEST),
        }
    )


def pool_keys() -> bytes:
    """Secrets of two tenants, and the keys of three blocks under each."""
    digest = NAMESPACE.digest()
    blocks = block_hashes(PROMPT, 32)
    secrets = {"published": DEFAULT_SECRET} | {
        name: secret_of(name, ROOT_SECRET) for name in ("default", "a")
    }
    return _document(
        {
            "root_secret_hex": ROOT_SECRET.hex(),
            "namespace_digest_hex": digest.hex(),
            "token_ids": PROMPT,
            "block_tokens": 32,
            "block_hashes_hex": [block.hex() for block in blocks],
            "secrets": {
                name: {
                    "secret_hex": secret.hex(),
                    "pool_keys_hex": [pool_key(secret, digest, block).hex() for block in blocks],
                    "record_keys": [record_key(pool_key(secret, digest, block)) for block in blocks],
                }
                for name, secret in secrets.items()
            },
        }
    )


def frame() -> bytes:
    """The header and 1,024 bytes of payload of one raw block."""
    key = pool_key(DEFAULT_SECRET, NAMESPACE.digest(), block_hashes(PROMPT, 32)[0])
    header = bytearray(HEADER_BYTES)
    encode_into(memoryview(header), NAMESPACE.digest(), key, memoryview(PAYLOAD))
    return bytes(header) + PAYLOAD


def decisions() -> bytes:
    """Three requests: a load in part from two tiers, one that nobody held, one that was aborted."""
    digest = NAMESPACE.digest()
    keys = tuple(record_key(pool_key(DEFAULT_SECRET, digest, block)) for block in block_hashes(PROMPT, 32))
    live = Live(
        prefill_step_seconds=0.01,
        prefill_token_seconds=0.004,
        prefill_pair_seconds=5e-07,
        prefill_median=1.0,
        prefill_observations=12,
        chunk_tokens=256,
        running_requests=1,
        decode_growth=0.02,
        free_blocks=640,
    )
    facts = Facts(
        prompt_tokens=100,
        local_tokens=32,
        block_tokens=32,
        bytes_per_token=46080,
        segments=(
            Segment(0, 2, 0.0005, 1.5e-10, 1.0, 1.5, 0, 40),
            Segment(1, 3, 0.002, 8e-09, 1.0, 1.25, 1, 9),
        ),
        live=live,
        arm=Arm.ON,
        lookup_seconds=0.001,
        deadline_seconds=2.0,
    )
    loaded = DecisionRecord(
        version=SCHEMA_VERSION,
        request_id="req-1",
        replica="b",
        arrival=1700000000.25,
        tenant_class="default",
        mode="on",
        path="pool_hit",
        prompt_tokens=100,
        block_tokens=32,
        bytes_per_token=46080,
        keys=keys,
        found_end_block=3,
        facts=facts,
        terms=GateTerms(),
        decision=Decision(3, Reason.PAYS, 0.0152, 0.0183, 0.2672, 0.0003, 0.0134, 3, 2949120),
        outcome=Outcome.POOL_HIT,
        ledger={
            Outcome.DEVICE_HIT: 32,
            Outcome.HOST_HIT: 32,
            Outcome.POOL_HIT: 32,
            Outcome.PARTIAL_BLOCK: 4,
        },
        loads=(
            LoadRecord(
                tier="host",
                start_block=1,
                stop_block=2,
                good_blocks=1,
                bytes=1474560,
                wire_seconds=0.0008,
                install_seconds=0.0002,
            ),
            LoadRecord(
                tier="pool",
                start_block=2,
                stop_block=3,
                good_blocks=1,
                bytes=1474560,
                queue_seconds=0.0001,
                wire_seconds=0.0125,
                install_seconds=0.0004,
                in_flight=1.5,
            ),
        ),
        actual=Actual(
            lookup_seconds=0.001,
            load_seconds=0.014,
            prefill_seconds=0.031,
            computed_tokens=4,
            ready_seconds=0.047,
            ttft_seconds=0.125,
        ),
        published=((2, 3),),
        decision_id="gw-7",
    )
    cold = DecisionRecord(
        version=SCHEMA_VERSION,
        request_id="req-2",
        replica="a",
        arrival=1700000001.0,
        tenant_class="public",
        mode="on",
        path="cold",
        prompt_tokens=20,
        block_tokens=32,
        bytes_per_token=46080,
        terms=GateTerms(policy="always"),
        ledger={Outcome.PARTIAL_BLOCK: 20},
        actual=Actual(prefill_seconds=0.125, computed_tokens=20, ready_seconds=0.125),
    )
    aborted = DecisionRecord(
        version=SCHEMA_VERSION,
        request_id="req-3",
        replica="a",
        arrival=1700000002.5,
        tenant_class="default",
        mode="canary",
        path="cold",
        prompt_tokens=64,
        block_tokens=32,
        bytes_per_token=46080,
        keys=keys[:2],
        terms=GateTerms(),
        outcome=Outcome.ABORTED,
        ledger={Outcome.ABORTED: 64},
        actual=Actual(),
        aborted=True,
        notes=("aborted while its look-up was under way",),
    )
    return b"".join(encode_record(record) + b"\n" for record in (loaded, cold, aborted))


def profile() -> bytes:
    """What one host has learned: prefill, one leg that is known and one that is not, interference."""
    measured = Origin.MEASURED
    made = Profile(
        version=1,
        host="replica-b",
        namespace=NAMESPACE.digest().hex(),
        prefill=PrefillProfile(
            step_seconds=Figure(0.01, measured),
            token_seconds=Figure(0.004, measured),
            pair_seconds=Figure(5e-07, measured),
            spread_p95=Figure(1.125, measured),
            observations=12,
            tokens=3072,
            sums=SumsRecord(
                12.0,
                ((4.0, 1024.0, 8192.0), (1024.0, 4096.0, 16384.0), (8192.0, 16384.0, 65536.0)),
                (2.0, 64.0, 512.0),
                12.0,
            ),
            spread=SpreadRecord(12, {"-2": 1.5, "0": 6.0, "5": 0.25}),
        ),
        legs={
            "pool": LegProfile(
                setup_seconds=Figure(0.002, measured),
                bytes_per_second=Figure(125000000.0, measured),
                spread_p95=Figure(1.25, measured),
                observations=9,
                bytes=13271040,
                setup_before_seconds=0.001,
                sums=SumsRecord(9.0, ((3.0, 4096.0), (4096.0, 8388608.0)), (1.5, 2048.0), 9.0),
                spread=SpreadRecord(9, {"0": 4.0, "10": 0.5}),
            ),
            "host": LegProfile(
                setup_seconds=Figure(0.0, Origin.ASSUMED),
                bytes_per_second=None,
                spread_p95=Figure(1.5, Origin.ASSUMED),
                observations=0,
                bytes=0,
                setup_before_seconds=0.0,
                sums=SumsRecord(0.0, ((0.0, 0.0), (0.0, 0.0)), (0.0, 0.0), 0.0),
                spread=SpreadRecord(0, {}),
            ),
        },
        interference=InterferenceProfile(
            growth=Figure(0.02, measured),
            alone_n=20.0,
            alone_seconds=1.5,
            beside_n=8.0,
            beside_seconds=0.612,
            held_seconds=0.0,
            loads=9.0,
        ),
    )
    return encode_profile(made)


def run() -> bytes:
    """run.json of a short run."""
    header = RunHeader(
        format_version=1,
        command=["kvferry", "demo", "--seed", "7"],
        started="2023-11-14T22:13:20+00:00",
        seed=7,
        config={
            "pool": Setting("valkey://127.0.0.1:6379", "flag --set"),
            "gate.margin": Setting(0.002, "default"),
            "shareable_data_classes": Setting(["default", "public"], "default"),
        },
        versions={"kvferry": "0.1.0", "python": "3.11.7"},
        machine=Machine(cpu="a cpu", cores=2, memory_bytes=8589934592, os="Linux 6.1"),
        equal={"model": "smollm2-135m", "block_tokens": 32},
    )
    return _document(header)


def trace() -> bytes:
    """Three requests of a keyed trace: a first one, one that shares its beginning, one with nothing of it."""
    first, second, tail, other = (bytes([number]) * 16 for number in (1, 2, 3, 4))
    made = from_requests(
        [
            Request(0.0, 40, 8, (first, second), 32, {"class": "chat", "model": "smollm2-135m"}),
            Request(1.5, 48, 3, (first, second, tail), fields={"class": "chat"}),
            Request(2.25, 16, blocks=(other,)),
        ],
        block_tokens=16,
    )
    made.naming = "keyed"
    return _written(lambda path: write_own(made, path))


def gateway() -> bytes:
    """One request as the gateway forwards it."""
    digest = NAMESPACE.digest()
    record = GatewayRecord(
        version=GATEWAY_VERSION,
        arrival=1700000000.25,
        request_id="req-1",
        prompt_tokens=100,
        block_tokens=32,
        keys=[record_key(pool_key(DEFAULT_SECRET, digest, block)) for block in block_hashes(PROMPT, 32)],
        completion_tokens=8,
        model="smollm2-135m",
        class_="chat",
        tenant_class="default",
        session="s-1",
        replica="b",
        boundary_tokens=64,
    )
    return msgspec.json.encode(record) + b"\n"


def vllm_events() -> bytes:
    """Two messages of an engine: a prompt of two blocks and its growth, then an eviction of the growth."""
    stored = {
        "type": "BlockStored",
        "block_hashes": [11, 12],
        "parent_block_hash": None,
        "token_ids": PROMPT[:32],
        "block_size": 16,
        "medium": "GPU",
        "session_id": "s-1",
    }
    grown = {**stored, "block_hashes": [13], "parent_block_hash": 12, "token_ids": PROMPT[32:48]}
    removed = {"type": "BlockRemoved", "block_hashes": [13], "medium": "GPU"}

    def write(path: Path) -> None:
        with EventRecorder(path, bytes(range(32))) as recorder:
            recorder.message(0, msgspec.msgpack.encode([1700000000.25, [stored, grown], 0]))
            recorder.message(1, msgspec.msgpack.encode([1700000001.5, [removed], 1]))

    return _written(write)


def formats_page() -> bytes:
    """docs/formats.md with its table of settings written anew."""
    text = (DOCS / "formats.md").read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{settings_table()}\n{END}{after}".encode()


def settings_table() -> str:
    """Every setting with its kind, default and meaning, as Markdown."""
    rows = []
    for path, field in fields_of(Config).items():
        if field.kind != "group":
            values = ", ".join(field.choices) or field.kind
            rows.append(f"| `{path}` | {values} | `{show_value(field, field.default)}` | {field.doc} |")
    return "\n".join(["| setting | value | default | what |", "|---|---|---|---|", *rows])


def _written(write: Callable[[Path], object]) -> bytes:
    """What `write` puts into a new file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made"
        write(path)
        return path.read_bytes()


def _schema(kind: Any) -> Callable[[], bytes]:
    # Without the docstrings that msgspec takes along: better words are no new format.
    return lambda: _document(_without_words(msgspec.json.schema(kind)))


def _without_words(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_words(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key for key in ("title", "description") if isinstance(schema.get(key), str)}
    return {key: _without_words(value) for key, value in schema.items() if key not in said}


def _document(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


BEGIN = "<!-- settings: begin, written by tests/golden/regenerate.py -->"
END = "<!-- settings: end -->"

FILES: dict[Path, Callable[[], bytes]] = {
    GOLDEN / "namespace.json": namespace,
    GOLDEN / "pool_keys.json": pool_keys,
    GOLDEN / "frame.bin": frame,
    GOLDEN / "decisions.jsonl": decisions,
    GOLDEN / "profile.json": profile,
    GOLDEN / "run.json": run,
    GOLDEN / "trace.jsonl": trace,
    GOLDEN / "gateway.jsonl": gateway,
    GOLDEN / "vllm-events.jsonl": vllm_events,
    DOCS / "formats.md": formats_page,
    DOCS / "schemas" / "namespace.json": _schema(Namespace),
    DOCS / "schemas" / "manifest.json": _schema(Manifest),
    DOCS / "schemas" / "decision.json": _schema(DecisionRecord),
    DOCS / "schemas" / "profile.json": _schema(Profile),
    DOCS / "schemas" / "run.json": _schema(RunHeader),
    DOCS / "schemas" / "trace-header.json": _schema(Header),
    DOCS / "schemas" / "trace-request.json": _schema(Line),
    DOCS / "schemas" / "gateway.json": _schema(GatewayRecord),
    DOCS / "schemas" / "vllm-event.json": _schema(EventLine),
}
"""Every golden file and every schema, with what makes it."""

if __name__ == "__main__":
    for path, make in FILES.items():
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != made:
            path.write_bytes(made)
            sys.stderr.write(f"wrote {path}\n")
