"""The pool refuses, hangs, crawls, dies, comes back empty or is full; the answers stay what they are."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvferry.cli.main import main
from kvferry.store.valkey import EmbeddedServer

from .conftest import SETTINGS, Pair, new_prompt, put_right
from .pools import FilesPool, ValkeyPool
from .served import Answer, Recipe, eventually, served

PATIENCE = 12.0
"""More than any timeout in the settings, less than the client's own."""


@dataclass
class Faulty:
    """A pair whose server may be hurt."""

    pair: Pair
    server: EmbeddedServer
    early: tuple[list[int], list[Answer]]
    """A prompt, and the answers of both replicas to it before there was any server."""

    def until_shared(self, prompt: list[int] | None = None) -> Answer:
        """Ask until B loads what A has published, helped by nobody."""
        prompt = prompt or new_prompt()
        for _ in eventually("B loads from the pool what A has published", 20.0):
            self.pair.a.ask(prompt)
            self.pair.b.forget()
            answer = self.pair.b.ask(prompt)
            if answer.path == "pool_hit":
                return answer
        raise AssertionError


@pytest.fixture(scope="module")
def hurt_and_healed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    url = f"valkey://127.0.0.1:{port}/0"
    recipe = Recipe(tiny, {**SETTINGS, "pool": url})
    with served(tmp_path_factory.mktemp("faulty"), {"A": recipe, "B": recipe}) as replicas:
        prompt = new_prompt()
        early = [replica.ask(prompt) for replica in replicas.values()]
        with EmbeddedServer(max_memory_bytes=64 << 20, port=port) as server:
            pair = Pair(replicas["A"], replicas["B"], ValkeyPool(url, port))
            yield Faulty(pair, server, (prompt, early))


@pytest.fixture
def faulty(hurt_and_healed: Faulty) -> Iterator[Faulty]:
    """The pair with its server up, before and after the test."""
    pool = hurt_and_healed.pair.pool
    assert isinstance(pool, ValkeyPool)
    put_right(hurt_and_healed.pair)
    hurt_and_healed.until_shared()
    yield hurt_and_healed
    hurt_and_healed.server.resume()
    hurt_and_healed.server.start()
    pool.say(b"CONFIG", b"SET", b"maxmemory", b"%d" % (64 << 20))
    pool.say(b"CONFIG", b"SET", b"maxmemory-policy", b"volatile-lru")


def during_a_load(faulty: Faulty, prompt: list[int], hurt: Callable[[], None]) -> Answer:
    """B's answer to a published prompt, when something happens to its server in the middle of the load."""
    faulty.pair.b.switch(bytes_per_second=20_000)
    faulty.pair.b.forget()
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(faulty.pair.b.ask(prompt)))
    asking.start()
    for _ in eventually("B loads"):
        if faulty.pair.b.state()["loads_in_flight"]:
            break
    hurt()
    asking.join(60)
    assert answers, "B never answered"
    return answers[0]


# -- refusing ----------------------------------------------------------------------------------------------


def test_without_a_server_replicas_start_and_compute(faulty: Faulty) -> None:
    _, early = faulty.early
    assert [(a.path, a.ledger) for a in early] == [("fallback", {"failed": 80, "partial_block": 4})] * 2


def test_a_server_that_comes_later_is_joined_without_a_restart(faulty: Faulty) -> None:
    prompt, early = faulty.early
    hit = faulty.until_shared(prompt)
    assert {hit.token_ids, *(a.token_ids for a in early)} == {hit.token_ids}
    for _ in eventually("both have joined"):
        if [replica.standing() for replica in faulty.pair.both] == ["joined", "joined"]:
            return


# -- hanging -----------------------------------------------------------------------------------------------


def test_a_server_that_hangs_costs_a_deadline_and_then_nothing(faulty: Faulty) -> None:
    prompt = new_prompt()
    first = faulty.pair.publish(prompt)
    faulty.server.pause()
    answers = []
    for _ in range(2):
        faulty.pair.b.forget()
        answers.append(faulty.pair.b.ask(prompt))
    assert [answer.path for answer in answers] == ["fallback"] * 2
    assert {answer.token_ids for answer in answers} == {first.token_ids}
    assert answers[0].seconds < PATIENCE


def test_a_server_that_went_on_is_used_again(faulty: Faulty) -> None:
    prompt = new_prompt()
    first = faulty.pair.publish(prompt)
    faulty.server.pause()
    faulty.pair.b.ask(prompt)
    faulty.server.resume()
    assert faulty.until_shared(prompt).token_ids == first.token_ids


def test_a_server_that_hangs_in_a_load_blocks_nobody(faulty: Faulty) -> None:
    prompt, other = new_prompt(), new_prompt()
    first = faulty.pair.publish(prompt)
    beside: list[Answer] = []

    def hurt() -> None:
        faulty.server.pause()
        beside.append(faulty.pair.b.ask(other))
        assert faulty.pair.b.state()["loads_in_flight"] == 1, "the load is over, so this has shown nothing"

    hung = during_a_load(faulty, prompt, hurt)
    assert beside[0].path == "fallback"
    assert hung.record.fallback == "late"
    assert hung.token_ids == first.token_ids
    assert hung.seconds < PATIENCE


# -- slow --------------------------------------------------------------------------------------------------


def test_a_load_over_a_slow_link_is_cut_off_and_what_arrived_is_used(faulty: Faulty) -> None:
    prompt = new_prompt()
    first = faulty.pair.publish(prompt)
    faulty.pair.b.switch(bytes_per_second=5_000)
    slow = faulty.pair.b.ask(prompt)
    assert slow.record.fallback == "late"
    assert 0 < slow.ledger["pool_hit"] < 80
    assert slow.ledger["pool_hit"] + slow.ledger["late"] == 80
    assert slow.token_ids == first.token_ids
    assert slow.seconds < PATIENCE


# -- killed and restarted ----------------------------------------------------------------------------------


def test_a_server_killed_in_a_load_costs_a_recompute(faulty: Faulty) -> None:
    prompt = new_prompt()
    first = faulty.pair.publish(prompt)
    cut = during_a_load(faulty, prompt, faulty.server.kill)
    assert cut.record.fallback == "failed"
    assert cut.token_ids == first.token_ids


def test_after_a_kill_requests_are_computed_and_after_a_restart_shared(faulty: Faulty) -> None:
    prompt = new_prompt()
    first = faulty.pair.publish(prompt)
    faulty.server.kill()
    faulty.pair.b.forget()
    gone = faulty.pair.b.ask(prompt)
    assert (gone.path, gone.token_ids) == ("fallback", first.token_ids)
    faulty.server.start()
    assert faulty.until_shared(prompt).token_ids == first.token_ids


def test_a_pool_that_came_back_empty_gets_its_probe_again(faulty: Faulty) -> None:
    """Without the probe, a stranger could join under our names."""
    faulty.server.kill()
    faulty.pair.a.ask(new_prompt())
    faulty.server.start()
    faulty.until_shared()
    for _ in eventually("the probe lies beside the blocks"):
        if any(name.endswith("/probe") for name in faulty.pair.pool.notes()):
            return


def test_a_restart_that_nobody_saw_loses_neither_answers_nor_the_probe(faulty: Faulty) -> None:
    prompt = new_prompt()
    first = faulty.pair.publish(prompt)
    faulty.server.kill()
    faulty.server.start()
    empty = faulty.pair.b.ask(prompt)
    assert empty.ledger == {"never_published": 80, "partial_block": 4}
    assert faulty.until_shared(prompt).token_ids == first.token_ids
    for _ in eventually("the probe lies beside the blocks"):
        if any(name.endswith("/probe") for name in faulty.pair.pool.notes()):
            return


# -- full --------------------------------------------------------------------------------------------------


def fill(faulty: Faulty, policy: bytes, share: float) -> None:
    """Give the server `share` of the room that it takes now."""
    pool = faulty.pair.pool
    assert isinstance(pool, ValkeyPool)
    used = next(
        int(line.partition(b":")[2])
        for line in pool.say(b"INFO", b"memory").split(b"\r\n")
        if line.startswith(b"used_memory:")
    )
    pool.say(b"CONFIG", b"SET", b"maxmemory-policy", policy)
    # So many that the least recently used is found among the few that there are.
    pool.say(b"CONFIG", b"SET", b"maxmemory-samples", b"64")
    pool.say(b"CONFIG", b"SET", b"maxmemory", b"%d" % int(share * used))


def test_a_full_pool_that_never_evicts_takes_nothing_more(faulty: Faulty) -> None:
    fill(faulty, b"noeviction", 0.5)
    prompt = new_prompt()
    answers = [faulty.pair.a.ask(prompt) for _ in range(3)]
    answers.append(faulty.pair.b.ask(prompt))
    assert len({answer.token_ids for answer in answers}) == 1
    assert not any(faulty.pair.pool.keys(answers[0].record))


def test_a_full_pool_that_never_evicts_is_still_read(faulty: Faulty) -> None:
    prompt = new_prompt()
    faulty.pair.publish(prompt)
    fill(faulty, b"noeviction", 0.5)
    for _ in range(2):
        faulty.pair.a.ask(new_prompt(16))
    faulty.pair.b.forget()
    assert faulty.pair.b.ask(prompt).path == "pool_hit"


def test_a_full_pool_that_evicts_takes_the_new_and_books_the_old_as_evicted(faulty: Faulty) -> None:
    pool = faulty.pair.pool
    old = new_prompt()
    first = faulty.pair.publish(old)
    for _ in range(5):
        faulty.pair.publish(new_prompt(200))
    fill(faulty, b"volatile-lru", 1.0)
    for _ in eventually("the old blocks are evicted", 30.0, pause=0.0):
        faulty.pair.publish(new_prompt())
        if not any(pool.keys(first.record)):
            break
    faulty.pair.b.forget()
    again = faulty.pair.b.ask(old)
    assert again.ledger == {"evicted": 80, "partial_block": 4}
    assert again.token_ids == first.token_ids


def test_a_full_directory_makes_room_within_its_capacity_and_books_what_went_as_evicted(
    over_files: Pair, files_pool: FilesPool
) -> None:
    pair = put_right(over_files)
    prompts = [new_prompt(500) for _ in range(6)]
    answers = [pair.publish(prompt) for prompt in prompts]
    assert sum(path.stat().st_size for path in files_pool.folder.glob("blocks/*/*")) <= 1 << 20
    assert pair.b.ask(prompts[-1]).path == "pool_hit"
    torn = [i for i, answer in enumerate(answers) if not all(pair.pool.keys(answer.record))]
    again = pair.b.ask(prompts[torn[0]])
    assert again.ledger["evicted"] > 0
    assert again.ledger.get("never_published", 0) == 0
    assert again.token_ids == answers[torn[0]].token_ids


def test_a_full_directory_holds_whole_blocks_only(over_files: Pair) -> None:
    for _ in range(3):
        over_files.publish(new_prompt(500))
    assert main(["store", "verify", over_files.pool.url]) == 0
