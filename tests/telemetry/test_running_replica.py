"""A real replica over three tiers, driven until every metric has had its event, and scraped."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvferry.store.valkey import EmbeddedServer
from kvferry.telemetry.names import METRICS, Metric

from ..e2e.conftest import SETTINGS, new_prompt
from ..e2e.model import save_tiny_llama
from ..e2e.pools import ValkeyPool
from ..e2e.served import Recipe, Served, eventually, served

Samples = dict[str, dict[tuple[str, ...], float]]


def scrape(replica: Served) -> Samples:
    """Values by sample name and by the values of its labels, sorted by label."""
    connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=30.0)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Samples, Samples]]:
    """While all is well, and after the pool's server was killed."""
    folder = tmp_path_factory.mktemp("watched")
    model = save_tiny_llama(folder / "tiny", seed=7)
    # Room for two dozen blocks: the server must refuse some.
    with EmbeddedServer(max_memory_bytes=4 << 20, policy="noeviction") as server:
        pool = ValkeyPool(server.url, server.port)
        settings = {
            **SETTINGS,
            "pool": server.url,
            "host_memory": "100KiB",
            "disk": f"files://{folder}/disk?capacity=200KiB",
            "publish": "all",
            "gate.holdout_share": "0.5",
            "gate.auto_off": "false",
        }
        with served(folder, {"A": Recipe(model, settings)}) as replicas:
            replica = replicas["A"]
            first = new_prompt()
            record = replica.ask(first).record
            pool.wait_for(record, 10)
            for number in range(200):
                replica.ask(new_prompt(), answer_tokens=2)
                replica.forget()
                replica.ask(first, answer_tokens=2)
                if number % 10 == 9 and "kvferry_saving_ratio" in scrape(replica):
                    break
            pool.say(b"CONFIG", b"SET", b"maxmemory", b"%d" % (64 << 20))
            for key in filter(None, pool.keys(record)):
                pool.flip(key)
            for _ in eventually("a request trips over a corrupt block"):
                # Nearer tiers must have dropped it first.
                replica.ask(new_prompt(), answer_tokens=2)
                replica.forget()
                if replica.ask(first, answer_tokens=2).path == "fallback":
                    break
            well = scrape(replica)
            server.kill()
            replica.ask(new_prompt())
            yield well, scrape(replica)


def samples_of(metric: Metric, scraped: Samples) -> dict[tuple[str, ...], float]:
    return scraped.get(f"{metric.name}_count" if metric.kind == "histogram" else metric.name, {})


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_emitted(metric: Metric, scraped: tuple[Samples, Samples]) -> None:
    found = [*samples_of(metric, scraped[0]).values(), *samples_of(metric, scraped[1]).values()]
    assert found
    if metric.kind != "gauge":
        assert any(value > 0 for value in found)


def test_a_pool_that_answers_is_up(scraped: tuple[Samples, Samples]) -> None:
    assert scraped[0]["kvferry_tier_up"] == {("host",): 1, ("disk",): 1, ("pool",): 1}


def test_a_pool_that_is_gone_is_down_and_its_use_unknown(scraped: tuple[Samples, Samples]) -> None:
    assert scraped[1]["kvferry_tier_up"] == {("host",): 1, ("disk",): 1, ("pool",): 0}
    assert scraped[1]["kvferry_tier_backoff_seconds"]["pool",] > 0
    assert ("pool",) not in scraped[1]["kvferry_tier_used_bytes"]
