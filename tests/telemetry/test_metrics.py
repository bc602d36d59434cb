"""Recorders: every call reaches the family it names, and the silent one takes the same calls."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvferry.errors import MissingExtra
from kvferry.gate.facts import Arm, Reason
from kvferry.gate.trial import Saving
from kvferry.outcomes import Outcome
from kvferry.store.tier import Kind
from kvferry.telemetry import Metrics, open_metrics
from kvferry.telemetry.names import METRICS, Choice, Mode, Part, Path, StepKind
from kvferry.telemetry.prometheus import PrometheusMetrics

Call = Callable[[Metrics], None]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

CALLS: dict[str, Call] = {
    "decided": lambda m: m.decided(Choice.LOAD, Reason.PAYS, Arm.ON),
    "booked": lambda m: m.booked({Outcome.POOL_HIT: 96, Outcome.PARTIAL_BLOCK: 4}),
    "ready": lambda m: m.ready(Path.POOL_HIT, 0.25),
    "lost": lambda m: m.lost(Choice.RECOMPUTE, 0.5),
    "saved": lambda m: m.saved(1.5),
    "saving": lambda m: m.saving(Saving(share=0.3, low=0.1, high=0.5, treated=40, held_out=30)),
    "fell_back": lambda m: m.fell_back(Outcome.LATE),
    "failed": lambda m: m.failed(Part.STORE),
    "probed": lambda m: m.probed(Kind.POOL, 0.001, blocks=64, found=60),
    "loaded": lambda m: m.loaded(Kind.POOL, 0.05, 1 << 20),
    "stored": lambda m: m.stored(Kind.HOST, 0.02, 1 << 21),
    "refused": lambda m: m.refused(Kind.POOL, 7),
    "step": lambda m: m.step(StepKind.PREFILL, 512, 0.5),
    "never_read": lambda m: m.never_read(Kind.DISK, 4096),
    "tier_state": lambda m: m.tier_state(Kind.POOL, up=False, backoff_seconds=0.75),
    "tier_usage": lambda m: m.tier_usage(Kind.POOL, capacity_bytes=1000, used_bytes=10),
    "in_flight": lambda m: m.in_flight(loads=3, load_cap=4, stores=2),
    "mode": lambda m: m.mode(Mode.CANARY),
}


def samples(metrics: Metrics) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("call", "name", "labels", "value"),
    [
        ("decided", "kvferry_decisions_total", {"choice": "load", "reason": "pays", "arm": "on"}, 1),
        ("booked", "kvferry_ledger_tokens_total", {"outcome": "pool_hit"}, 96),
        ("booked", "kvferry_prompt_tokens_total", {}, 100),
        ("ready", "kvferry_ready_seconds_sum", {"path": "pool_hit"}, 0.25),
        ("lost", "kvferry_lost_seconds_total", {"choice": "recompute"}, 0.5),
        ("saved", "kvferry_saved_seconds_total", {}, 1.5),
        ("saving", "kvferry_saving_ratio", {"bound": "low"}, 0.1),
        ("fell_back", "kvferry_fallbacks_total", {"outcome": "late"}, 1),
        ("failed", "kvferry_failures_total", {"part": "store"}, 1),
        ("probed", "kvferry_probe_seconds_count", {"tier": "pool"}, 1),
        ("probed", "kvferry_probed_blocks_total", {"tier": "pool"}, 64),
        ("probed", "kvferry_found_blocks_total", {"tier": "pool"}, 60),
        ("loaded", "kvferry_load_seconds_sum", {"tier": "pool"}, 0.05),
        ("loaded", "kvferry_load_bytes_sum", {"tier": "pool"}, 1 << 20),
        ("loaded", "kvferry_read_bytes_total", {"tier": "pool"}, 1 << 20),
        ("stored", "kvferry_store_seconds_sum", {"tier": "host"}, 0.02),
        ("stored", "kvferry_store_bytes_sum", {"tier": "host"}, 1 << 21),
        ("stored", "kvferry_published_bytes_total", {"tier": "host"}, 1 << 21),
        ("refused", "kvferry_refused_blocks_total", {"tier": "pool"}, 7),
        ("step", "kvferry_step_seconds_sum", {"step": "prefill"}, 0.5),
        ("step", "kvferry_computed_tokens_total", {}, 512),
        ("never_read", "kvferry_never_read_bytes_total", {"tier": "disk"}, 4096),
        ("tier_state", "kvferry_tier_up", {"tier": "pool"}, 0),
        ("tier_state", "kvferry_tier_backoff_seconds", {"tier": "pool"}, 0.75),
        ("tier_usage", "kvferry_tier_capacity_bytes", {"tier": "pool"}, 1000),
        ("tier_usage", "kvferry_tier_used_bytes", {"tier": "pool"}, 10),
        ("in_flight", "kvferry_loads_in_flight", {}, 3),
        ("in_flight", "kvferry_load_cap", {}, 4),
        ("in_flight", "kvferry_stores_in_flight", {}, 2),
        ("mode", "kvferry_mode", {"mode": "canary"}, 1),
        ("mode", "kvferry_mode", {"mode": "on"}, 0),
    ],
)
def test_a_call_reaches_its_family(call: str, name: str, labels: dict[str, str], value: float) -> None:
    metrics = PrometheusMetrics()
    CALLS[call](metrics)
    assert samples(metrics)[name, frozenset(labels.items())] == value


def test_every_call_is_tested() -> None:
    methods = {name for name, _ in inspect.getmembers(Metrics, inspect.isfunction)}
    assert set(CALLS) == methods - {"render"}


@pytest.mark.parametrize("call", CALLS)
def test_the_silent_recorder_takes_every_call(call: str) -> None:
    metrics = Metrics()
    CALLS[call](metrics)
    assert samples(metrics) == {}


def test_every_listed_metric_is_exposed_and_no_other() -> None:
    metrics = PrometheusMetrics()
    for call in CALLS.values():
        call(metrics)
    exposed = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(metrics.render().decode())
    }
    assert exposed == {metric.name for metric in METRICS}


def test_outcomes_are_exposed_before_their_first_token() -> None:
    shown = samples(PrometheusMetrics())
    assert all(
        shown["kvferry_ledger_tokens_total", frozenset({("outcome", str(outcome))})] == 0
        for outcome in Outcome
    )


def test_an_unknown_usage_is_absent() -> None:
    metrics = PrometheusMetrics()
    metrics.tier_usage(Kind.POOL, capacity_bytes=None, used_bytes=5)
    assert ("kvferry_tier_capacity_bytes", frozenset({("tier", "pool")})) not in samples(metrics)


def test_a_usage_that_is_no_longer_known_goes_away() -> None:
    metrics = PrometheusMetrics()
    metrics.tier_usage(Kind.POOL, capacity_bytes=1000, used_bytes=5)
    metrics.tier_usage(Kind.POOL, capacity_bytes=None, used_bytes=None)
    assert ("kvferry_tier_used_bytes", frozenset({("tier", "pool")})) not in samples(metrics)


def test_a_new_trial_has_said_nothing_yet() -> None:
    metrics = PrometheusMetrics()
    CALLS["saving"](metrics)
    metrics.saving(None)
    assert not [name for name, _ in samples(metrics) if name == "kvferry_saving_ratio"]


def test_decode_steps_compute_no_prompt() -> None:
    metrics = PrometheusMetrics()
    metrics.step(StepKind.DECODE, 1, 0.05)
    assert samples(metrics)["kvferry_computed_tokens_total", frozenset()] == 0


def test_two_recorders_do_not_mix() -> None:
    first, second = PrometheusMetrics(), PrometheusMetrics()
    first.saved(1.0)
    assert samples(second)["kvferry_saved_seconds_total", frozenset()] == 0


def test_metrics_open_with_the_extra() -> None:
    assert isinstance(open_metrics(required=True), PrometheusMetrics)


@pytest.fixture
def _no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> object:
        return None if name == "prometheus_client" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)


@pytest.mark.usefixtures("_no_extra")
def test_without_the_extra_required_metrics_are_an_error() -> None:
    with pytest.raises(MissingExtra, match=r"pip install .*\[telemetry\]"):
        open_metrics(required=True)


@pytest.mark.usefixtures("_no_extra")
def test_without_the_extra_metrics_may_be_silent() -> None:
    assert type(open_metrics(required=False)) is Metrics


def test_the_names_need_no_client() -> None:
    """The room imports without the extra: only `prometheus.py` names the client."""
    modules = [name for name in sys.modules if name.startswith("kvferry.telemetry.")]
    users = [name for name in modules if "Counter" in vars(sys.modules[name])]
    assert users == ["kvferry.telemetry.prometheus"]
