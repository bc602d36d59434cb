"""`kvferry break-even`: the bandwidth above which loading beats recompute."""

from __future__ import annotations

import math
from typing import Annotated

from cyclopts import App, Parameter

from ..cost.break_even import break_even
from ..units import format_bytes, format_rate, format_seconds, parse_bytes, parse_rate, parse_seconds
from .output import Json, write_columns, write_json

__all__ = ["app"]

app = App(name="break-even")


@app.default
def run(
    *,
    size: Annotated[str, Parameter(name="--bytes")],
    overhead: str,
    recompute: str,
    bandwidth: list[str] | None = None,
    json: Json = False,
) -> None:
    """The bandwidth above which loading beats recompute.

    A load takes overhead + bytes / bandwidth. With --json, one object, or a list of them when several
    bandwidths are given; a break-even of null means that loading never wins.

    Parameters
    ----------
    size
        What would be loaded, such as 256MiB.
    overhead
        Lookup and preparation, which a link of any speed costs, such as 4ms.
    recompute
        What computing it again takes, such as 60ms.
    bandwidth
        A link to compare, such as 8GiB/s or 25Gbit/s; may be given again.
    """
    amounts = (
        parse_bytes(size, "--bytes"),
        parse_seconds(overhead, "--overhead"),
        parse_seconds(recompute, "--recompute"),
    )
    links: list[float | None] = [parse_rate(text, "--bandwidth") for text in bandwidth or ()]
    results = [break_even(*amounts, link) for link in links or [None]]
    if json:
        write_json(results if len(results) > 1 else results[0])
        return
    threshold = results[0].break_even_bytes_per_second
    verdict = "loading never wins"
    if math.isfinite(threshold):
        verdict = f"loading wins above {format_rate(threshold)}"
    print(
        f"{format_bytes(amounts[0])} with {format_seconds(amounts[1])} of overhead against "
        f"{format_seconds(amounts[2])} of recompute: {verdict}"
    )
    rows = []
    for result in results:
        if result.bandwidth_bytes_per_second is None or result.load_seconds is None:
            continue
        gain = result.recompute_seconds - result.load_seconds
        rows.append(
            (
                format_rate(result.bandwidth_bytes_per_second),
                f"load {format_seconds(result.load_seconds)}",
                "carry" if result.carry else "recompute",
                f"{format_seconds(abs(gain))} {'earlier' if gain else 'of difference'}",
            )
        )
    write_columns(rows, right=(0,), indent="  ")
