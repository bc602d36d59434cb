"""Which tracer provider a command of kvferry uses."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvferry.cli.main import main
from kvferry.errors import ConfigError, MissingExtra
from kvferry.telemetry import exporting
from kvferry.telemetry.exporting import send_spans


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What has been set; the last one is in force."""
    found: list[Any] = [trace.ProxyTracerProvider()]
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: found[-1])
    monkeypatch.setattr(trace, "set_tracer_provider", found.append)
    return found


def offer(monkeypatch: pytest.MonkeyPatch, **exporters: Any) -> None:
    points = [SimpleNamespace(name=name, load=lambda made=made: made) for name, made in exporters.items()]
    monkeypatch.setattr(exporting, "entry_points", lambda group: points)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch, providers: list[Any]) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    offer(monkeypatch, console=None, otlp_proto_http=lambda: exporter)
    yield exporter
    for provider in providers[1:]:
        provider.shutdown()


def test_the_installed_exporter_gets_the_spans(exporter: InMemorySpanExporter, providers: list[Any]) -> None:
    send_spans()
    provider = providers[-1]
    provider.get_tracer("test").start_span("kvferry.load").end()
    provider.force_flush()
    assert [span.name for span in exporter.get_finished_spans()] == ["kvferry.load"]


@pytest.mark.usefixtures("exporter")
def test_a_provider_that_is_set_is_kept(providers: list[Any]) -> None:
    own = TracerProvider(shutdown_on_exit=False)
    providers.append(own)
    send_spans()
    assert providers[-1] is own


@pytest.mark.usefixtures("providers")
def test_without_an_exporter_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, console=None)
    with pytest.raises(ConfigError, match="pip install opentelemetry-exporter-otlp-proto-http"):
        send_spans()


def test_without_the_sdk_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(exporting.importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match=r"pip install .*\[telemetry\]"):
        send_spans()


@pytest.mark.usefixtures("providers")
def test_a_replica_with_spans_and_no_exporter_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(monkeypatch)
    assert main(["replica", "--set", "spans=true"]) == 2
    assert "spans: no exporter is installed" in capsys.readouterr().err
