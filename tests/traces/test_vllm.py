"""KV events: decoding, names of our own, recording over a socket, and the requests that they tell of."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from reading import read

from kvferry.errors import FormatError, InputError
from kvferry.traces import open_trace
from kvferry.traces.vllm import Cleared, EventRecorder, Rekeying, Removed, Stored, decode_batch, record_events

SECRET = bytes(range(32))


def stored(hashes: list[int], tokens: list[int], parent: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens,
        "block_size": len(tokens) // len(hashes), **more,
    }  # fmt: skip


def message(seconds: float, *events: Any, rank: int = 0) -> bytes:
    return msgspec.msgpack.encode([seconds, list(events), rank])


class TestDecoding:
    def test_maps(self) -> None:
        batch = decode_batch(
            message(
                5.0, stored([1, 2], [7, 8, 9, 10], medium="gpu", lora_name="l"), {"type": "AllBlocksCleared"}
            )
        )
        first, second = batch.events
        assert isinstance(first, Stored)
        assert (first.hashes, first.block_tokens, first.medium, first.adapter) == ((1, 2), 2, "GPU", "l")
        assert isinstance(second, Cleared)

    def test_arrays_of_older_releases(self) -> None:
        batch = decode_batch(
            message(5.0, ["BlockStored", [b"x"], None, [7, 8], 2, None], ["BlockRemoved", [b"x"]])
        )
        assert isinstance(batch.events[0], Stored)
        assert batch.events[1] == Removed((b"x",), "GPU")

    def test_unknown_events_are_left_out(self) -> None:
        assert decode_batch(message(5.0, {"type": "SomethingNew"})).events == ()

    @pytest.mark.parametrize(
        "payload",
        [b"\xc1", msgspec.msgpack.encode(3), msgspec.msgpack.encode([1.0, 2]), message(1.0, 3),
         message(1.0, {"type": "BlockStored", "block_hashes": [1]}), message(1.0, stored([1, 2], [1, 2, 3]))],
    )  # fmt: skip
    def test_what_is_no_batch(self, payload: bytes) -> None:
        with pytest.raises(FormatError):
            decode_batch(payload)


def event(hashes: list[int], tokens: list[int], parent: int | None = None, **more: Any) -> Stored:
    (found,) = decode_batch(message(0.0, stored(hashes, tokens, parent, **more))).events
    assert isinstance(found, Stored)
    return found


class TestRekeying:
    def test_two_engines_with_random_hashes_agree(self) -> None:
        one, other = Rekeying(SECRET), Rekeying(SECRET)
        _, first = one.stored(event([11, 12], [1, 2, 3, 4]))
        _, begun = other.stored(event([901], [1, 2]))
        _, second = other.stored(event([902], [3, 4], parent=901))
        assert first == begun + second

    def test_tokens_adapter_extra_keys_and_secret_all_count(self) -> None:
        keys = [
            Rekeying(SECRET).stored(event([1], [1, 2]))[1],
            Rekeying(SECRET).stored(event([1], [1, 3]))[1],
            Rekeying(SECRET).stored(event([1], [1, 2], lora_name="l"))[1],
            Rekeying(SECRET).stored(event([1], [1, 2], extra_keys=[["salt"]]))[1],
            Rekeying(bytes(32)).stored(event([1], [1, 2]))[1],
        ]
        assert len({key[0] for key in keys}) == 5

    def test_a_parent_from_before_the_recording_keeps_its_children_together(self) -> None:
        keys = Rekeying(SECRET)
        assert keys.stored(event([2], [1, 2], parent=1)) == keys.stored(event([2], [1, 2], parent=1))
        assert keys.orphans == 1

    def test_a_short_secret_is_refused(self) -> None:
        with pytest.raises(InputError, match="16 to 64 bytes"):
            Rekeying(b"short")


def recorded(path: Path, *payloads: bytes) -> Path:
    with EventRecorder(path, SECRET) as recorder:
        for number, payload in enumerate(payloads):
            recorder.message(number, payload)
    return path


def test_token_ids_are_never_written(tmp_path: Path) -> None:
    path = recorded(tmp_path / "e.jsonl", message(5.0, stored([1], [123_456, 654_321])))
    assert not any(word in path.read_text() for word in ("123456", "654321", "token_ids"))


def test_one_request_of_several_steps(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "e.jsonl",
        message(5.0, stored([1, 2], [1, 2, 3, 4])),
        message(5.5, stored([3, 4], [5, 6, 7, 8], parent=2)),
        message(6.0, stored([5], [9, 10], parent=4)),
        message(16.5, stored([6], [11, 12], parent=5)),
    )
    trace = open_trace(path, strict=True)
    (one,) = read(trace)
    assert (trace.format, trace.block_tokens) == ("vllm-events", 2)
    assert (one.input_tokens, one.output_tokens) == (8, 4)
    assert any("lower bound" in caveat for caveat in trace.caveats)


def test_a_later_prompt_with_the_same_beginning(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "e.jsonl",
        message(5.0, stored([1, 2], [1, 2, 3, 4])),
        message(9.0, stored([3, 4], [5, 6, 7, 8], parent=2)),
        message(20.0, {"type": "BlockRemoved", "block_hashes": [2]}),
        message(30.0, stored([2], [3, 4], parent=1)),
    )
    assert [one.blocks for one in read(open_trace(path))] == [(0, 1), (0, 1, 2, 3), (0, 1)]


def test_a_cached_beginning_and_its_rest_are_one_prompt(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "e.jsonl",
        message(5.0, stored([1, 2], [1, 2, 3, 4])),
        message(30.0, stored([1, 2], [1, 2, 3, 4]), stored([3], [5, 6], parent=2)),
    )
    assert [(one.blocks, one.output_tokens) for one in read(open_trace(path))] == [
        ((0, 1), 0),
        ((0, 1, 2), 0),
    ]


def test_two_prompts_that_end_alike_are_two(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "e.jsonl",
        message(5.0, stored([1, 2], [1, 2, 3, 4])),
        message(5.1, stored([1, 2], [1, 2, 3, 4])),
    )
    assert [one.blocks for one in read(open_trace(path))] == [(0, 1), (0, 1)]


def test_another_group_stores_the_same_tokens_and_is_left_out(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "e.jsonl",
        message(5.0, stored([1], [1, 2], group_idx=0), stored([1], [1, 2], group_idx=1)),
    )
    assert len(read(open_trace(path))) == 1


def test_a_session_is_kept_as_a_hash(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "e.jsonl",
        message(5.0, stored([1], [1, 2], session_id="ada@example.org")),
        message(9.0, stored([2], [3, 4], session_id="ada@example.org")),
    )
    seen = read(open_trace(path))
    assert "ada" not in path.read_text()
    assert len({one.fields for one in seen}) == 1


def test_other_media_are_no_requests(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "e.jsonl",
        message(5.0, stored([1], [1, 2])),
        message(6.0, stored([1], [1, 2], medium="CPU")),
    )
    assert len(read(open_trace(path))) == 1


def test_lost_batches_are_told(tmp_path: Path) -> None:
    with EventRecorder(tmp_path / "e.jsonl", SECRET) as recorder:
        recorder.message(0, message(5.0, stored([1], [1, 2])))
        recorder.message(4, message(6.0, stored([2], [3, 4])))
        recorder.message(0, message(7.0, stored([3], [5, 6])))
    assert recorder.lost == 3
    trace = open_trace(tmp_path / "e.jsonl")
    read(trace)
    assert "3 batches of events were lost" in trace.problems.first[0].message


def test_a_message_that_does_not_parse_does_not_end_the_recording(tmp_path: Path) -> None:
    with EventRecorder(tmp_path / "e.jsonl", SECRET) as recorder:
        recorder.message(0, b"\xc1")
        recorder.message(1, message(6.0, stored([2], [3, 4])))
    assert (recorder.refused, recorder.events) == (1, 1)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps({"kvferry_vllm_events": 2, "block_tokens": 2}) + "\n")
    with pytest.raises(FormatError, match="version 2"):
        open_trace(path)


def test_over_a_socket(tmp_path: Path) -> None:
    zmq = pytest.importorskip("zmq")
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.setsockopt(zmq.LINGER, 0)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    done = threading.Event()
    with EventRecorder(tmp_path / "e.jsonl", SECRET) as recorder:
        thread = threading.Thread(
            target=record_events,
            args=(f"tcp://127.0.0.1:{port}", recorder, done.is_set),
            kwargs={"poll_seconds": 0.02},
        )
        thread.start()
        try:
            # A subscriber that is not connected yet hears nothing: say it again until it does.
            for number in range(500):
                publisher.send_multipart(
                    (b"", number.to_bytes(8, "big"), message(5.0 + number, stored([1], [1, 2])))
                )
                if recorder.events:
                    break
                done.wait(0.02)
        finally:
            done.set()
            thread.join(10)
            publisher.close()
            context.term()
    assert recorder.events >= 1
    assert len(read(open_trace(tmp_path / "e.jsonl"))) >= 1
