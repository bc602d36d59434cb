"""Every member of vLLM's connector contract reaches the inner connector, and none can appear unnoticed."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the contract is vLLM's: pip install 'kvferry[vllm]'")

from kvferry.engines.vllm import gated
from kvferry.engines.vllm.gated import forwarding
from kvferry.engines.vllm.gated.connector import OWN
from kvferry.engines.vllm.stats import FerryStats
from kvferry.errors import ConfigError, EngineError

base: Any = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
factory: Any = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.factory")

# Of vLLM 0.32. A new version that adds one fails here first: look at what it means before adding it.
FUNCTIONS = {
    "bind_connector_metadata",
    "bind_gpu_block_pool",
    "bind_kv_cache_manager",
    "build_connector_meta",
    "build_connector_worker_meta",
    "clear_connector_metadata",
    "finish_forward",
    "get_block_ids_with_load_errors",
    "get_external_cache_hit_sources",
    "get_finished",
    "get_finished_count",
    "get_handshake_metadata",
    "get_kv_connector_kv_cache_events",
    "get_kv_connector_stats",
    "get_loaded_kv_cache_group_ids",
    "get_mem_pool_context",
    "get_num_new_matched_tokens",
    "get_transfer_results",
    "handle_preemptions",
    "has_connector_metadata",
    "has_pending_block_frees",
    "has_pending_push_work",
    "on_new_request",
    "register_finished_partial_tail",
    "register_kv_caches",
    "request_finished",
    "reset_cache",
    "reset_capture_state",
    "save_kv_layer",
    "set_host_xfer_buffer_ops",
    "set_xfer_handshake_metadata",
    "set_xfer_handshake_metadata_pp_aware",
    "shutdown",
    "start_load_kv",
    "take_events",
    "update_connector_output",
    "update_state_after_alloc",
    "wait_for_layer_load",
    "wait_for_save",
}
ANSWERS: dict[str, Any] = {
    "get_num_new_matched_tokens": (7, True),
    "get_kv_connector_stats": FerryStats({"told": "by the inner connector"}),
}
PROPERTIES = {"requires_kv_delivery", "role", "supports_divergent_local_hybrid_hits"}


def members(kind: type) -> set[str]:
    found = vars(base.KVConnectorBase_V1).items()
    return {name for name, member in found if isinstance(member, kind) and not name.startswith("_")}


def bare(name: str) -> Any:
    """An instance of a gated class without a gate, whose inner connector records what it hears."""
    made = object.__new__(getattr(gated, name))
    made.inner = Recorder()
    made._attended = None
    made._asynchronous = {}
    return made


class Recorder:
    def __init__(self) -> None:
        self.heard: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name in PROPERTIES:
            self.heard.append((name, (), {}))
            return f"read {name}"

        def call(*args: Any, **kwargs: Any) -> Any:
            self.heard.append((name, args, kwargs))
            return ANSWERS.get(name, f"called {name}")

        return call


def test_no_function_is_new() -> None:
    assert members(type(lambda: None)) == FUNCTIONS


def test_no_property_is_new() -> None:
    assert members(property) == PROPERTIES


def test_no_class_method_is_new() -> None:
    assert members(classmethod) == forwarding.CLASS_METHODS


def test_no_static_method_is_there() -> None:
    assert members(staticmethod) == set()


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_call_reaches_the_inner_connector(name: str) -> None:
    connector = bare("GatedExampleConnector")
    parameters = list(inspect.signature(vars(base.KVConnectorBase_V1)[name]).parameters.values())[1:]
    request = SimpleNamespace(request_id="r", status=SimpleNamespace(name="FINISHED_STOPPED"))
    given = [request if p.name == "request" else p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    answer = getattr(connector, name)(*given)
    assert connector.inner.heard == [(name, tuple(given), {})]
    if name == "get_kv_connector_stats":
        answer = answer.data["inner"]
    silent = OWN & {
        "bind_connector_metadata",
        "clear_connector_metadata",
        "on_new_request",
        "update_connector_output",
        "update_state_after_alloc",
    }
    assert answer == (None if name in silent else ANSWERS.get(name, f"called {name}"))


@pytest.mark.parametrize("name", sorted(PROPERTIES))
def test_a_property_is_the_inner_connector_s(name: str) -> None:
    assert getattr(bare("GatedExampleConnector"), name) == f"read {name}"


def test_metadata_is_bound_on_both() -> None:
    connector = bare("GatedExampleConnector")
    connector.bind_connector_metadata("meta")
    assert connector._get_connector_metadata() == "meta"


def test_what_lies_beyond_the_contract_stays_in_reach() -> None:
    assert bare("GatedExampleConnector").sub_connectors() == "called sub_connectors"


def test_a_class_method_of_a_new_version_is_refused() -> None:
    with pytest.raises(EngineError, match="'asked_of_the_class'"):
        forwarding._forwards({"asked_of_the_class": classmethod(lambda cls: None)})


def test_a_method_of_a_new_version_is_forwarded() -> None:
    def added(self: Any, key: str) -> None: ...

    forward = forwarding._forwards({"added": added})["added"]
    inner = Recorder()
    forward(SimpleNamespace(inner=inner), key="k")
    assert inner.heard == [("added", (), {"key": "k"})]


def test_one_class_for_one_name() -> None:
    assert gated.GatedExampleConnector is gated.GatedExampleConnector
    assert gated.GatedExampleConnector.__name__ == "GatedExampleConnector"


def test_a_class_can_be_instantiated() -> None:
    assert gated.GatedExampleConnector.__abstractmethods__ == frozenset()


# Those whose own libraries are not needed to look at the class.
@pytest.mark.parametrize(
    "name",
    ["ExampleConnector", "MultiConnector", "OffloadingConnector", "MooncakeStoreConnector", "NixlConnector",
     "LMCacheMPConnector", "LMCacheConnectorV1"],
)  # fmt: skip
def test_hybrid_support_is_the_inner_connector_s(name: str) -> None:
    try:
        inner = factory.KVConnectorFactory.get_connector_class_by_name(name)
    except ImportError as error:
        pytest.skip(f"{name} needs a library that is not here: {error}")
    outer = getattr(gated, f"Gated{name}")
    assert base.supports_hma(outer) == base.supports_hma(inner)
    assert outer.__abstractmethods__ == frozenset()


def config(**extra: Any) -> Any:
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_connector="GatedExampleConnector",
            kv_connector_module_path="kvferry.engines.vllm.gated",
            kv_connector_extra_config=extra,
        )
    )


def test_the_inner_connector_sees_its_own_settings_only() -> None:
    outer = config(shared_storage_path="/x", kvferry={"gate": {"mode": "shadow"}})
    theirs = gated.GatedExampleConnector.behind.config(outer).kv_transfer_config
    assert theirs.kv_connector == "ExampleConnector"
    assert theirs.kv_connector_module_path is None
    assert theirs.kv_connector_extra_config == {"shared_storage_path": "/x"}


def test_the_outer_configuration_is_left_alone() -> None:
    outer = config(kvferry={})
    gated.GatedExampleConnector.behind.config(outer)
    assert outer.kv_transfer_config.kv_connector == "GatedExampleConnector"
    assert outer.kv_transfer_config.kv_connector_extra_config == {"kvferry": {}}


def test_class_methods_reach_the_inner_class() -> None:
    extra = {"connectors": [], "kvferry": {}}
    assert gated.GatedMultiConnector.requires_piecewise_for_cudagraph(extra) is False
    stats = gated.GatedMultiConnector.build_kv_connector_stats({"inner": {}})
    assert type(stats.data["inner"]).__name__ == "MultiKVConnectorStats"


def test_a_name_that_nobody_knows_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match="inner_module_path"):
        gated.GatedNobody.requires_piecewise_for_cudagraph({})


def test_a_module_path_leads_to_a_class_that_vllm_does_not_know() -> None:
    extra = {"inner_module_path": "vllm.distributed.kv_transfer.kv_connector.v1.decode_bench_connector"}
    assert gated.GatedDecodeBenchConnectorMetadata.behind.resolve(extra).__name__ == (
        "DecodeBenchConnectorMetadata"
    )


def test_a_module_path_may_not_shadow_a_known_name() -> None:
    extra = {"inner_module_path": "kvferry.errors"}
    with pytest.raises(ConfigError, match="has no 'ExampleConnector'"):
        gated.GatedExampleConnector.behind.resolve(extra)


def test_only_gated_names_make_classes() -> None:
    with pytest.raises(AttributeError, match="write Gated and a connector's name"):
        _ = gated.ExampleConnector
