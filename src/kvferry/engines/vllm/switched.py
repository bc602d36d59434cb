"""The port on which a running engine is switched and asked, where the settings name one.

Owns that the port is a convenience: one that is taken is said in the log, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from ...config import Config, split_address
from ...errors import KvferryError
from ...serving.contract import Controls

__all__ = ["open_switches"]

log = logging.getLogger("vllm.kvferry")


@contextlib.contextmanager
def open_switches(config: Config, controls: Controls) -> Iterator[str | None]:
    """Serve `controls` at `config.control` while the context is open; its URL, or None without one."""
    if config.control is None:
        yield None
        return
    # Imported here: without a port nothing of HTTP is needed.
    from ...serving.controls import make_control_app
    from ...serving.listen import serving

    host, port = split_address(config.control)
    with contextlib.ExitStack() as opened:
        try:
            url = opened.enter_context(serving(make_control_app(controls), host=host, port=port))
        except KvferryError as error:
            log.warning("kvferry: control: %s; this engine cannot be switched while it runs", error)
            yield None
            return
        log.info("kvferry: settings and metrics at %s/kvferry/settings and %s/metrics", url, url)
        yield url
