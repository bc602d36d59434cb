"""The closed form finds a line that was planted, keeps what explains most, and is judged on other texts."""

from __future__ import annotations

import pytest
import torch
from two_families import SOURCE, TARGET, context, prefill, shape

from kvferry.errors import ModelError
from kvferry.handoff.crossing.align import align
from kvferry.handoff.crossing.features import source_rows
from kvferry.handoff.crossing.initial import Calibration, Started, target_rows, token_codes
from kvferry.handoff.crossing.network import gather

OUTPUTS = TARGET.numbers_per_token


def solved(rank: int, width: int, texts: int = 60, noise: float = 0.0) -> tuple[Started, torch.Tensor]:
    """A calibration on texts whose KV is a planted line of `rank`, and the line."""
    made = shape(width=width, blocks=0)
    generator = torch.Generator().manual_seed(4)
    inputs = made.source_width + made.code_width
    line = torch.randn(inputs, rank, generator=generator) @ torch.randn(rank, OUTPUTS, generator=generator)
    codes = torch.randn(30, 4, generator=generator)
    calibration = Calibration(made, codes)
    for number in range(texts):
        text = context(12, number)
        rows = source_rows(SOURCE, prefill(SOURCE, len(text.source_ids), number), made.reads)
        alignment = align(text.source_spans, text.target_spans)
        ids = torch.tensor(text.target_ids)
        native = gather(rows, ids, alignment, codes) @ line + 3
        native += noise * torch.randn(native.shape, generator=generator)
        native[0] = 50.0
        calibration.add(rows, ids, alignment, native, held_out=number % 4 == 3)
    return calibration.solve(), line


def test_a_planted_line_is_found() -> None:
    started, line = solved(rank=6, width=16)
    assert started.full_r2 > 0.999
    network = started.network.requires_grad_(False)
    text = context(9, 999)
    rows = source_rows(SOURCE, prefill(SOURCE, len(text.source_ids), 999), network.shape.reads)
    alignment, ids = align(text.source_spans, text.target_spans), torch.tensor(text.target_ids)
    wanted = gather(rows, ids, alignment, network.codes) @ line + 3
    layers = network(rows, ids, alignment)
    flat = torch.cat(
        [part.transpose(0, 1).flatten(1) for one in layers for part in (one.keys, one.values)], 1
    )
    known = alignment.grounded.clone()
    known[0] = False
    torch.testing.assert_close(flat[known], wanted[known], atol=0.02, rtol=0.02)


def test_the_first_token_has_its_own_mean() -> None:
    started, _ = solved(rank=4, width=16)
    network = started.network.requires_grad_(False)
    torch.testing.assert_close(network.first * network.sizes, torch.full((OUTPUTS,), 50.0))


def test_latents_have_variance_one_and_the_first_explains_most() -> None:
    started, _ = solved(rank=6, width=4)
    network = started.network.requires_grad_(False)
    found = []
    for number in range(40):
        text = context(12, number)
        rows = source_rows(SOURCE, prefill(SOURCE, len(text.source_ids), number), network.shape.reads)
        alignment = align(text.source_spans, text.target_spans)
        found.append(network.latents(rows, torch.tensor(text.target_ids), alignment)[2:])
    spread = torch.cat(found).std(0)
    torch.testing.assert_close(spread, torch.ones(4), atol=0.2, rtol=0)
    sizes = network.leave.norm(dim=1)
    assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)


def test_fewer_latents_than_the_line_has_directions_keep_a_share() -> None:
    whole, part = solved(rank=6, width=16)[0], solved(rank=6, width=4)[0]
    assert whole.kept_share > 0.999
    assert 0.5 < part.kept_share < 0.95


def test_noise_is_not_explained() -> None:
    started, _ = solved(rank=1, width=4, noise=30.0)
    assert started.full_r2 < 0.2


def test_texts_must_be_held_out() -> None:
    made = shape(blocks=0)
    with pytest.raises(ModelError, match="none held out"):
        Calibration(made, torch.zeros(30, 4)).solve()


def test_codes_are_the_directions_of_most_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(500, 3, generator=generator) * torch.tensor([10.0, 1.0, 0.1]) + 7
    codes = token_codes(embeddings, 2).float()
    torch.testing.assert_close(codes.std(0), torch.ones(2), atol=0.02, rtol=0)
    assert abs(torch.corrcoef(torch.stack([codes[:, 0], embeddings[:, 0]]))[0, 1]) > 0.99
    with pytest.raises(ModelError, match="codes of 4 numbers from embeddings of 3"):
        token_codes(embeddings, 4)


def test_target_rows_are_unturned() -> None:
    here, there = target_rows(TARGET, prefill(TARGET, 5)), target_rows(TARGET, prefill(TARGET, 5, start=90))
    torch.testing.assert_close(here, there, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("at", [1, 7, 30])
def test_a_calibration_that_was_kept_goes_on_to_the_same_network(at: int) -> None:
    """Of rows that wait still, and of rows that have been summed up."""
    made = shape(width=8, blocks=1)
    generator = torch.Generator().manual_seed(5)
    codes = torch.randn(30, 4, generator=generator)

    def read(calibration: Calibration, numbers: range) -> Calibration:
        for number in numbers:
            text = context(60, number)
            rows = source_rows(SOURCE, prefill(SOURCE, len(text.source_ids), number), made.reads)
            native = torch.randn(60, OUTPUTS, generator=torch.Generator().manual_seed(number))
            aligned = align(text.source_spans, text.target_spans)
            calibration.add(rows, torch.tensor(text.target_ids), aligned, native, held_out=number % 4 == 3)
        return calibration

    whole = read(Calibration(made, codes, seed=2), range(40))
    kept = {
        name: one.clone() for name, one in read(Calibration(made, codes, seed=2), range(at)).tensors().items()
    }
    again = read(Calibration.of(made, kept, torch.device("cpu"), seed=2), range(at, 40))
    assert (again.tokens, again.texts) == (whole.tokens, whole.texts)
    ours, theirs = again.solve(), whole.solve()
    assert (ours.full_r2, ours.relative_lambda, ours.rows) == (
        theirs.full_r2,
        theirs.relative_lambda,
        theirs.rows,
    )
    wanted = theirs.network.numbers()
    assert all(torch.equal(one, wanted[name]) for name, one in ours.network.numbers().items())
