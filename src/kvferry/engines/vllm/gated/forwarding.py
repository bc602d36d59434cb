"""Makes the class of a gated connector: everything of vLLM's contract, forwarded to the inner one.

Owns the completeness of the forwarding. It walks over the contract itself, so a method that a new version of
vLLM adds is forwarded without a change here; a class method cannot be, since vLLM calls it where no instance
exists, and one that is not known makes the class impossible to build.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from ....errors import EngineError
from .connector import OWN, Gated, finished_all_groups
from .inner import Inner, contract

__all__ = ["CLASS_METHODS", "gated_class"]

CLASS_METHODS = frozenset(
    {
        "build_kv_connector_stats",
        "build_prom_metrics",
        "get_required_kvcache_layout",
        "requires_piecewise_for_cudagraph",
    }
)
"""Those of the contract that this version forwards, each in its own way."""


@functools.cache
def gated_class(name: str) -> Any:
    """The class `Gated<name>`, with one identity per process.

    Raises `EngineError` when vLLM's contract holds something that cannot be forwarded.
    """
    base = contract()
    inner = Inner(name)
    namespace: dict[str, Any] = {
        "__doc__": f"{name} behind kvferry's gate.",
        "__module__": Gated.__module__.rpartition(".")[0],
        "behind": inner,
        "contract": base.KVConnectorBase_V1,
        "_cache_hit_source": getattr(
            inner.found, "_cache_hit_source", base.KVConnectorBase_V1._cache_hit_source
        ),
        **_forwards(vars(base.KVConnectorBase_V1)),
    }
    bases: tuple[type, ...] = (Gated, base.KVConnectorBase_V1)
    if inner.found is not None and base.supports_hma(inner.found):
        # vLLM asks the class. A connector that is only found with its settings counts as one without.
        namespace["request_finished_all_groups"] = finished_all_groups
        bases = (*bases, base.SupportsHMA)
    return types.new_class(f"Gated{name}", bases, exec_body=lambda body: body.update(namespace))


def _forwards(members: Mapping[str, Any]) -> dict[str, Any]:
    forwards: dict[str, Any] = {}
    for name, member in members.items():
        if name.startswith("_") or name in OWN:
            continue
        if isinstance(member, classmethod | staticmethod):
            raise EngineError(
                f"vLLM's connector contract has a class method {name!r} that this kvferry does not know; "
                "update kvferry, or take the gate out of kv_connector"
            )
        if isinstance(member, property):
            forwards[name] = property(_reader(name), doc=member.__doc__)
        elif isinstance(member, types.FunctionType):
            forwards[name] = _method(name, member)
    return forwards


def _reader(name: str) -> Callable[[Any], Any]:
    return lambda self: getattr(self.inner, name)


def _method(name: str, original: types.FunctionType) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    # Left on, the mark of an abstract method would forbid instances.
    vars(forward).pop("__isabstractmethod__", None)
    return forward
