"""The list of names keeps its own rules."""

from __future__ import annotations

import re

import pytest

from kvferry.telemetry.names import LABEL_VALUES, METRICS, SPANS, Metric

by_name = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)


def test_no_name_is_given_twice() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@by_name
def test_a_name_has_the_prefix_and_plain_letters(metric: Metric) -> None:
    assert re.fullmatch(r"kvferry_[a-z]+(_[a-z0-9]+)*", metric.name)


@by_name
def test_counters_and_nothing_else_end_in_total(metric: Metric) -> None:
    assert metric.name.endswith("_total") == (metric.kind == "counter")


@by_name
def test_no_counter_is_a_rate(metric: Metric) -> None:
    assert not re.search(r"rate|percent|_per_", metric.name)


@by_name
def test_histograms_say_their_unit(metric: Metric) -> None:
    assert metric.kind != "histogram" or metric.name.endswith(("_seconds", "_bytes"))


@by_name
def test_histograms_and_nothing_else_have_buckets(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.kind == "histogram")


@by_name
def test_buckets_rise(metric: Metric) -> None:
    assert list(metric.buckets) == sorted(set(metric.buckets))


@by_name
def test_labels_are_from_the_list(metric: Metric) -> None:
    assert set(metric.labels) <= set(LABEL_VALUES)


@pytest.mark.parametrize("label", LABEL_VALUES)
def test_a_label_has_few_values(label: str) -> None:
    assert len(LABEL_VALUES[label]) <= 32


def test_spans_have_the_prefix() -> None:
    assert all(span.startswith("kvferry.") for span in SPANS)
