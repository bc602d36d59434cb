"""What is read out of a server's /metrics."""

from __future__ import annotations

from kvferry.measure.vllm.exposition import counters

TEXT = """\
# HELP vllm:external_prefix_cache_hits_total External prefix cache hits.
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 64.0
vllm:external_prefix_cache_hits_created{engine="0",model_name="m"} 1.7e+09
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 100.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 0.0
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="m"} 3.5
kvferry_read_bytes_total{process="worker-0",tier="pool"} 1e+06
kvferry_read_bytes_total{process="worker-1",tier="pool"} 2e+06
kvferry_load_seconds_bucket{le="0.1",tier="pool"} 3.0
kvferry_mode{mode="on"} 1.0
kvferry_decisions_total{choice="load",reason="a \\"b\\", c"} 2.0
"""


def test_counters_of_interest_are_read() -> None:
    assert counters(TEXT)["vllm:external_prefix_cache_hits_total"] == 64.0


def test_labels_tell_series_apart() -> None:
    assert counters(TEXT)["vllm:prompt_tokens_by_source_total{source=local_compute}"] == 100.0


def test_processes_are_added_up() -> None:
    assert counters(TEXT)["kvferry_read_bytes_total{tier=pool}"] == 3e6


def test_quotes_and_commas_in_a_label_do_not_end_it() -> None:
    assert 2.0 in counters(TEXT).values()


def test_what_is_zero_or_no_counter_or_of_no_interest_is_left_out() -> None:
    assert len(counters(TEXT)) == 4
