"""What the connector carries between engines, what each setting does to it, and what turns it off."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: make test-vllm runs these in a venv of its own"
)

from kvferry.errors import EngineError

from .conftest import Trio, Truth, balanced, prompt_for, revive, step_until
from .faulty import FaultyPool
from .replicas import SETTINGS, Replica, save_llama, save_lora

TOKENS = 300
WHOLE = {"pool_hit": 288, "partial_block": 12}
COLD = {"never_published": 288, "partial_block": 12}
Make = Callable[..., Replica]
Own = tuple[FaultyPool, str]


# -- hits ----------------------------------------------------------------------------------------------


def test_a_prompt_is_computed_once_and_its_whole_blocks_are_published(trio: Trio) -> None:
    prompt = prompt_for("cold", TOKENS)
    answer = trio.a.ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == COLD
    trio.a.settle()
    assert len(trio.pool.keys()) == TOKENS // 32
    trio.sound(prompt)


def test_the_engine_serves_its_own_blocks_itself(trio: Trio) -> None:
    prompt = prompt_for("local", TOKENS)
    trio.a.ask(prompt)
    answer = trio.a.ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == {"device_hit": 288, "partial_block": 12}
    assert answer.record is not None
    assert answer.record.loads == ()


def test_another_replica_loads_what_the_pool_holds(trio: Trio) -> None:
    prompt = prompt_for("pool", TOKENS)
    trio.published(prompt)
    answer = trio.b.ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert (answer.cached, answer.ledger) == (288, WHOLE)
    again = trio.b.ask(prompt)
    assert again.agrees_with(trio.truth(prompt))
    assert again.ledger == {"device_hit": 288, "partial_block": 12}
    trio.sound(prompt)


@pytest.mark.parametrize("tokens", [31, 32, 33, 64, 65, 320])
def test_prompts_of_any_length(trio: Trio, tokens: int) -> None:
    """The last token is always computed: it gives the first of the answer."""
    prompt = prompt_for("length", tokens)
    trio.published(prompt)
    answer = trio.b.ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.cached == (tokens - 1) // 32 * 32
    balanced(trio.b)


def test_a_prompt_that_shares_its_beginning(trio: Trio) -> None:
    prompt = prompt_for("begin", TOKENS)
    trio.published(prompt)
    other = [*prompt[:230], *prompt_for("end", 170)]
    answer = trio.b.ask(other)
    assert answer.agrees_with(trio.truth(other))
    assert answer.ledger == {"pool_hit": 224, "never_published": 160, "partial_block": 16}
    trio.sound(other)


def test_loads_begin_where_the_engines_own_blocks_end(trio: Trio) -> None:
    prompt = prompt_for("both", TOKENS)
    trio.published(prompt)
    trio.b.ask(prompt[:140], fields={"max_load_tokens": 0})
    answer = trio.b.ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == {"device_hit": 128, "pool_hit": 160, "partial_block": 12}
    trio.sound(prompt)


def test_host_memory_is_a_tier_of_its_own(replica: Make, truth: Truth) -> None:
    prompt = prompt_for("host", TOKENS)
    one = replica({"host_memory": "32MiB"})
    one.ask(prompt)
    one.forget()
    answer = one.ask(prompt)
    assert answer.agrees_with(truth(prompt))
    assert answer.ledger == {"host_hit": 288, "partial_block": 12}
    one.settle()
    balanced(one)


def test_host_memory_stands_before_the_pool(replica: Make, truth: Truth, pool_url: Own) -> None:
    prompt = prompt_for("tiers", TOKENS)
    terms = {"pool": pool_url[1], "host_memory": "32MiB"}
    a, b = replica(terms), replica(terms)
    a.ask(prompt)
    a.settle()
    assert b.ask(prompt).ledger == WHOLE
    a.forget()
    answer = a.ask(prompt)
    assert answer.agrees_with(truth(prompt))
    assert answer.ledger == {"host_hit": 288, "partial_block": 12}


def test_a_directory_is_a_pool(replica: Make, truth: Truth, tmp_path: Path) -> None:
    prompt = prompt_for("files", TOKENS)
    a, b = (replica({"pool": f"files://{tmp_path}/pool"}) for _ in range(2))
    a.ask(prompt)
    a.settle()
    answer = b.ask(prompt)
    assert answer.agrees_with(truth(prompt))
    assert answer.ledger == WHOLE


def test_many_requests_at_once(trio: Trio) -> None:
    shared = prompt_for("many", 160)
    prompts = [[*shared, *prompt_for("many", 40 + 32 * i)] for i in range(6)]
    for prompt in prompts[:4]:
        trio.a.ask(prompt)
    trio.a.settle()
    answers = trio.b.ask_all([(prompt, {}) for prompt in (*prompts, *prompts[:2])])
    for prompt, answer in zip((*prompts, *prompts[:2]), answers, strict=True):
        assert answer.agrees_with(trio.truth(prompt))
    trio.sound(*prompts)


# -- who may share --------------------------------------------------------------------------------------


def test_a_producer_publishes_and_never_loads(replica: Make, trio: Trio) -> None:
    prompt, other = prompt_for("producer", TOKENS), prompt_for("producer", TOKENS)
    trio.published(prompt)
    producer = replica({"pool": trio.url}, role="kv_producer")
    assert producer.ask(prompt).ledger == {"declined": 288, "partial_block": 12}
    producer.ask(other)
    producer.settle()
    assert trio.b.ask(other).ledger == WHOLE
    trio.sound(prompt, other)


def test_a_consumer_loads_and_never_publishes(replica: Make, trio: Trio) -> None:
    prompt, other = prompt_for("consumer", TOKENS), prompt_for("consumer", TOKENS)
    trio.published(prompt)
    consumer = replica({"pool": trio.url}, role="kv_consumer")
    assert consumer.ask(prompt).ledger == WHOLE
    consumer.ask(other)
    consumer.settle()
    assert len(trio.pool.keys()) == TOKENS // 32
    assert trio.b.ask(other).ledger == COLD


def test_a_salt_keeps_prompts_apart(trio: Trio) -> None:
    prompt = prompt_for("salt", TOKENS)
    trio.a.ask(prompt, salt="one")
    trio.a.settle()
    expected = {"one": WHOLE, "two": COLD, None: COLD}
    for salt, ledger in expected.items():
        answer = trio.b.ask(prompt, salt=salt)
        assert answer.agrees_with(trio.truth(prompt))
        assert answer.ledger == ledger


def test_tenants_share_nothing(replica: Make, trio: Trio) -> None:
    prompt = prompt_for("tenant", TOKENS)
    trio.published(prompt)
    answer = replica({"pool": trio.url, "tenant": "other", "tenant_secret": "0123456789abcdef"}).ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert "pool_hit" not in answer.ledger


def test_other_weights_share_nothing(replica: Make, trio: Trio, tmp_path: Path) -> None:
    """The engine's hashes know nothing of the model: the namespace does."""
    prompt = prompt_for("weights", TOKENS)
    trio.published(prompt)
    other = save_llama(tmp_path / "other", seed=5)
    answer = replica({"pool": trio.url}, model=other).ask(prompt)
    assert "pool_hit" not in answer.ledger
    assert answer.tokens == replica({"pool": trio.url}, model=other).ask(prompt).tokens


def test_adapters_share_nothing_with_each_other_or_with_the_model(
    replica: Make, model: Path, tmp_path: Path, pool_url: Own
) -> None:
    from vllm.lora.request import LoRARequest

    loras = [LoRARequest(f"lora-{i}", i, str(save_lora(tmp_path / f"lora-{i}", seed=i))) for i in (1, 2)]
    kinds = [None, *loras]
    prompt = prompt_for("lora", TOKENS)
    lora_terms = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    plain = Replica(model, None, enable_prefix_caching=False, **lora_terms)
    right = [plain.ask(prompt, lora=kind) for kind in kinds]
    plain.close()
    assert len({answer.tokens for answer in right}) == 3
    a, b = (replica({"pool": pool_url[1]}, **lora_terms) for _ in range(2))
    for kind, expected in zip(kinds, right, strict=True):
        answer = a.ask(prompt, lora=kind)
        assert answer.agrees_with(expected)
        assert answer.ledger == COLD
        a.settle()
    for kind, expected in zip(kinds, right, strict=True):
        answer = b.ask(prompt, lora=kind)
        assert answer.agrees_with(expected)
        assert answer.ledger == WHOLE
    b.settle()
    balanced(b)


# -- what a request may say ----------------------------------------------------------------------------


def test_a_request_may_ask_not_to_load(trio: Trio) -> None:
    prompt = prompt_for("never", TOKENS)
    trio.published(prompt)
    answer = trio.b.ask(prompt, fields={"max_load_tokens": 0})
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == {"declined": 288, "partial_block": 12}


def test_a_request_may_ask_to_load_less(trio: Trio) -> None:
    prompt = prompt_for("less", TOKENS)
    trio.published(prompt)
    answer = trio.b.ask(prompt, fields={"max_load_tokens": 100})
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == {"pool_hit": 96, "declined": 192, "partial_block": 12}
    trio.sound(prompt)


def test_a_private_class_of_data_is_not_published(trio: Trio) -> None:
    prompt = prompt_for("private", TOKENS)
    trio.a.ask(prompt, fields={"data_class": "medical"})
    trio.a.settle()
    assert len(trio.pool.keys()) == 0


def test_what_comes_behind_a_boundary_is_not_published(replica: Make, trio: Trio) -> None:
    prompt = prompt_for("boundary", TOKENS)
    careful = replica({"pool": trio.url, "publish": "declared"})
    careful.ask(prompt, fields={"boundary_tokens": 100})
    careful.settle()
    assert trio.b.ask(prompt).ledger == {"pool_hit": 96, "never_published": 192, "partial_block": 12}


def test_a_request_with_fields_that_make_no_sense_is_served_without_the_cache(trio: Trio) -> None:
    prompt = prompt_for("nonsense", TOKENS)
    trio.published(prompt)
    answer = trio.b.ask(prompt, fields={"max_load": 3})
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.cached == 0
    assert answer.record is not None
    assert any("did you mean 'max_load_tokens'" in note for note in answer.record.notes), answer.record
    trio.sound(prompt)


def test_a_class_of_data_that_may_be_shared_is_shared_by_itself(replica: Make, pool_url: Own) -> None:
    prompt = prompt_for("public", TOKENS)
    one = replica({"pool": pool_url[1], "shareable_data_classes": ["public"]})
    for ledger in (COLD, WHOLE):
        assert one.ask(prompt, fields={"data_class": "public"}).ledger == ledger
        one.forget()
    assert "pool_hit" not in one.ask(prompt).ledger


def test_vllms_own_limit_of_a_request_is_kept(trio: Trio) -> None:
    prompt = prompt_for("own limit", TOKENS)
    trio.published(prompt)
    answer = trio.b.ask(prompt, transfer={"max_load_tokens": 0})
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == {"declined": 288, "partial_block": 12}


def test_the_gate_sees_the_engine_as_it_is(trio: Trio) -> None:
    """Running decodes, the queue, free blocks and the prefill that was learned: of this moment."""
    prompt = prompt_for("facts", TOKENS)
    trio.published(prompt)
    trio.b.ask(prompt_for("taught", TOKENS), fields={"max_load_tokens": 0})
    decoding = trio.b.send(prompt_for("decoding", 100), answer_tokens=200)
    step_until(trio.b, lambda: any(r.num_output_tokens > 1 for r in trio.b.scheduler.running))
    free = trio.b.pool.get_num_free_blocks()
    record = trio.b.ask(prompt).record
    trio.b.abort(decoding)
    assert record is not None
    assert record.facts is not None
    live = record.facts.live
    assert live.running_requests == 1
    assert live.prefill_observations >= 1
    assert abs(live.free_blocks - free) <= 10


def test_tiers_are_asked_and_read_beside_the_engines_thread(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_for("threads", TOKENS)
    threads: dict[str, set[str]] = {}

    def watched(name: str) -> None:
        inner = getattr(trio.pool, name)

        def call(*args: object, **kwargs: object) -> object:
            threads.setdefault(name, set()).add(threading.current_thread().name)
            return inner(*args, **kwargs)

        monkeypatch.setattr(trio.pool, name, call)

    for name in ("find", "get_telling", "put"):
        watched(name)
    trio.published(prompt)
    assert trio.b.ask(prompt).ledger == WHOLE
    assert threads.keys() == {"find", "get_telling", "put"}
    assert threading.current_thread().name not in set().union(*threads.values())


def test_modes_follow_each_other_while_the_engine_runs(trio: Trio) -> None:
    prompt = prompt_for("modes", TOKENS)
    trio.published(prompt)
    controls = trio.b.connector._scheduler.controls
    expected = {
        "shadow": "declined",
        "on": "pool_hit",
        "canary": "declined",
        "off": "",
        "on again": "pool_hit",
    }
    cache = trio.b.connector._scheduler._ferry._cache
    share, cache.settings = cache.settings, dataclasses.replace(cache.settings, canary_share=0.0)
    for mode, outcome in expected.items():
        controls.change({"gate.mode": mode.split()[0]})
        trio.b.forget()
        answer = trio.b.ask(prompt)
        assert answer.agrees_with(trio.truth(prompt))
        assert answer.record is not None
        assert answer.record.mode == mode.split()[0]
        assert answer.ledger.get(outcome or "pool_hit", 0) == (288 if outcome else 0), mode
    cache.settings = share


def test_a_holdout_never_loads_and_is_marked(trio: Trio) -> None:
    prompt = prompt_for("holdout", TOKENS)
    trio.published(prompt)
    cache = trio.b.connector._scheduler._ferry._cache
    usual, cache.settings = cache.settings, dataclasses.replace(cache.settings, holdout_share=1.0)
    answer = trio.b.ask(prompt)
    cache.settings = usual
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == {"declined": 288, "partial_block": 12}
    assert answer.record is not None
    assert answer.record.facts is not None
    assert answer.record.facts.arm == "holdout"


def test_after_a_reset_nothing_that_was_stored_before_is_read(trio: Trio) -> None:
    """vLLM resets the connector when weights have changed."""
    prompt = prompt_for("reset", TOKENS)
    trio.published(prompt)
    assert trio.b.ask(prompt).ledger == WHOLE
    trio.b.forget()
    assert trio.b.connector.reset_cache()
    answer = trio.b.ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == COLD
    trio.b.settle()
    assert trio.c.ask(prompt).ledger == WHOLE
    revive(trio.b)


def test_shadow_mode_decides_and_moves_nothing(replica: Make, trio: Trio) -> None:
    prompt = prompt_for("shadow", TOKENS)
    trio.published(prompt)
    gate = {**SETTINGS["gate"], "mode": "shadow"}
    answer = replica({"pool": trio.url, "gate": gate}).ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == {"declined": 288, "partial_block": 12}


# -- starts and stops -----------------------------------------------------------------------------------


def test_a_restart_finds_the_pool_warm(replica: Make, trio: Trio) -> None:
    prompt = prompt_for("restart", TOKENS)
    first = replica({"pool": trio.url})
    first.ask(prompt)
    first.settle()
    first.close()
    answer = replica({"pool": trio.url}).ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == WHOLE


def test_a_stop_in_the_middle_of_a_publication_leaves_whole_blocks(replica: Make, trio: Trio) -> None:
    prompt = prompt_for("stopped", TOKENS)
    one = replica({"pool": trio.url, "timeouts": {**SETTINGS["timeouts"], "lease": "200ms"}})
    trio.pool.put_seconds = 0.3
    one.ask(prompt)
    one.close()
    trio.pool.put_seconds = 0.0
    time.sleep(0.6)
    answer = trio.b.ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    trio.sound(prompt)


def test_an_upgrade_of_vllm_keeps_the_pool_warm(
    replica: Make, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version is told to the other replicas, and is no part of a block's name."""
    import vllm

    prompt = prompt_for("upgrade", TOKENS)
    trio.published(prompt)
    monkeypatch.setattr(vllm, "__version__", "99.0.0")
    newer = replica({"pool": trio.url})
    answer = newer.ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert answer.ledger == WHOLE


def test_a_pool_that_is_not_there_is_no_reason_to_stop(replica: Make, truth: Truth) -> None:
    prompt = prompt_for("nobody", TOKENS)
    alone = replica({"pool": "valkey://127.0.0.1:9/0", "strict": True, "timeouts": {"connect": "100ms"}})
    answer = alone.ask(prompt)
    assert answer.agrees_with(truth(prompt))
    assert not alone.connector.why_off
    assert answer.record is not None
    assert answer.record.path == "fallback"
    alone.settle()
    balanced(alone)


UNSAFE = {
    "a failed load fails its request": ({}, {"policy": "fail"}, '"kv_load_failure_policy": "recompute"'),
    "hashes of one process": ({}, {"prefix_caching_hash_algo": "sha256"}, "sha256_cbor"),
    "no prefix cache": ({}, {"enable_prefix_caching": False}, "--enable-prefix-caching"),
    "blocks of another size": ({"block_tokens": 64}, {}, "leave block_tokens out"),
    "a codec": ({"codec": "fp8"}, {}, '"codec": "raw"'),
    "a tenant that anybody could be": ({"tenant": "other"}, {}, "set tenant_secret"),
}


@pytest.mark.parametrize(("settings", "terms", "write"), UNSAFE.values(), ids=UNSAFE)
def test_what_is_not_safe_turns_it_off_and_says_what_to_write(
    replica: Make,
    trio: Trio,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
    terms: dict[str, object],
    write: str,
) -> None:
    prompt = prompt_for("unsafe", TOKENS)
    trio.published(prompt)
    said: list[str] = []
    listener = logging.Handler()
    monkeypatch.setattr(listener, "emit", lambda record: said.append(record.getMessage()))
    logging.getLogger("vllm.kvferry").addHandler(listener)
    try:
        off = replica({"pool": trio.url, **settings}, **terms)
    finally:
        logging.getLogger("vllm.kvferry").removeHandler(listener)
    assert write in off.connector.why_off
    assert any(write in text for text in said), "it is not in the log"
    text = off.connector._metrics.render().decode()
    assert 'kvferry_mode{mode="off"} 1.0' in text
    assert 'kvferry_failures_total{part="cache"} 1.0' in text
    answer = off.ask(prompt)
    assert answer.agrees_with(trio.truth(prompt))
    assert (answer.cached, answer.record) == (0, None)


@pytest.mark.parametrize(("settings", "terms", "write"), UNSAFE.values(), ids=UNSAFE)
def test_strict_refuses_to_start_instead(
    replica: Make, trio: Trio, settings: dict[str, object], terms: dict[str, object], write: str
) -> None:
    with pytest.raises(EngineError, match="strict is set"):
        replica({"pool": trio.url, "strict": True, **settings}, **terms)


def test_a_setting_that_cannot_be_read_stops_the_start(replica: Make) -> None:
    with pytest.raises(EngineError, match="did you mean"):
        replica({"pol": "memory://?capacity=1GiB"})


def test_a_running_engine_is_switched_over_http(replica: Make, trio: Trio) -> None:
    import json
    import socket
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    prompt = prompt_for("switched", TOKENS)
    trio.published(prompt)
    one = replica({"pool": trio.url, "control": address})

    def switch(**changes: object) -> dict[str, object]:
        body = json.dumps({name.replace("__", "."): value for name, value in changes.items()}).encode()
        with urllib.request.urlopen(f"http://{address}/kvferry/settings", data=body, timeout=10) as answer:
            found: dict[str, object] = json.loads(answer.read())
        return found

    assert switch(gate__mode="off")["gate.mode"] == "off"
    assert "pool_hit" not in one.ask(prompt).ledger
    one.forget()
    assert switch(gate__mode="on", pool__bytes_per_second=1e9)["gate.mode"] == "on"
    assert one.ask(prompt).ledger["pool_hit"] > 0
    assert one.connector._scheduler._ferry.link_rate == 1e9


def test_what_an_engine_records_is_a_run_like_any_other(
    trio: Trio, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvferry.cli.main import main

    prompt = prompt_for("reported", TOKENS)
    trio.published(prompt)
    record = trio.b.ask(prompt).record
    assert record is not None
    assert trio.b._records is not None
    folder = str(trio.b._records.parent)
    assert main(["why", folder, record.request_id]) == 0
    assert "recompute" in capsys.readouterr().out


def test_a_prompt_of_embeddings_goes_without_the_cache() -> None:
    from kvferry.engines.vllm.connector import FerryConnector

    said: list[str] = []
    scheduler: Any = SimpleNamespace(arrive=lambda *_, barred: said.append(barred))
    connector = object.__new__(FerryConnector)
    request = SimpleNamespace(kv_transfer_params=None, prompt_embeds=object(), lora_request=None)
    connector._arrive(scheduler, request)
    assert said == ["its prompt has embeddings"]


def test_metrics_travel_to_the_page_of_the_serving_process(replica: Make, trio: Trio) -> None:
    """The engine's process renders them, another shows them: here both are this one."""
    import time

    from prometheus_client import Counter, Gauge, Histogram

    from kvferry.engines.vllm.connector import FerryConnector

    one = replica({"pool": trio.url})
    prompt = prompt_for("metrics", TOKENS)
    one.ask(prompt)
    end = time.monotonic() + 10
    stats = None
    while stats is None and time.monotonic() < end:
        stats = one.connector.get_kv_connector_stats()
        time.sleep(0.05)
    assert stats is not None
    kinds = {kind: kind for kind in (Counter, Gauge, Histogram)}
    page = FerryConnector.build_prom_metrics(one.engine.vllm_config, kinds, [], {})
    page.observe(stats.data, 0)
    samples = {
        (sample.name, sample.labels.get("outcome"), sample.labels["engine"]): sample.value
        for family in page.collect()
        for sample in family.samples
    }
    assert samples["kvferry_ledger_tokens_total", "never_published", "0"] == 288
