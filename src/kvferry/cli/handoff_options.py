"""Options that several `kvferry handoff` commands have, declared once: their types, names and help.

Owns what such an option is called and what is said of it. What it does, and its default, each command says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Parameter

from ..errors import UsageError

__all__ = [
    "CheckpointSeconds",
    "ConfigFile",
    "Device",
    "Dtype",
    "ExitWithParent",
    "HandoffId",
    "KvDtype",
    "Overrides",
    "RoleThreads",
    "Threads",
    "check_checkpoint_seconds",
]

Dtype: TypeAlias = Annotated[str, Parameter(help="What the models compute in.")]
Device: TypeAlias = Annotated[str, Parameter(help="cpu or cuda.")]
Threads: TypeAlias = Annotated[
    int | None, Parameter(help="Threads of a CPU; torch's own choice where not given.")
]
CheckpointSeconds: TypeAlias = Annotated[
    float,
    Parameter(help="A command that is killed loses at most so much of its work, and the piece it was at."),
]

KvDtype: TypeAlias = Annotated[
    str, Parameter(help="Numbers of weights and KV: float32, bfloat16 or float16.")
]
RoleThreads: TypeAlias = Annotated[int, Parameter(help="Threads of one forward pass.")]
HandoffId: TypeAlias = Annotated[
    str,
    Parameter(
        name="--id",
        help=(
            "Names the hand-off, the same at both ends; -1, -2 and so on are added where there are several. "
            "Matters through a tier."
        ),
    ),
]
ExitWithParent: TypeAlias = Annotated[bool, Parameter(help="End when standard input is closed.")]
ConfigFile: TypeAlias = Annotated[
    Path | None, Parameter(help="YAML file of settings: tenant and its secret count here.")
]
Overrides: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(name="--set", negative=(), help="One setting, as NAME=VALUE. Can be repeated."),
]


def check_checkpoint_seconds(value: float) -> None:
    """Raise UsageError for no interval."""
    if not value >= 0:
        raise UsageError(f"--checkpoint-seconds {value:g}: must be 0 or more")
