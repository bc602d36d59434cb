"""Exercise 13.1: the first token after a hand-off against a prefill, by context, codec and channel.

Run it with `python examples/exercise_13_1.py`. The base install is enough; no server, no model. The receiver
computes 100 TFLOP/s, the KV is Qwen3-8B's, a mapper works through its bytes at 1 TB/s. Two speed-ups stand
side by side, since they are two questions: by the linear rule 2 N n a hand-off's gain does not depend on the
context; with attention counted it grows with it.

Sizes are in GiB (2^30) and channels in GB/s (10^9). 23.9 GB/s is what its authors measured over four cables
between two machines, and is named by that figure: it is more than four Thunderbolt 4 cables are sold for.
"""

from __future__ import annotations

import sys

from kvferry.model.channels import AUTHORS, CODECS, Channel
from kvferry.model.open import open_model
from kvferry.model.transfer import Transfer, transfer_table
from kvferry.units import GIB

CONTEXTS = (4_096, 16_384, 65_536)
RECEIVER_FLOP_PER_SECOND = 100e12
PARAMETERS = 8.2e9
MAPPER_BYTES_PER_SECOND = 1e12
CHANNELS = (
    Channel("25 GbE", 3.1e9, "line rate"),
    Channel("100 GbE", 12.5e9, "line rate"),
    Channel("23.9 GB/s", 23.9e9, AUTHORS),
)


def matrix(context: int) -> Transfer:
    """Every codec over every channel; the mapper's time is counted once."""
    return transfer_table(
        open_model("qwen3-8b"),
        context,
        channels=CHANNELS,
        codecs=CODECS,
        parameters=PARAMETERS,
        flop_per_second=RECEIVER_FLOP_PER_SECOND,
        mapper_bytes_per_second=MAPPER_BYTES_PER_SECOND,
    )


def print_matrix() -> None:
    """The exercise's table."""
    for context in CONTEXTS:
        table = matrix(context)
        prefill = table.prefill
        if prefill is None or prefill.linear_seconds is None or prefill.seconds is None:
            raise RuntimeError("the preset gives its parameters and heads")  # it does; the types do not know
        print(
            f"context {context:,}: prefill {prefill.linear_seconds:.3f} s by 2 N n, "
            f"{prefill.seconds:.3f} s with attention (+{prefill.attention_share:.0%})"
        )
        for one in table.crossings:
            print(
                f"  {one.codec:<6} {one.bytes / GIB:6.3f} GiB | {one.channel:<9} "
                f"transfer {one.transfer_seconds * 1e3:7.1f} ms + map {one.mapper_seconds * 1e3:4.1f} ms | "
                f"x{one.linear_speedup:5.1f} by 2 N n, x{one.speedup:5.1f} with attention"
            )


def print_corrections() -> None:
    """Figures that go around wrong, recomputed."""
    int8 = {one.channel: one for one in matrix(25_000).crossings if one.codec == "int8"}
    size = int8["25 GbE"].bytes
    times = ", ".join(f"{one.transfer_seconds * 1e3:.0f} ms at {name}" for name, one in int8.items())
    print(f"\nint8 of 25,000 tokens: {size / GIB:.3f} GiB; {times}")
    flop = 2 * PARAMETERS * 25_000
    slow, fast = flop / (0.4 * 990e12), flop / (0.6 * 990e12)
    print(f"prefill of 25,000 tokens at 990 TFLOP/s, 40 to 60 %: {fast:.2f} to {slow:.2f} s")
    print(
        f"prefill of 25,000 tokens at 100 TFLOP/s: {flop / 100e12:.1f} s in full, "
        f"{flop / 60e12:.2f} to {flop / 40e12:.2f} s at 60 to 40 %"
    )
    link = int8["25 GbE"].bytes_per_second
    for codec, carried in (("int8", size / link), ("16 bit", 2 * size / link)):
        verdict = "beats it" if carried < fast else "loses" if carried > slow else "may do either"
        print(f"over 25 GbE to the receiver of 990 TFLOP/s {codec} takes {carried:.3f} s: {verdict}")
    held = [one for context in CONTEXTS for one in matrix(context).crossings if one.codec == "int8"]
    kept = sum(bool(one.rule_holds) for one in held)
    print(f"the rule (int8 under a second, prefill above one) holds in {kept} of {len(held)} cells")


def main() -> int:
    print_matrix()
    print_corrections()
    return 0


if __name__ == "__main__":
    sys.exit(main())
