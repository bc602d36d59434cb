"""A gate with everything around it: built from the settings and the engine's, recording what it settles.

Owns the engine's figures (block size, bytes of a token, chunk), the line in decisions.jsonl, the metrics, the
port for switches, and the profile that outlives the process. Reads vLLM's configuration objects, and imports
nothing of vLLM.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ....cache.account import Account
from ....clock import Clock, MonotonicClock
from ....config import Config, resolve_secret
from ....cost.profile import Profile, decode_profile, encode_profile
from ....errors import ConfigError, KvferryError
from ....keys.pool import PoolKeys, secret_of
from ....runs.decisions import DecisionRecord
from ....runs.lines import LineWriter
from ....store.tier import Kind
from ....telemetry.accounts import record_account
from ....telemetry.metrics import Metrics, open_metrics
from ....telemetry.names import Mode, Part
from ...records import record_of
from ..runfolder import begin_run
from ..switched import open_switches
from .gate import ForeignGate
from .passing import Passing
from .settings import KEY, KINDS, cache_settings
from .switches import Switches

__all__ = ["Attended", "attend", "bytes_per_token", "metrics_without_a_gate"]

_log = logging.getLogger(__name__)


class Attended:
    """A gate, its records and its profile."""

    def __init__(
        self,
        config: Config,
        *,
        connector: str,
        kind: Kind,
        model: str,
        block_tokens: int,
        bytes_per_token: int,
        chunk_tokens: int,
        clock: Clock,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        settings = cache_settings(config, block_tokens=block_tokens, bytes_per_token=bytes_per_token)
        self.replica = config.replica or f"{socket.gethostname()}-{os.getpid()}"
        self.gate = ForeignGate(
            settings,
            kind=kind,
            chunk_tokens=chunk_tokens,
            data_class=config.data_class,
            clock=clock,
            on_settled=self._settled,
        )
        self.metrics = open_metrics(required=False)
        self.switches = Switches(self.gate, self.metrics)
        self.told: Callable[[], None] = lambda: None
        """Called when a request has been counted."""
        self._closing = contextlib.ExitStack()
        self._config = config
        self._leg = connector
        self._blocks_of = hashlib.blake2b(f"gated {connector} {model}".encode(), digest_size=32).digest()
        self._keys = PoolKeys(self._blocks_of, secret_of(config.tenant, resolve_secret(config)))
        self._start_from_profile()
        self._lines: LineWriter | None = None
        if config.record is not None:
            folder = Path(config.record)
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"record: cannot make the folder {folder}: {error.strerror}") from error
            self._lines = LineWriter(folder / "decisions.jsonl")
            begin_run(config, given or {})

    def close(self) -> None:
        """Save the profile and close what is open. Calling it twice is fine."""
        self.gate.close()
        self._closing.close()
        if self._lines is not None:
            self._lines.close()
            self._lines = None
        self._save_profile()

    def serve(self) -> None:
        """Open the port for switches, where the settings name one. A port that is taken is said, no more."""
        self._closing.enter_context(open_switches(self._config, self.switches))

    # -- records ----------------------------------------------------------------------------------------

    def record(self, passing: Passing, account: Account) -> DecisionRecord:
        """The record of a settled request, of the same form as that of any engine."""
        settings = self.gate.settings
        return record_of(
            msgspec.structs.replace(account, keys=self._keys_of(passing)),
            replica=self.replica,
            arrival_wall_seconds=passing.arrived_wall,
            data_class=passing.books.data_class,
            block_tokens=settings.block_tokens,
            bytes_per_token=settings.bytes_per_token,
            kinds=KINDS,
            fields=passing.fields,
            ttft_seconds=account.ready_seconds,
        )

    def _settled(self, passing: Passing, account: Account) -> None:
        record_account(self.metrics, account, KINDS)
        record = self.record(passing, account)
        self.switches.add(record)
        self.told()
        if self._lines is None:
            return
        try:
            self._lines.append(record)
        except KvferryError as error:
            # A full disk is no reason to stop deciding.
            _log.error("no more records are kept: %s", error)
            self._lines.close()
            self._lines = None

    def _keys_of(self, passing: Passing) -> Sequence[bytes]:
        """One key for each full block of the prompt; none where the engine hashes by other sizes."""
        blocks = passing.books.tokens // self.gate.settings.block_tokens
        hashes = list(passing.engine.block_hashes)[:blocks]
        if len(hashes) != blocks:
            return ()
        # Not every hash function of vLLM gives 32 bytes.
        even = [h if len(h) == 32 else hashlib.blake2b(h, digest_size=32).digest() for h in hashes]
        return self._keys.keys(even)

    # -- the profile ------------------------------------------------------------------------------------

    def _start_from_profile(self) -> None:
        path = self._config.profile
        if path is None or not Path(path).exists():
            return
        profile = decode_profile(Path(path).read_bytes(), path)
        estimates = self.gate.estimates
        estimates.prefill = profile.prefill_model()
        estimates.interference = profile.interference_model()
        estimates.legs = [profile.leg_model(self._leg)]

    def _save_profile(self) -> None:
        if self._config.profile is None:
            return
        estimates = self.gate.estimates
        profile = Profile.of(
            host=self.replica,
            namespace=self._blocks_of.hex(),
            prefill=estimates.prefill,
            legs={self._leg: estimates.legs[0]},
            interference=estimates.interference,
        )
        path = Path(self._config.profile)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{os.getpid()}.part")
            partial.write_bytes(encode_profile(profile))
            partial.replace(path)
        except OSError as error:
            _log.warning("profile: cannot write %s: %s", path, error.strerror)


def attend(
    config: Config,
    vllm_config: Any,
    kv_cache_config: Any,
    *,
    connector: str,
    kind: Kind,
    clock: Clock | None = None,
) -> Attended:
    """The gate for one engine. Raises `ConfigError`, and `KvferryError` where a record cannot be written."""
    if vllm_config.kv_transfer_config.kv_load_failure_policy == "fail":
        _log.warning(
            'kv_load_failure_policy is "fail": a load of %s that fails ends its request with an error; '
            'write "kv_load_failure_policy": "recompute" into --kv-transfer-config to compute it instead',
            connector,
        )
    attended = Attended(
        config,
        connector=connector,
        kind=kind,
        model=str(vllm_config.model_config.model),
        block_tokens=vllm_config.cache_config.block_size,
        bytes_per_token=bytes_per_token(kv_cache_config, vllm_config.parallel_config.tensor_parallel_size),
        chunk_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        clock=clock or MonotonicClock(),
        given=vllm_config.kv_transfer_config.kv_connector_extra_config.get(KEY),
    )
    attended.serve()
    _log.info("kvferry gates %s: mode %s, policy %s", connector, config.gate.mode, config.gate.policy)
    return attended


def metrics_without_a_gate() -> Metrics:
    """What is to be seen of a gate that could not be had."""
    metrics = open_metrics(required=False)
    metrics.failed(Part.CACHE)
    metrics.mode(Mode.OFF)
    return metrics


def bytes_per_token(kv_cache_config: Any, ranks: int) -> int:
    """What one token of all groups weighs on all ranks together.

    An upper bound where groups hold a window or a state: a load of many tokens moves less of those.
    """
    total = 0.0
    for group in kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        # A spec of mixed layers already adds up over its layers.
        layers = 1 if hasattr(spec, "kv_cache_specs") else len(group.layer_names)
        total += layers * spec.page_size_bytes / spec.block_size
    held_apart = max(1, ranks // max(1, getattr(kv_cache_config, "kv_tp_replicas", 1)))
    return max(1, round(total * held_apart))
