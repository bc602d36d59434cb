"""Where training begins: the map's line in closed form, of low rank, from texts that both models have read.

Owns the sums over texts, the codes of tokens, and the solution. A ridge about the means is solved for all
layers at once (they share their inputs); of what it explains, the directions that explain most are kept as
latents of variance one, which is the best map of that rank. Outputs count by the head: keys and values of
each head are divided by their own spread first, so that no layer's size decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ...errors import ModelError
from ..mapping.checkpoint import Kept, named, under
from ..mapping.ridge import LAMBDAS, best_line
from ..mapping.rope import strip_rope
from ..mapping.shapes import ModelKv, Prefill
from ..mapping.statistics import CHUNK_ROWS, Moments
from .align import Alignment
from .network import CrossNetwork, CrossShape, gather, output_blocks

__all__ = ["Calibration", "Started", "target_rows", "token_codes"]


def token_codes(embeddings: torch.Tensor, width: int) -> torch.Tensor:
    """Codes of all tokens [vocabulary, width] from their embeddings [vocabulary, numbers], in float16.

    The directions in which embeddings vary most, each of variance one.
    """
    if not 0 < width <= embeddings.shape[1]:
        raise ModelError(f"codes of {width} numbers from embeddings of {embeddings.shape[1]}")
    about = embeddings.detach().float()
    about = about - about.mean(0)
    values, vectors = torch.linalg.eigh((about.T @ about).double() / about.shape[0])
    chosen = vectors[:, -width:].flip(1) / values[-width:].flip(0).clamp_min(1e-12).sqrt()
    codes: torch.Tensor = (about @ chosen.float()).half()
    return codes


def target_rows(kv: ModelKv, prefill: Prefill) -> torch.Tensor:
    """What the map should give for each token, [tokens, outputs] float32: of each layer keys, then values."""
    parts = []
    for shape, layer in zip(kv.layers, prefill.layers, strict=True):
        short = layer.keys.dtype in (torch.float16, torch.bfloat16)
        keys = strip_rope(
            layer.keys,
            shape.rope,
            prefill.positions,
            length=prefill.length,
            rounded_to=layer.keys.dtype if short else None,
        )
        parts += [part.float().transpose(0, 1).flatten(1) for part in (keys, layer.values)]
    return torch.cat(parts, dim=1)


@dataclass(frozen=True, slots=True)
class Started:
    """A network that is a line still, and how much the line explains of held-out tokens."""

    network: CrossNetwork
    full_r2: float
    """Of the line of full rank, all heads alike."""
    kept_share: float
    """Of what it explains, the share that the latents keep."""
    relative_lambda: float
    rows: int


class Calibration:
    """Sums over texts, of bounded size; then the network that they give."""

    def __init__(self, shape: CrossShape, codes: torch.Tensor, *, seed: int = 0) -> None:
        self.network = CrossNetwork(shape, seed=seed).to(codes.device)
        self.network.codes.copy_(codes if shape.code_width else codes[:0, :0])
        inputs = shape.source_width + shape.code_width
        self._fit = Moments(1, inputs, shape.outputs, codes.device)
        self._held = Moments(1, inputs, shape.outputs, codes.device)
        self._first = torch.zeros(shape.outputs, dtype=torch.float64, device=codes.device)
        self._waiting: dict[bool, list[tuple[torch.Tensor, torch.Tensor]]] = {False: [], True: []}
        self.texts = self.tokens = 0

    def tensors(self) -> Kept:
        """What it has collected, by name; `of` makes it again."""
        found: Kept = {
            # Not computed again: a decomposition may turn a direction round, and sums are about these.
            "codes": self.network.codes,
            "first": self._first,
            "counts": torch.tensor([self.texts, self.tokens]),
        }
        for name, moments, waiting in (
            ("fit", self._fit, self._waiting[False]),
            ("held", self._held, self._waiting[True]),
        ):
            found |= named(name, moments.tensors())
            for number, (inputs, outputs) in enumerate(waiting):
                found |= named(f"{name} waits.{number}", {"inputs": inputs, "outputs": outputs})
        return found

    @classmethod
    def of(
        cls, shape: CrossShape, tensors: Mapping[str, torch.Tensor], device: torch.device, *, seed: int = 0
    ) -> Calibration:
        """The calibration of this shape and seed whose `tensors` these are."""
        kept = {name: tensor.to(device) for name, tensor in tensors.items()}
        made = cls(shape, kept["codes"], seed=seed)
        made._fit, made._held = Moments.of(under("fit", kept)), Moments.of(under("held", kept))
        made._first = kept["first"]
        made.texts, made.tokens = (int(one) for one in kept["counts"])
        for held_out, name in ((False, "fit waits"), (True, "held waits")):
            waits = under(name, kept)
            made._waiting[held_out] = [
                (waits[f"{number}.inputs"], waits[f"{number}.outputs"]) for number in range(len(waits) // 2)
            ]
        return made

    @torch.no_grad()
    def add(
        self,
        rows: torch.Tensor,
        token_ids: torch.Tensor,
        alignment: Alignment,
        native: torch.Tensor,
        *,
        held_out: bool = False,
    ) -> None:
        """One text: source rows, the target's tokens and its own KV as `target_rows` gives it.

        Held-out texts choose lambda and are what the figures are of.
        """
        usable = alignment.grounded.clone()
        usable[:1] = False
        inputs = gather(rows, token_ids, alignment, self.network.codes)[usable]
        self._waiting[held_out].append((inputs, native[usable]))
        if sum(one.shape[0] for one, _ in self._waiting[held_out]) >= CHUNK_ROWS:
            self._take(held_out)
        self.tokens += int(native.shape[0])
        if not held_out and native.shape[0]:
            self._first += native[0].double()
            self.texts += 1

    @torch.no_grad()
    def solve(self, lambdas: Sequence[float] = LAMBDAS) -> Started:
        """The network whose line is the best of its rank. Raises ModelError where too few texts came."""
        for held_out in (False, True):
            self._take(held_out)
        if not self._held.rows or not self._fit.rows:
            raise ModelError("no text for the closed form, or none held out: give more text")
        network, shape = self.network, self.network.shape
        across, sizes = self._input_spreads(), self._output_sizes()
        fitted, held = (_scaled(one, across, sizes) for one in (self._fit, self._held))
        line, chosen, r2 = best_line(fitted, held, 1, lambdas)
        gram = fitted.centred()[0][0] / fitted.rows
        # Latents are directions of the inputs as the ridge sees them, and have variance one there.
        gram.diagonal().add_(max(chosen, 1e-10) * float(gram.diagonal().mean()))
        lower = torch.linalg.cholesky(gram)
        explained = lower.T @ line.weight[0]
        values, vectors = torch.linalg.eigh(explained @ explained.T)
        rank = min(shape.width, values.shape[0])
        best = vectors[:, -rank:].flip(1)
        network.enter[:, :rank].copy_(torch.linalg.solve_triangular(lower.T, best, upper=True))
        network.leave[:rank].copy_(best.T @ explained)
        if rank < shape.width:  # room that blocks may fill: it must lead somewhere to be trained
            generator = torch.Generator().manual_seed(1)
            room = torch.randn(shape.width - rank, shape.outputs, generator=generator) * 0.02
            network.leave[rank:].copy_(room)
        mean_x, mean_y = self._fit.means()
        network.centre.copy_(mean_x[0])
        network.spread.copy_(across)
        network.sizes.copy_(sizes)
        network.leave_bias.copy_(mean_y[0] / sizes)
        network.first.copy_(self._first / max(1, self.texts) / sizes)
        kept = float(values[-rank:].sum() / values.clamp_min(0).sum().clamp_min(1e-30))
        return Started(network, r2, kept, chosen, self._fit.rows)

    def _take(self, held_out: bool) -> None:
        """Add up the rows that wait: sums as large as these are touched a thousand rows at a time."""
        waiting = self._waiting[held_out]
        if waiting:
            inputs, outputs = (torch.cat(parts) for parts in zip(*waiting, strict=True))
            (self._held if held_out else self._fit).add(inputs[None], outputs[None])
            waiting.clear()

    def _input_spreads(self) -> torch.Tensor:
        deviation = (self._fit.centred()[0][0].diagonal() / self._fit.rows).clamp_min(0).sqrt()
        return torch.where(deviation > 0, deviation, torch.ones_like(deviation))

    def _output_sizes(self) -> torch.Tensor:
        """Standard deviation of each head's numbers, pooled, as a row of outputs."""
        variance = self._fit.centred()[2][0] / self._fit.rows
        found = torch.ones_like(variance)
        for start, stop in output_blocks(self.network.shape.target.layers):
            pooled = float(variance[start:stop].mean())
            found[start:stop] = pooled**0.5 if pooled > 0 else 1.0
        return found


def _scaled(moments: Moments, across: torch.Tensor, sizes: torch.Tensor) -> Moments:
    """Moments as if inputs had been divided by `across` and outputs by `sizes`."""
    made = moments.like()
    made.rows, made.weight, made.weight_squares = moments.rows, moments.weight, moments.weight_squares
    made.x, made.y = moments.x / across, moments.y / sizes
    made.xx = moments.xx / across / across[:, None]
    made.xy = moments.xy / sizes / across[:, None]
    made.yy = moments.yy / sizes.square()
    if moments.origin is not None:
        made.origin = (moments.origin[0] / across, moments.origin[1] / sizes)
    return made
