"""Pure arithmetic: 256 MiB of KV, 4 ms of lookup and preparation, against 60 ms of recompute.

Run it with `python examples/break_even.py`. The base install is enough; no server, no model.
"""

from __future__ import annotations

from kvferry.cost.break_even import break_even
from kvferry.units import MIB, format_rate, format_seconds, parse_rate

SIZE_BYTES, OVERHEAD_SECONDS, RECOMPUTE_SECONDS = 256 * MIB, 0.004, 0.060
LINKS = ("2GiB/s", "25Gbit/s", "8GiB/s", "100Gbit/s")


def main() -> None:
    threshold = break_even(SIZE_BYTES, OVERHEAD_SECONDS, RECOMPUTE_SECONDS).break_even_bytes_per_second
    print(f"loading wins above {format_rate(threshold)}")
    for link in LINKS:
        result = break_even(SIZE_BYTES, OVERHEAD_SECONDS, RECOMPUTE_SECONDS, parse_rate(link, "link"))
        if result.load_seconds is None:  # only where no bandwidth was given
            continue
        choice = "carry" if result.carry else "recompute"
        print(f"{link:>10}: load {format_seconds(result.load_seconds):>9}, so {choice}")


if __name__ == "__main__":
    main()
