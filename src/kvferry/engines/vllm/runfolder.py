"""What makes a folder of records a run that `kvferry why` and `kvferry report` open: its run.json.

Owns when it is written: by the engine that records there first. A restart goes on with the run that it finds.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config import Config, load
from ...errors import KvferryError
from ...runs.directory import RunDirectory

__all__ = ["begin_run"]

log = logging.getLogger("vllm.kvferry")


def begin_run(config: Config, given: Mapping[str, Any]) -> None:
    """Write run.json where the settings name a folder that has none; `given` are ours as in vLLM's JSON.

    Records are worth keeping without it: what goes wrong is said, and no more.
    """
    if config.record is None or (Path(config.record) / "run.json").exists():
        return
    try:
        RunDirectory.create(
            config.record, command=sys.argv, config=config, origins=load(json=dict(given)).origins
        )
    except KvferryError as error:
        log.warning("kvferry: record: %s; kvferry why and kvferry report will not open this folder", error)
