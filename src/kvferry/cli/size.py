"""`kvferry size`: what a model's KV cache weighs for an engine and a layout, and what that means."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, Group, Parameter

from ..errors import UsageError
from ..model.agreement import compare
from ..model.channels import CHANNELS, CODECS, parse_channel
from ..model.layers import Model
from ..model.layouts.setup import Engine, Setup, StateMode
from ..model.logs import read_log
from ..model.open import open_model, preset_names
from ..model.size import Size, size_of
from ..model.transfer import Transfer, transfer_table
from ..report.size import (
    agreement_lines,
    layer_rows,
    size_lines,
    transfer_lines,
    transfer_rows,
    transfer_sources,
)
from ..units import parse_bytes, parse_rate, parse_tokens
from .output import Json, write_columns, write_json

__all__ = ["app"]

app = App(name="size")

_DEPLOYMENT = Group("Deployment", sort_key=1)
_ENGINE = Group("What engines differ in", sort_key=2)
_CARRYING = Group("Carrying it", sort_key=3)
_CHECKING = Group("Checking it", sort_key=4)


@app.default
def run(
    config: str | None = None,
    *,
    engine: Annotated[Engine, Parameter(group=_DEPLOYMENT)] = "vllm",
    tp: Annotated[int, Parameter(group=_DEPLOYMENT)] = 1,
    pp: Annotated[int, Parameter(group=_DEPLOYMENT)] = 1,
    dcp: Annotated[int, Parameter(group=_DEPLOYMENT)] = 1,
    kv_dtype: Annotated[str, Parameter(group=_DEPLOYMENT)] = "auto",
    k_dtype: Annotated[str | None, Parameter(group=_DEPLOYMENT)] = None,
    v_dtype: Annotated[str | None, Parameter(group=_DEPLOYMENT)] = None,
    block_tokens: Annotated[int | None, Parameter(group=_DEPLOYMENT)] = None,
    memory: Annotated[str | None, Parameter(group=_DEPLOYMENT)] = None,
    context: Annotated[str | None, Parameter(group=_DEPLOYMENT)] = None,
    draft_layers: Annotated[int, Parameter(group=_DEPLOYMENT)] = 0,
    draft_tokens: Annotated[int | None, Parameter(group=_DEPLOYMENT)] = None,
    engine_version: Annotated[str | None, Parameter(group=_ENGINE)] = None,
    sequences: Annotated[int | None, Parameter(group=_ENGINE)] = None,
    streams: Annotated[int, Parameter(group=_ENGINE)] = 1,
    batch_tokens: Annotated[int | None, Parameter(group=_ENGINE)] = None,
    state_mode: Annotated[StateMode, Parameter(group=_ENGINE)] = "none",
    state_dtype: Annotated[str | None, Parameter(group=_ENGINE)] = None,
    block_align: Annotated[int | None, Parameter(group=_ENGINE)] = None,
    no_hybrid: Annotated[bool, Parameter(group=_ENGINE)] = False,
    swa_full: Annotated[bool, Parameter(group=_ENGINE)] = False,
    no_flash_attention: Annotated[bool, Parameter(group=_ENGINE)] = False,
    no_latent: Annotated[bool, Parameter(group=_ENGINE)] = False,
    shared: Annotated[bool, Parameter(group=_ENGINE)] = False,
    no_shared: Annotated[bool, Parameter(group=_ENGINE)] = False,
    params: Annotated[float | None, Parameter(group=_CARRYING)] = None,
    tflops: Annotated[float | None, Parameter(group=_CARRYING)] = None,
    channel: Annotated[list[str] | None, Parameter(group=_CARRYING)] = None,
    mapper: Annotated[str | None, Parameter(group=_CARRYING)] = None,
    assume: Annotated[Literal["dense"] | None, Parameter(group=_CHECKING)] = None,
    log: Annotated[list[str] | None, Parameter(group=_CHECKING)] = None,
    measure: Annotated[bool, Parameter(group=_CHECKING)] = False,
    json: Json = False,
) -> int:
    """What a model's KV cache weighs for an engine and a layout, and what that means.

    Two numbers: growing bytes per token and fixed bytes per request, per rank and in all; with --memory the
    blocks, tokens and longest context that fit, as the engine counts them. Sizes are computed from the
    config alone; a field that is missing is an error, and no class's default is assumed.

    Parameters
    ----------
    config
        A config.json, its folder, a GGUF file, or the name of a preset. With --measure a packaged model, a
        folder with weights or a hub id; none at all measures the default model and tiny random ones.
    engine
        Whose rules and counts.
    tp
        Tensor-parallel ranks.
    pp
        Pipeline stages (llama.cpp: devices that layers are split over).
    dcp
        Decode context parallel ranks, which divide tokens.
    kv_dtype
        auto, bf16, fp8, int8, q8_0, q4_0, nvfp4 and others; auto is the model's dtype (llama.cpp: f16).
    k_dtype
        dtype of K alone.
    v_dtype
        dtype of V alone.
    block_tokens
        Tokens of a block; an engine's own where not given.
    memory
        What a rank has for the cache, such as 37.42GiB.
    context
        The engine's longest context, such as 32Ki; the model's own where not given.
    draft_layers
        Attention layers of a draft or multi-token-prediction head.
    draft_tokens
        Tokens drafted at a time; one a draft layer where not given.
    engine_version
        Such as 0.20: vllm's line "GPU KV cache size" changed its meaning in 0.21.
    sequences
        Requests whose states are held: llama.cpp's -np, SGLang's max_mamba_cache_size.
    streams
        llama.cpp: buffers that sequences are split over; 1 is the unified cache.
    batch_tokens
        Tokens of one step, which windows hold too: max_num_batched_tokens, n_ubatch.
    state_mode
        vllm's mamba_cache_mode: none without prefix caching, align or all with it.
    state_dtype
        dtype of recurrent states, such as float32.
    block_align
        vllm: what the attention backend wants blocks to be multiples of (16; 64 with MLA).
    no_hybrid
        vllm without the hybrid cache manager: windows are kept as full attention.
    swa_full
        llama.cpp's --swa-full, and what ik_llama.cpp does: windows save nothing.
    no_flash_attention
        llama.cpp: V lies transposed and padded.
    no_latent
        llama.cpp, transformers: MLA keeps the expanded heads.
    shared
        Layers that share a cache keep none, whatever the engine's habit.
    no_shared
        They keep one each.
    params
        Weights that compute a token, such as 8.2e9, where config or preset does not say.
    tflops
        What the receiver really computes, in TFLOP/s, for seconds of prefill.
    channel
        A link of your own, such as lab=12.5GB/s; may be given again. Replaces the built-in ones.
    mapper
        A mapper to another model, in bytes it works through, such as 1TB/s.
    assume
        dense: compute the naive figure of an unknown architecture, marked as assumed.
    log
        An engine's log line, or several: does it fit, and what differs if not? Status 1 if not.
    measure
        Compare with what transformers really holds at two prefix lengths. Status 1 where it differs.
    """
    if measure:
        return _measure(config, json)
    if config is None:
        raise UsageError(
            f"no model: give a config.json, a folder, a GGUF file or one of {', '.join(preset_names())}"
        )
    if shared and no_shared:
        raise UsageError("--shared and --no-shared: give one of them")
    model = open_model(config, assume_dense=assume == "dense")
    setup = Setup(
        engine=engine,
        tp=tp,
        pp=pp,
        dcp=dcp,
        key_dtype=k_dtype or kv_dtype,
        value_dtype=v_dtype or kv_dtype,
        block_tokens=block_tokens,
        memory_bytes=None if memory is None else parse_bytes(memory, "--memory"),
        context=None if context is None else parse_tokens(context, "--context"),
        draft_layers=draft_layers,
        draft_tokens=draft_tokens,
        sequences=sequences,
        streams=streams,
        batch_tokens=batch_tokens,
        state_dtype=state_dtype,
        state_mode=state_mode,
        block_align=block_align,
        hybrid=not no_hybrid,
        full_window=swa_full,
        flash_attention=not no_flash_attention,
        latent=not no_latent,
        sharing=True if shared else False if no_shared else None,
        version=None if engine_version is None else _version(engine_version),
    )
    if log:
        return _check(model, setup, "\n".join(log), json)
    size = size_of(model, setup)
    transfer = None
    if size.context is not None:
        transfer = transfer_table(
            model,
            size.context,
            channels=[parse_channel(text) for text in channel] if channel else CHANNELS,
            codecs=CODECS,
            state_bytes=_states(size) * tp,
            parameters=_positive(params, "--params"),
            flop_per_second=None if tflops is None else (_positive(tflops, "--tflops") or 0.0) * 1e12,
            mapper_bytes_per_second=None if mapper is None else parse_rate(mapper, "--mapper"),
        )
    if json:
        write_json(_document(size, transfer))
    else:
        _print(size, transfer)
    return 0


def _print(size: Size, transfer: Transfer | None) -> None:
    for line in size_lines(size):
        print(line)
    print()
    write_columns(layer_rows(size.layers), right=(0, 2, 3, 4, 5, 6), indent="  ")
    if transfer is None:
        print("\nsay --context for the time that carrying it takes")
        return
    print()
    for line in transfer_lines(transfer):
        print(line)
    write_columns(transfer_rows(transfer), right=(1,), indent="  ")
    for line in transfer_sources(transfer):
        print(f"  {line}")


def _document(size: Size, transfer: Transfer | None) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(size)
    document["transfer"] = None if transfer is None else msgspec.to_builtins(transfer)
    document["layers"] = document.pop("layers")
    return document


def _check(model: Model, setup: Setup, text: str, json: bool) -> int:
    agreement = compare(model, setup, read_log(text))
    if json:
        write_json(agreement)
    else:
        for line in agreement_lines(agreement):
            print(line)
    return 0 if agreement.fits else 1


def _measure(name: str | None, json: bool) -> int:
    from ..measure.size.run import Measured, measure_model, measure_tiny

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    found: list[Measured] = []
    if name is not None:
        found.append(measure_model(name, say=say))
    else:
        from ..engines.transformers.packaged import DEFAULT_MODEL

        found += [measure_model(DEFAULT_MODEL, say=say), *measure_tiny()]
    if json:
        write_json([{**msgspec.to_builtins(one), "agrees": one.agrees} for one in found])
    else:
        rows = [("model", "kinds", "growing B", "measured", "fixed B", "measured", "")]
        rows += [
            (
                one.name,
                ", ".join(one.kinds),
                f"{one.growing_bytes_per_token:,}",
                f"{one.measured_growing_bytes_per_token:,.10g}",
                f"{one.fixed_bytes_per_request:,}",
                f"{one.measured_fixed_bytes_per_request:,.10g}",
                "agrees" if one.agrees else "DIFFERS",
            )
            for one in found
        ]
        write_columns(rows, right=(2, 3, 4, 5))
    return 0 if all(one.agrees for one in found) else 1


def _states(size: Size) -> int:
    return sum(layer.state_bytes or 0 for layer in size.layers)


def _positive(value: float | None, flag: str) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{flag}: {value} is not an amount; write a number above 0")
    return value


def _version(text: str) -> tuple[int, ...]:
    match = re.match(r"v?(\d+)\.(\d+)", text)
    if match is None:
        raise UsageError(f"--engine-version: cannot read {text!r}; write one such as 0.20")
    return int(match[1]), int(match[2])
