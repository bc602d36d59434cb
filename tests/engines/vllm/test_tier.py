"""The tier under vLLM's own offloading, driven through vLLM's own manager over host memory."""

from __future__ import annotations

import hashlib
import inspect
import json
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: make test-vllm runs these in a venv of its own"
)

import numpy as np
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvferry.engines.vllm.offloading import usage
from kvferry.engines.vllm.tier import FerryTier
from kvferry.errors import EngineError
from kvferry.outcomes import Outcome
from kvferry.runs.decisions import DecisionRecord, decode_record
from kvferry.store.frame import HEADER_BYTES
from kvferry.store.valkey import EmbeddedServer

TOKENS = 16
ROW = 16_384
STEPS = 4000

ALWAYS = {"gate": {"policy": "always", "holdout_share": 0.0, "explore_share": 0.0}, "publish": "all"}


def tier_settings(pool: str | None, **more: Any) -> dict[str, Any]:
    # A busy machine may take its time to answer: only tests of deadlines have short ones.
    timeouts = {"probe": "10s", "connect": "5s", **more.pop("timeouts", {})}
    settings: dict[str, Any] = {"revision": "r1", **ALWAYS, "timeouts": timeouts, **more}
    return {**settings, "pool": pool} if pool else settings


def spec_of(tier: dict[str, Any] | None, *, chunks: int = 64, groups: int = 1, **change: Any) -> Any:
    tiers = (
        [] if tier is None else [{"type": "FerryTier", "module_path": "kvferry.engines.vllm.tier", **tier}]
    )
    extra = {"cpu_bytes_to_use": chunks * ROW, "secondary_tiers": tiers}
    parallel = {
        "rank": 0,
        "world_size": 1,
        "tp_size": 1,
        "pp_size": 1,
        "pcp_size": 1,
        "dcp_size": 1,
        "data_parallel_index": 0,
        "data_parallel_size": 1,
        "data_parallel_rank_local": None,
        "is_parallelism_agnostic": False,
    }
    config = OffloadingConfig(
        groups=tuple(OffloadingGroupConfig(TOKENS, (f"layer.{g}",), g) for g in range(groups)),
        worker_kv_bytes_per_block=ROW,
        enable_kv_cache_events=False,
        extra_config=extra,
        engine_id=uuid.uuid4().hex,
        model=OffloadingModelConfig(change.pop("model", "some/model"), change.pop("dtype", "float32")),
        cache=OffloadingCacheConfig(TOKENS, 1),
        parallel=OffloadingParallelConfig(**parallel),
        kv_cache_layout=change.pop("layout", "NHD"),
    )
    return TieringOffloadingSpec(config)


def chain(prompt: str, blocks: int, group: int = 0) -> list[OffloadKey]:
    keys, before = [], prompt.encode()
    for _ in range(blocks):
        before = hashlib.sha256(before).digest()
        keys.append(make_offload_key(before, group))
    return keys


def content(key: OffloadKey) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer((bytes(key) * (ROW // len(key) + 1))[:ROW], dtype=np.uint8)


class Replica:
    """What vLLM's scheduler does with its offloading manager, one request at a time."""

    def __init__(self, tier: dict[str, Any] | None, **change: Any) -> None:
        self.spec = spec_of(tier, **change)
        self.manager = self.spec.get_manager()
        self.rows = np.frombuffer(self.manager.primary_tier.get_kv_memoryview(), dtype=np.uint8).reshape(
            -1, ROW
        )
        self.seen: set[LookupResult] = set()
        self.wrong = 0
        self.stepped = 0

    @property
    def tier(self) -> FerryTier:
        tier = self.manager.secondary_tiers[0]
        assert isinstance(tier, FerryTier)
        return tier

    @property
    def side(self) -> Any:
        assert self.tier._parts is not None
        return self.tier._parts.side

    def step(self, fresh: Sequence[str] = (), seconds: float = 0.001) -> None:
        self.stepped += 1
        self.manager.on_schedule_end(ScheduleEndContext(list(fresh), ()))
        time.sleep(seconds)

    def arrive(
        self, rid: str, keys: Sequence[OffloadKey], params: dict[str, Any] | None = None
    ) -> ReqContext:
        context = ReqContext(rid, params)
        self.manager.on_new_request(context)
        for i, key in enumerate(keys):
            context.set_offload_key_position(key, (i + 1) * TOKENS)
        return context

    def ask(self, context: ReqContext, keys: Sequence[OffloadKey]) -> int | None:
        """As vLLM's prefix look-up."""
        hits, deferred = 0, False
        for key in keys:
            result = self.manager.lookup(key, context)
            self.seen.add(result)
            if result is LookupResult.MISS:
                break
            deferred |= result is not LookupResult.HIT
            hits += result is not LookupResult.RETRY
        return None if deferred else hits

    def settle(self, context: ReqContext, keys: Sequence[OffloadKey]) -> int:
        for _ in range(STEPS):
            hits = self.ask(context, keys)
            if hits is not None:
                return hits
            self.step()
        raise AssertionError("a look-up was never answered")

    def read(self, context: ReqContext, keys: Sequence[OffloadKey]) -> None:
        if not keys:
            return
        spec = self.manager.prepare_load(keys, context)
        for key, chunk in zip(keys, spec.chunk_ids, strict=True):
            self.wrong += not np.array_equal(self.rows[int(chunk)], content(key))
        self.manager.complete_load(keys, context)

    def compute(self, context: ReqContext, keys: Sequence[OffloadKey]) -> None:
        """Store keys whose blocks have just been computed."""
        if not keys:
            return
        output = self.manager.prepare_store(keys, context)
        if output is None or not output.keys_to_store:
            return
        for key, chunk in zip(output.keys_to_store, output.store_spec.chunk_ids, strict=True):
            self.rows[int(chunk)] = content(key)
        self.manager.complete_store(output.keys_to_store, context)

    def serve(self, rid: str, keys: Sequence[OffloadKey], params: dict[str, Any] | None = None) -> int:
        """One request from arrival to end; how many chunks were loaded for it."""
        context = self.arrive(rid, keys, params)
        hits = self.settle(context, keys)
        self.read(context, keys[:hits])
        self.step([rid])
        self.compute(context, keys if self._again(context) else keys[hits:])
        self.step()
        self.step()
        self.manager.on_request_finished(context)
        self.quiet()
        return hits

    def _again(self, context: ReqContext) -> bool:
        return bool(self.manager._req_state[context.req_id].request_level_tiers)

    def quiet(self) -> None:
        """Step until no job is left."""
        for _ in range(STEPS):
            if not self.manager.has_pending_work():
                return
            self.step()
        raise AssertionError("a job never ended")

    def forget(self) -> None:
        """Empty the host memory."""
        self.manager.reset_cache()

    def close(self) -> None:
        del self.rows
        self.manager.shutdown()


Make = Callable[..., Replica]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Replica] = []

    def build(tier: dict[str, Any] | None, **change: Any) -> Replica:
        made.append(Replica(tier, **change))
        return made[-1]

    yield build
    for replica in made:
        replica.close()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(max_memory_bytes=256 << 20) as running:
        yield running


@pytest.fixture(params=["files", "valkey"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "files":
        return f"files://{tmp_path}/pool"
    server: EmbeddedServer = request.getfixturevalue("server")
    server.stop()
    server.start()
    return server.url


def records(folder: Path) -> list[DecisionRecord]:
    return [decode_record(line) for line in (folder / "decisions.jsonl").read_bytes().splitlines()]


def damage(folder: str, payload_bytes: int) -> None:
    """Flip a byte in every block of a pool of files."""
    for file in Path(folder.removeprefix("files://")).rglob("*"):
        if file.is_file() and file.stat().st_size >= payload_bytes:
            raw = bytearray(file.read_bytes())
            raw[len(raw) // 2] ^= 0xFF
            file.write_bytes(raw)


class Gate:
    """Lets calls of a tier through, or makes them wait."""

    def __init__(self, tier: Any, name: str) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        inner = getattr(tier, name)

        def held(*args: Any, **kwargs: Any) -> Any:
            self.entered.set()
            self.open.wait(20.0)
            return inner(*args, **kwargs)

        setattr(tier, name, held)


# -- the interface ---------------------------------------------------------------------------------------


def test_every_method_of_vllms_interface_is_known_here() -> None:
    """A release that adds one fails this test instead of a user."""
    ours = {
        "__init__",
        "on_new_request",
        "lookup",
        "submit_load",
        "submit_store",
        "get_finished_jobs",
        "has_pending_work",
        "on_request_finished",
        "on_schedule_end",
        "drain_jobs",
        "get_stats",
        "shutdown",
        "build_metric_definitions",
    }
    inherited = {"__init_subclass__", "block_size_bytes", "bp_detector", "take_events", "touch"}
    inherited |= {"serve_external_requests"}
    offered = {
        name
        for name, member in vars(SecondaryTierManager).items()
        if callable(getattr(member, "__func__", member)) or isinstance(member, property)
    }
    assert offered == ours | inherited
    assert ours <= vars(FerryTier).keys()


@pytest.mark.parametrize(
    "name", ["on_new_request", "lookup", "submit_load", "submit_store", "on_schedule_end"]
)
def test_a_method_takes_what_vllm_gives(name: str) -> None:
    theirs = inspect.signature(getattr(SecondaryTierManager, name))
    assert list(inspect.signature(getattr(FerryTier, name)).parameters) == list(theirs.parameters)


def test_a_request_still_tells_its_chunks() -> None:
    context = ReqContext("r")
    context.set_offload_key_position(chain("p", 1)[0], TOKENS)
    assert list(context._offload_key_positions.items()) == [(chain("p", 1)[0], TOKENS)]


def test_a_setting_that_is_unknown_is_the_users_to_mend() -> None:
    with pytest.raises(EngineError, match=r"FerryTier.*publsh.*publish"):
        Replica({"publsh": "all"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"revision": None}, "set revision"),
        ({"codec": "fp8"}, '"codec": "raw"'),
        ({"block_tokens": 32}, "leave it out"),
    ],
)
def test_what_cannot_be_shared_safely_is_not_shared(
    make: Make, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    given = {**tier_settings(f"files://{tmp_path}/pool"), **settings}
    replica = make({name: value for name, value in given.items() if value is not None})
    assert words in replica.tier.why_off
    assert replica.serve("a", chain("p", 4)) == 0


def test_strict_refuses_to_start(tmp_path: Path) -> None:
    settings = tier_settings(f"files://{tmp_path}/pool", codec="int8", strict=True)
    with pytest.raises(EngineError, match="strict is set"):
        Replica(settings)


def test_a_tier_without_a_pool_serves(make: Make) -> None:
    assert make({}, chunks=16).serve("a", chain("p", 4)) == 0


def test_hashes_that_differ_between_processes_are_not_used(make: Make, tmp_path: Path) -> None:
    replica = make(tier_settings(f"files://{tmp_path}/pool", record=str(tmp_path)))
    keys = [make_offload_key(bytes(key)[:16], 0) for key in chain("p", 3)]
    assert replica.serve("a", keys) == 0
    assert any("sha256_cbor" in note for note in records(tmp_path)[0].notes)


# -- sharing ---------------------------------------------------------------------------------------------


def test_two_replicas_share_one_pool(make: Make, pool: str) -> None:
    keys = chain("prompt", 10)
    first, second = make(tier_settings(pool)), make(tier_settings(pool))
    assert first.serve("a", keys) == 0
    assert second.serve("b", keys) == 10
    assert second.wrong == 0


def test_a_look_up_is_retry_then_pending_then_a_hit(make: Make, pool: str) -> None:
    """A tier says RETRY; HIT_PENDING is the manager's, whose promotion is under way."""
    keys = chain("prompt", 5)
    make(tier_settings(pool)).serve("a", keys)
    second = make(tier_settings(pool))
    said: list[LookupResult] = []
    inner = second.tier.lookup

    def heard(key: OffloadKey, context: ReqContext) -> LookupResult:
        said.append(inner(key, context))
        return said[-1]

    second.tier.lookup = heard  # type: ignore[method-assign]
    second.serve("b", keys)
    assert set(said) == {LookupResult.RETRY, LookupResult.HIT}
    assert second.seen == {LookupResult.RETRY, LookupResult.HIT_PENDING, LookupResult.HIT}


def test_a_prefix_that_is_held_in_part_is_loaded_in_part(make: Make, pool: str) -> None:
    keys = chain("prompt", 10)
    make(tier_settings(pool)).serve("a", keys[:6])
    second = make(tier_settings(pool))
    assert second.serve("b", keys) == 6
    third = make(tier_settings(pool))
    assert third.serve("c", keys) == 10
    assert third.wrong == 0


def test_what_host_memory_has_dropped_comes_back(make: Make, pool: str) -> None:
    replica = make(tier_settings(pool))
    keys = chain("prompt", 8)
    replica.serve("a", keys)
    replica.forget()
    assert replica.serve("b", keys) == 8
    assert replica.wrong == 0


def test_blocks_in_the_middle_of_which_host_memory_has_some(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 9)
    make(tier_settings(pool)).serve("a", keys)
    second = make(tier_settings(pool))
    middle = second.arrive("x", keys)
    second.compute(middle, keys[3:5])
    second.manager.on_request_finished(middle)
    second.quiet()
    assert second.serve("b", keys) == 9
    assert second.wrong == 0


@pytest.mark.parametrize("change", [{"layout": "HND"}, {"dtype": "bfloat16"}, {"model": "other/model"}])
def test_another_layout_shares_nothing(make: Make, tmp_path: Path, change: dict[str, str]) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 4)
    make(tier_settings(pool)).serve("a", keys)
    other = make(tier_settings(pool, record=str(tmp_path)), **change)
    assert other.serve("b", keys) == 0
    assert records(tmp_path)[0].ledger[Outcome.INCOMPATIBLE] == 4 * TOKENS


def test_tenants_share_nothing(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 4)
    secret = {"tenant_secret": "a long enough secret of ours"}
    make(tier_settings(pool, tenant="one", **secret)).serve("a", keys)
    assert make(tier_settings(pool, tenant="two", **secret)).serve("b", keys) == 0
    assert make(tier_settings(pool, tenant="one", **secret)).serve("c", keys) == 4


WHOLE, WINDOW = chain("hybrid", 8, 0), chain("hybrid", 8, 1)[6:]


def serve_hybrid(replica: Replica, rid: str) -> tuple[int, list[LookupResult]]:
    """As vLLM with a full and a sliding-window group: all chunks of one, the last two of the other."""
    context = replica.arrive(rid, WHOLE)
    for i, key in enumerate(WINDOW, 6):
        context.set_offload_key_position(key, (i + 1) * TOKENS)
    for _ in range(STEPS):
        hits = replica.ask(context, WHOLE)
        tail = [replica.manager.lookup(key, context) for key in reversed(WINDOW)]
        if hits is not None and not {LookupResult.RETRY, LookupResult.HIT_PENDING} & set(tail):
            break
        replica.step()
    if hits:
        replica.read(context, [*WHOLE, *(WINDOW if LookupResult.MISS not in tail else ())])
    replica.step([rid])
    replica.compute(context, [*WHOLE, *WINDOW])
    replica.step()
    replica.manager.on_request_finished(context)
    replica.quiet()
    return hits or 0, tail


def test_groups_of_a_hybrid_model_travel_together(make: Make, pool: str) -> None:
    """The first group leads; of the other only what vLLM stored and asks for."""
    assert serve_hybrid(make(tier_settings(pool), groups=2), "a")[0] == 0
    second = make(tier_settings(pool), groups=2)
    assert serve_hybrid(second, "b") == (8, [LookupResult.HIT] * 2)
    assert second.wrong == 0


def test_a_look_up_of_another_group_that_hangs_is_a_miss(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    serve_hybrid(make(tier_settings(pool), groups=2), "a")
    second = make(tier_settings(pool, timeouts={"probe": "300ms"}), groups=2)
    assert second.tier._parts is not None
    link = second.tier._parts.shelf.link
    assert link is not None
    inner, until = link.tier.find, threading.Event()

    def find(keys: Sequence[bytes], timeout_seconds: float) -> bytes:
        if len(keys) == len(WINDOW):
            until.wait(20.0)
        return inner(keys, timeout_seconds)

    link.tier.find = find  # type: ignore[method-assign]
    assert serve_hybrid(second, "b")[1] == [LookupResult.MISS] * 2
    assert second.side.requests == 0
    until.set()


# -- records and metrics -----------------------------------------------------------------------------------


def test_a_load_is_booked(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 6)
    make(tier_settings(pool)).serve("a", keys)
    make(tier_settings(pool, record=str(tmp_path))).serve("b", keys)
    (record,) = records(tmp_path)
    assert record.request_id == "b"
    assert record.ledger == {Outcome.POOL_HIT: 6 * TOKENS, Outcome.PARTIAL_BLOCK: 1}
    assert record.loads[0].bytes == 6 * ROW


def test_every_token_is_booked_once(make: Make, tmp_path: Path) -> None:
    replica = make(tier_settings(f"files://{tmp_path}/pool", record=str(tmp_path)))
    for number in range(5):
        replica.serve(f"r{number}", chain("p", 3 + number))
        replica.forget()
    assert [sum(r.ledger.values()) for r in records(tmp_path)] == [r.prompt_tokens for r in records(tmp_path)]


def test_the_requests_own_fields_are_honoured(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 6)
    make(tier_settings(pool)).serve("a", keys)
    second = make(tier_settings(pool, record=str(tmp_path)))
    params = {"kvferry": {"max_load_tokens": 2 * TOKENS, "decision_id": "d-1"}}
    assert second.serve("b", keys, params) == 2
    assert records(tmp_path)[0].decision_id == "d-1"


def test_a_request_whose_fields_cannot_be_read_is_served_without(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 3)
    make(tier_settings(pool)).serve("a", keys)
    second = make(tier_settings(pool))
    assert second.serve("b", keys, {"kvferry": {"max_load_tokns": 1}}) == 0
    assert second.serve("c", keys) == 3


def test_metrics_are_vllms_to_serve(make: Make, tmp_path: Path) -> None:
    replica = make(tier_settings(f"files://{tmp_path}/pool"))
    keys = chain("prompt", 4)
    replica.serve("a", keys)
    replica.forget()
    replica.serve("b", keys)
    stats = replica.tier.get_stats()
    assert stats is not None
    reduced = stats.reduce()
    assert reduced["kvferry_ledger_tokens_total:('pool_hit',)"] == 4 * TOKENS
    assert reduced["kvferry_published_bytes_total:('pool',)"] == 4 * (ROW + HEADER_BYTES)
    assert set(stats.data["data"]) <= set(FerryTier.build_metric_definitions({}))


# -- the gate ----------------------------------------------------------------------------------------------


def test_the_gate_declines_over_a_throttled_link(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    rule = {"gate": {"holdout_share": 0.0, "explore_share": 0.0, "auto_off": False}}
    first = make(tier_settings(pool))
    prompts = [chain(f"p{i}", 10) for i in range(3)]
    for i, keys in enumerate(prompts):
        first.serve(f"a{i}", keys)
    second = make(tier_settings(pool, record=str(tmp_path), **rule))
    side, parts = second.side, second.tier._parts
    assert parts is not None
    assert parts.shelf.link is not None
    parts.shelf.link.bytes_per_second = 2e6

    def engine_computes(seconds_per_token: float) -> None:
        for tokens in (64, 128, 256, 512) * 60:
            side._common.cache.estimates.prefill.observe(tokens, 0, tokens * seconds_per_token)

    # A slow engine takes what the link brings, and so finds out what it is worth.
    engine_computes(1e-2)
    assert second.serve("b0", prompts[0]) == 10
    engine_computes(1e-5)
    assert second.serve("b1", prompts[1]) == 0
    declined = records(tmp_path)[-1]
    assert declined.path == "declined"
    assert declined.ledger[Outcome.DECLINED] == 10 * TOKENS
    engine_computes(1e-2)
    assert second.serve("b2", prompts[2]) == 10


def test_the_prefill_speed_is_learned_from_the_engines_steps(make: Make, tmp_path: Path) -> None:
    replica = make(tier_settings(f"files://{tmp_path}/pool"))
    for number in range(4):
        keys = chain(f"p{number}", 8)
        context = replica.arrive(f"r{number}", keys)
        assert replica.settle(context, keys) == 0
        replica.step([context.req_id], seconds=0.05)
        replica.compute(context, keys)
        for _ in range(8):
            replica.step()
        replica.manager.on_request_finished(context)
    prefill = replica.side._common.cache.estimates.prefill
    assert prefill.n == 4
    assert prefill.seconds(8 * TOKENS, 0, 8192) == pytest.approx(0.05, rel=0.6)


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_a_mode_that_moves_nothing(make: Make, tmp_path: Path, mode: str) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 4)
    make(tier_settings(pool)).serve("a", keys)
    gate = {"gate": {"mode": mode}}
    second = make(tier_settings(pool, record=str(tmp_path), **gate))
    assert second.serve("b", keys) == 0
    assert second.serve("c", chain("another", 4)) == 0
    assert make(tier_settings(pool)).serve("d", chain("another", 4)) == 0
    found = Outcome.DECLINED in records(tmp_path)[0].ledger
    assert found is (mode == "shadow")


class Port:
    """The control port of one tier."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"

    def switch(self, **changes: object) -> dict[str, Any]:
        body = json.dumps({name.replace("__", "."): value for name, value in changes.items()}).encode()
        url = f"http://{self.address}/kvferry/settings"
        with urllib.request.urlopen(url, data=body, timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


def test_a_running_tier_is_switched(make: Make, tmp_path: Path) -> None:
    pool, port = f"files://{tmp_path}/pool", Port()
    held = [chain(f"held-{i}", 4) for i in range(4)]
    first = make(tier_settings(pool))
    for i, keys in enumerate(held):
        first.serve(f"a{i}", keys)
    gate = {**ALWAYS["gate"], "canary_share": 0.0}
    one = make(tier_settings(pool, record=str(tmp_path), control=port.address, gate=gate))
    assert one.serve("on", held[0]) == 4
    # A canary of no request is a mode in which none loads.
    modes = {"shadow": 0, "off": 0, "canary": 0, "on": 4}
    for (mode, hits), keys in zip(modes.items(), [*held[1:], held[1]], strict=True):
        assert port.switch(gate__mode=mode)["gate.mode"] == mode
        one.forget()
        assert one.serve(f"in {mode}", keys) == hits
        stats = one.tier.get_stats()
        assert stats is not None
        assert stats.reduce()[f"kvferry_mode:('{mode}',)"] == 1
    one.step()
    assert [record.mode for record in records(tmp_path)] == ["on", *modes]
    assert one.wrong == 0


def test_what_a_switched_tier_publishes_follows_the_mode(make: Make, tmp_path: Path) -> None:
    pool, port = f"files://{tmp_path}/pool", Port()
    one = make(tier_settings(pool, control=port.address))
    for mode in ("shadow", "on"):
        port.switch(gate__mode=mode)
        keys = chain(mode, 4)
        one.serve(mode, keys)
        assert held(make, pool, keys) == (4 if mode == "on" else 0)


def test_a_request_that_came_before_the_switch_is_of_the_mode_that_it_is_decided_in(
    make: Make, tmp_path: Path
) -> None:
    """vLLM tells of a request's chunks with its first look-up: until then nothing is settled."""
    pool, port = f"files://{tmp_path}/pool", Port()
    one = make(tier_settings(pool, control=port.address))
    keys = chain("between", 4)
    context = one.arrive("r", keys)
    port.switch(gate__mode="shadow")
    one.settle(context, keys)
    one.step(["r"])
    one.compute(context, keys)
    one.step()
    one.manager.on_request_finished(context)
    one.quiet()
    assert held(make, pool, keys) == 0


def test_a_switch_that_is_none_is_refused(make: Make, tmp_path: Path) -> None:
    port = Port()
    make(tier_settings(f"files://{tmp_path}/pool", control=port.address))
    with pytest.raises(urllib.error.HTTPError) as refused:
        port.switch(gate__mode="sideways")
    assert refused.value.code == 400


def test_what_the_pool_holds_is_on_vllms_page(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_PERIOD_SECONDS", 0.02)
    one = make(tier_settings(f"files://{tmp_path}/pool"))
    one.serve("a", chain("prompt", 4))
    figures: dict[str, float] = {}
    for _ in range(STEPS):
        stats = one.tier.get_stats()
        figures |= stats.reduce() if stats is not None else {}
        if figures.get("kvferry_tier_used_bytes:('pool',)", 0) >= 4 * ROW:
            break
        time.sleep(0.005)
    assert figures["kvferry_tier_up:('pool',)"] == 1
    assert figures["kvferry_tier_used_bytes:('pool',)"] >= 4 * ROW


def test_a_tier_that_is_off_says_so_on_the_page(make: Make) -> None:
    stats = make(tier_settings("memory://?capacity=1MiB", codec="fp8")).tier.get_stats()
    assert stats is not None
    figures = stats.reduce()
    assert figures["kvferry_mode:('off',)"] == 1
    assert figures["kvferry_failures_total:('cache',)"] == 1


# -- what is published -------------------------------------------------------------------------------------


def held(make: Make, pool: str, keys: Sequence[OffloadKey]) -> int:
    """How many leading chunks a fresh replica finds."""
    return make(tier_settings(pool)).serve(uuid.uuid4().hex, keys)


def test_never_publishes_nothing(make: Make, pool: str) -> None:
    keys = chain("prompt", 4)
    replica = make(tier_settings(pool, publish="never"))
    replica.serve("a", keys)
    replica.serve("b", keys)
    assert held(make, pool, keys) == 0


def test_second_touch_publishes_what_was_held_before(make: Make, pool: str) -> None:
    """The second request finds the prefix in the engine's own memory: vLLM has to offer it again."""
    keys = chain("prompt", 4)
    replica = make(tier_settings(pool, publish="second-touch"))
    replica.serve("a", keys)
    assert held(make, pool, keys[:1]) == 0
    replica.serve("b", keys)
    assert held(make, pool, keys) == 4


def test_declared_publishes_up_to_the_boundary(make: Make, pool: str) -> None:
    keys = chain("prompt", 6)
    replica = make(tier_settings(pool, publish="declared"))
    replica.serve("a", keys)
    replica.serve("b", keys, {"kvferry": {"boundary_tokens": 3 * TOKENS + 5}})
    assert held(make, pool, keys) == 3


def test_a_class_that_may_not_be_shared_is_not(make: Make, pool: str) -> None:
    keys = chain("prompt", 4)
    make(tier_settings(pool)).serve("a", keys, {"kvferry": {"data_class": "private"}})
    assert held(make, pool, keys) == 0


def test_what_lies_there_is_not_published_again(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 4)
    make(tier_settings(pool)).serve("a", keys)
    second = make(tier_settings(pool, publish="second-touch"))
    for number in range(3):
        second.serve(f"b{number}", keys)
    assert second.tier._parts is not None
    assert second.tier._parts.ferry.settings()["state"]["published_bytes"] == 0


# -- what goes wrong ---------------------------------------------------------------------------------------


def test_a_pool_that_is_gone_is_left_alone_and_found_again(make: Make, server: EmbeddedServer) -> None:
    server.start()
    timeouts = {"timeouts": {"backoff_first": "50ms", "backoff_most": "100ms", "connect": "200ms"}}
    keys = chain("gone", 4)
    replica = make(tier_settings(server.url, **timeouts))
    server.stop()
    assert replica.serve("a", keys) == 0
    server.start()
    for number in range(200):
        replica.forget()
        if replica.serve(f"b{number}", keys) == 4:
            break
        time.sleep(0.01)
    else:
        raise AssertionError("the pool was not found again")
    assert replica.wrong == 0


def test_a_pool_that_goes_between_look_up_and_load(make: Make, server: EmbeddedServer) -> None:
    server.stop()
    server.start()
    keys = chain("going", 6)
    make(tier_settings(server.url)).serve("a", keys)
    second = make(tier_settings(server.url))
    context = second.arrive("b", keys)
    for _ in range(STEPS):
        second.ask(context, keys)
        if LookupResult.HIT_PENDING in second.seen:
            break
        second.step()
    server.stop()
    hits = second.settle(context, keys)
    second.read(context, keys[:hits])
    second.compute(context, keys[hits:])
    second.manager.on_request_finished(context)
    second.quiet()
    assert hits == 0
    server.start()


def test_a_damaged_block_is_computed_and_published_anew(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 5)
    make(tier_settings(pool)).serve("a", keys)
    damage(pool, ROW)
    second = make(tier_settings(pool, record=str(tmp_path)))
    assert second.serve("b", keys) == 0
    assert records(tmp_path)[0].fallback is Outcome.CORRUPT
    for number in range(6):
        # Blocks behind the first bad one are found out one load at a time.
        second.forget()
        if second.serve(f"c{number}", keys) == 5:
            break
    assert held(make, pool, keys) == 5
    assert second.wrong == 0


def test_a_load_that_hangs_is_given_up_and_writes_nothing_later(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 4)
    make(tier_settings(pool)).serve("a", keys)
    second = make(tier_settings(pool, timeouts={"load": "1s"}))
    assert second.tier._parts is not None
    link = second.tier._parts.shelf.link
    assert link is not None
    gate = Gate(link.tier, "get")
    assert second.serve("b", keys) == 0
    assert gate.entered.is_set()
    # Other chunks take the places that the load was to fill.
    others = chain("others", 60)
    second.serve("c", others)
    gate.open.set()
    time.sleep(0.1)
    context = second.arrive("d", others)
    assert second.settle(context, others) == 60
    second.read(context, others)
    second.manager.on_request_finished(context)
    assert second.wrong == 0


def test_a_store_that_hangs_gives_its_chunks_back(make: Make, tmp_path: Path) -> None:
    replica = make(tier_settings(f"files://{tmp_path}/pool", timeouts={"store": "1s"}))
    assert replica.tier._parts is not None
    link = replica.tier._parts.shelf.link
    assert link is not None
    gate = Gate(link.tier, "put")
    assert replica.serve("a", chain("prompt", 4)) == 0
    assert gate.entered.is_set()
    assert replica.manager.primary_tier._num_evictable_cache_chunks == 4
    gate.open.set()


def test_a_pool_that_is_full_refuses_and_nothing_waits(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool?capacity={4 * ROW}"
    replica = make(tier_settings(pool))
    for number in range(6):
        keys = chain(f"p{number}", 3)
        replica.serve(f"r{number}", keys)
        replica.forget()
        replica.serve(f"s{number}", keys)
    assert replica.wrong == 0


def test_an_abort_during_a_load_frees_everything(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 4)
    make(tier_settings(pool)).serve("a", keys)
    second = make(tier_settings(pool, record=str(tmp_path)))
    assert second.tier._parts is not None
    link = second.tier._parts.shelf.link
    assert link is not None
    gate = Gate(link.tier, "get")
    context = second.arrive("b", keys)
    for _ in range(STEPS):
        second.ask(context, keys)
        second.step()
        if gate.entered.is_set():
            break
    second.manager.on_request_finished(context)
    second.quiet()
    gate.open.set()
    assert records(tmp_path)[0].aborted
    assert second.side.requests == 0
    second.forget()
    assert second.serve("c", keys) == 4
    assert second.wrong == 0


def test_host_memory_that_is_full_takes_what_fits(make: Make, pool: str) -> None:
    keys = chain("prompt", 10)
    make(tier_settings(pool)).serve("a", keys)
    small = make(tier_settings(pool), chunks=4)
    assert small.serve("b", keys) <= 4
    assert small.wrong == 0
    assert small.side.requests == 0


def test_a_reset_in_the_middle_of_a_load(make: Make, pool: str) -> None:
    keys = chain("prompt", 6)
    make(tier_settings(pool)).serve("a", keys)
    second = make(tier_settings(pool))
    context = second.arrive("b", keys)
    for _ in range(STEPS):
        second.ask(context, keys)
        second.step(seconds=0.0)
        if second.manager._jobs:
            break
    second.forget()
    hits = second.settle(context, keys)
    second.read(context, keys[:hits])
    second.manager.on_request_finished(context)
    second.quiet()
    assert second.wrong == 0
    assert second.serve("c", keys) == 6


def test_an_error_behind_the_tier_ends_the_sharing_not_the_serving(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 4)
    replica = make(tier_settings(pool))
    replica.serve("a", keys)
    replica.forget()

    def broken(context: ReqContext) -> None:
        raise RuntimeError("a mistake of ours")

    replica.side.finish = broken
    assert replica.serve("b", keys) == 4
    assert replica.tier.why_off == "RuntimeError: a mistake of ours"
    replica.forget()
    assert replica.serve("c", keys) == 0
    stats = replica.tier.get_stats()
    assert stats is not None
    assert stats.reduce()["kvferry_failures_total:('cache',)"] == 1


def test_an_error_while_a_load_is_under_way_reports_its_job(make: Make, tmp_path: Path) -> None:
    pool = f"files://{tmp_path}/pool"
    keys = chain("prompt", 4)
    make(tier_settings(pool)).serve("a", keys)
    second = make(tier_settings(pool))

    def broken(*args: Any) -> None:
        raise RuntimeError("a mistake of ours")

    second.side._ferry.begin = broken
    assert second.serve("b", keys) == 0
    assert second.wrong == 0


def test_state_is_bounded(make: Make, tmp_path: Path) -> None:
    replica = make(tier_settings(f"files://{tmp_path}/pool"))
    threads = threading.active_count()
    for number in range(150):
        replica.serve(f"r{number}", chain(f"p{number % 7}", 5))
        if number % 10 == 0:
            replica.forget()
    side = replica.side
    assert (side.requests, side.jobs, side._stores._bytes) == (0, 0, 0)
    assert not side._stores._keys
    assert not side._loads._asked
    assert not side._common.executor._runs
    assert not side._common.executor._probes
    assert len(side._pace._steps) < 20
    assert not side._pace._prefills
    assert threading.active_count() <= threads + 8
    assert side._common.cache.idle


def test_two_requests_for_one_prefix_at_once(make: Make, pool: str) -> None:
    keys = chain("prompt", 6)
    make(tier_settings(pool)).serve("a", keys)
    second = make(tier_settings(pool))
    contexts = [second.arrive(f"b{i}", keys) for i in range(3)]
    for _ in range(STEPS):
        hits = [second.ask(context, keys) for context in contexts]
        if None not in hits:
            break
        second.step()
    assert hits == [6, 6, 6]
    for context in contexts:
        second.read(context, keys)
        second.manager.on_request_finished(context)
    second.quiet()
    assert second.wrong == 0
    assert second.tier._parts is not None
    assert second.tier._parts.ferry.settings()["state"]["read_bytes"] == 6 * ROW
