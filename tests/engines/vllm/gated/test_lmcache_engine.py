"""The gate in front of LMCache's MP connector and its server, where LMCache is installed.

It is not by default: its own dependencies name CUDA packages. `benchmarks/vllm_ttft.py` says what to install,
into a folder that PYTHONPATH then names.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="engines are vLLM's: pip install 'kvferry[vllm]'")

from kvferry.outcomes import Outcome
from kvferry.runs.decisions import DecisionRecord
from kvferry.runs.lines import read_lines

BLOCK = 32
STORED = 10 * BLOCK
PROMPT = [random.Random(3).randrange(512) for _ in range(STORED + 7)]
READY_SECONDS = 60.0
FOUND = find_spec("lmcache")

pytestmark = pytest.mark.skipif(
    FOUND is None, reason="LMCache is not installed: benchmarks/vllm_ttft.py says how, then set PYTHONPATH"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of an LMCache server over shared memory."""
    assert FOUND is not None
    assert FOUND.origin is not None
    beside = Path(FOUND.origin).parents[1] / "bin"
    program = shutil.which("lmcache", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        pytest.skip("lmcache can be imported, but its command is not there")
    port = free_port()
    command = [sys.executable, program, "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--http-host", "127.0.0.1", "--http-port", str(free_port())]
    command += ["--chunk-size", str(BLOCK), "--l1-size-gb", "1", "--no-l1-use-lazy", "--max-workers", "1"]
    command += ["--shm-name", f"kvferry-test-{os.getpid()}", "--eviction-policy", "LRU"]
    command += ["--supported-transfer-mode", "engine_driven", "--disable-observability"]
    log = tmp_path_factory.mktemp("lmcache") / "server.log"
    environment = {**os.environ, "LMCACHE_TRACK_USAGE": "false"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    try:
        end = time.monotonic() + READY_SECONDS
        while not listens(port):
            if process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"LMCache's server does not start: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Bench:
    def __init__(self, served: Any, answer: list[int], record: Path) -> None:
        self.served = served
        self.answer = answer
        self._record = record

    def ask(self, mode: str, policy: str) -> int:
        """Prompt tokens that were cached; the answer is the plain engine's."""
        self.served.connector.gate.change(mode=mode, policy=policy)
        end = time.monotonic() + 20
        while not self.served.llm.reset_prefix_cache():
            # What is being stored comes back with a step, and every request stores.
            assert time.monotonic() < end
            time.sleep(0.1)
            self.served.llm.llm_engine.engine_core.engine_core.step()
        tokens, cached = self.served.ask(PROMPT, reset=False)
        assert tokens == self.answer
        return int(cached)

    def last(self) -> DecisionRecord:
        record = list(read_lines(self._record / "decisions.jsonl", DecisionRecord))[-1]
        assert sum(record.ledger.values()) == len(PROMPT)
        return record


@pytest.fixture(scope="module")
def _scanned() -> Iterator[None]:
    """vLLM looks for kernels in all that any module holds, and trips over LMCache's compiled functions."""
    from vllm.triton_utils import dispatcher

    def of(value: Any) -> Any:
        found = vars(value)
        return found if isinstance(found, Mapping) else {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "vars", of, raising=False)
        yield


@pytest.fixture(scope="module")
def bench(
    engines: Any, server: int, _scanned: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    record = tmp_path_factory.mktemp("record")
    plain = engines(None).ask(PROMPT)[0]
    served = engines(
        {
            "kv_connector": "GatedLMCacheMPConnector",
            "kv_connector_module_path": "kvferry.engines.vllm.gated",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": server,
                "lmcache.mp.mq_timeout": 20,
                "kvferry": {"record": str(record), "gate": {"holdout_share": 0, "explore_share": 0}},
            },
        }
    )
    bench = Bench(served, plain, record)
    assert bench.ask("on", "always") == 0
    # LMCache says nothing of when it has stored.
    end = time.monotonic() + 20
    while bench.ask("on", "always") < STORED:
        assert time.monotonic() < end, "LMCache holds nothing of the prompt"
    return bench


def test_an_open_gate_loads(bench: Bench) -> None:
    assert bench.ask("on", "always") == STORED
    assert bench.last().ledger == {Outcome.POOL_HIT: STORED, Outcome.PARTIAL_BLOCK: 7}


def test_a_veto_computes_and_lets_go_of_what_lmcache_holds_for_it(bench: Bench) -> None:
    assert bench.ask("on", "never") == 0
    assert bench.last().ledger == {Outcome.DECLINED: STORED, Outcome.PARTIAL_BLOCK: 7}
    assert bench.ask("on", "always") == STORED


def test_shadow_loads_and_says_what_it_thinks(bench: Bench) -> None:
    assert bench.ask("shadow", "never") == STORED
    assert bench.last().notes[0].startswith("the gate only watches; it would have computed (never)")


def test_what_its_loads_took_is_learned(bench: Bench) -> None:
    seen = bench.served.connector.gate.estimates.legs[0].n
    bench.ask("on", "always")
    assert bench.served.connector.gate.estimates.legs[0].n == seen + 1
    assert len(bench.served.connector.gate.transfers) == 0
