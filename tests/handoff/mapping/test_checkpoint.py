"""A fit that is killed at any moment goes on and ends as one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from kvferry.errors import FormatError, UsageError
from kvferry.handoff.mapping.checkpoint import Checkpoint
from kvferry.handoff.mapping.mapper import Mapper
from kvferry.handoff.mapping.mlp import MlpSettings
from kvferry.handoff.mapping.passing import fit_map
from kvferry.handoff.mapping.rows import Recipe
from kvferry.handoff.mapping.shapes import Prefill

from .planted import Planted, Source, model_kv, text_of

SOURCE = model_kv("s", 4, 3, 8)
TARGET = model_kv("t", 3, 2, 6, theta=7e4)
RECIPE = Recipe(inputs="local", warm_rows=256, most_layers=2)
RECIPES = {
    "local": RECIPE,
    "full": msgspec.structs.replace(RECIPE, inputs="full", stride=2, warm_rows=128),
    "unweighted": msgspec.structs.replace(RECIPE, weighted=False),
    "network": msgspec.structs.replace(
        RECIPE, mlp=MlpSettings(steps=20, margin=-1.0), mlp_rows=300, most_layers=1
    ),
}
CURVE = (400, 800)


class Killed(Exception):
    """Stands for a process that ends."""


class Mortal(Source):
    """A source that is killed at its n-th prefill."""

    def __init__(self, at: int) -> None:
        super().__init__(SOURCE)
        self.left = at

    def prefill(self, token_ids: Sequence[int], *, offset: int = 0, queries: bool = False) -> Prefill:
        if not self.left:
            raise Killed
        self.left -= 1
        return super().prefill(token_ids, offset=offset, queries=queries)


def fitted(keep: Checkpoint | None, recipe: Recipe = RECIPE, at: int = -1) -> Mapper:
    source = Mortal(at)
    target = Planted(TARGET, Source(SOURCE), (3, 0, 2), (2, 0), noise=0.1)
    return fit_map(source, target, text_of(), recipe, checkpoints=CURVE, keep=keep)


def checkpoint(path: Path, **settings: str) -> Checkpoint:
    return Checkpoint(path, settings, seconds=0.0)


SEQUENCES = len([*text_of().train, *text_of().validation, *text_of().test])


@pytest.mark.parametrize("name", RECIPES)
def test_a_fit_that_dies_again_and_again_ends_as_one_that_did_not(name: str, tmp_path: Path) -> None:
    """It dies before its first sequence, and behind every one that follows."""
    expected = fitted(None, RECIPES[name])
    deaths = 0
    for _ in range(SEQUENCES + 2):
        try:
            found = fitted(checkpoint(tmp_path / "x.fit"), RECIPES[name], at=1)
        except Killed:
            deaths += 1
            continue
        break
    assert deaths == SEQUENCES - 1
    assert found.digest() == expected.digest()
    assert expected.facts is not None
    assert found.facts is not None
    assert msgspec.structs.replace(found.facts, seconds={}) == msgspec.structs.replace(
        expected.facts, seconds={}
    )


def test_what_was_done_is_not_done_again(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fitted(checkpoint(tmp_path / "x.fit"), at=SEQUENCES - 3)
    fitted(checkpoint(tmp_path / "x.fit"), at=3)


def test_at_most_an_interval_is_lost(tmp_path: Path) -> None:
    now = [0.0]
    keep = Checkpoint(
        tmp_path / "x.fit", {}, seconds=2.0, clock=lambda: now.__setitem__(0, now[0] + 1) or now[0]
    )
    with pytest.raises(Killed):
        fitted(keep, at=9)
    found = checkpoint(tmp_path / "x.fit")
    found.settings.update(keep.settings)
    read = found.read()
    assert read is not None
    assert 7 <= sum(read[0]["done"].values()) <= 9


def test_another_fits_is_refused_by_the_name_of_the_difference(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fitted(checkpoint(tmp_path / "x.fit", tokens="20000"), at=3)
    other = msgspec.structs.replace(RECIPE, stride=3)
    with pytest.raises(UsageError, match=r"stride is 1 there and 3 here; tokens is 20000 there and 500 here"):
        fitted(checkpoint(tmp_path / "x.fit", tokens="500"), other)


def test_another_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fitted(checkpoint(tmp_path / "x.fit"), at=3)
    source = Source(SOURCE)
    target = Planted(TARGET, source, (3, 0, 2), (2, 0))
    text = text_of(seed=5)
    with pytest.raises(UsageError, match=r"text for train is .* there"):
        fit_map(source, target, text, RECIPE, checkpoints=CURVE, keep=checkpoint(tmp_path / "x.fit"))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "x.fit")
    with pytest.raises(FormatError, match=r"not a fit's checkpoint.*--fresh"):
        fitted(checkpoint(tmp_path / "x.fit"))


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.fit").write_bytes(b"torn")
    with pytest.raises(FormatError, match=r"x\.fit.*--fresh"):
        fitted(checkpoint(tmp_path / "x.fit"))


_SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from pathlib import Path
from planted import Planted, Source, model_kv, text_of
from kvferry.handoff.mapping.checkpoint import Checkpoint
from kvferry.handoff.mapping.passing import fit_map
from kvferry.handoff.mapping.rows import Recipe
source = Source(model_kv("s", 4, 3, 8))
target = Planted(model_kv("t", 3, 2, 6, theta=7e4), source, (3, 0, 2), (2, 0), noise=0.1)
recipe = Recipe(inputs="local", warm_rows=256, most_layers=2)
keep = Checkpoint(Path({path!r}), {{}}, seconds=0.0)
fit_map(source, target, text_of(), recipe, checkpoints={curve!r}, keep=keep)
print("done")
"""


def test_a_process_that_is_killed_for_good_goes_on(tmp_path: Path) -> None:
    """kill -9, as soon as something was kept; what is there is whole, and the end is the same."""
    path = tmp_path / "x.fit"
    script = _SCRIPT.format(tests=str(Path(__file__).parent), path=str(path), curve=CURVE)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    assert path.exists()
    assert fitted(checkpoint(path)).digest() == fitted(None).digest()
