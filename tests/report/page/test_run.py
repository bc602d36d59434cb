from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvferry.errors import FormatError, UsageError
from kvferry.gate.facts import Reason
from kvferry.report.page import run_page
from kvferry.report.page.content import Page, Section
from kvferry.runs.decisions import encode_record

from .runs import a_demo, a_killed_run, a_record, a_summary, a_vllm_demo

EXAMPLE = Path(__file__).parents[3] / "docs" / "example-run"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return run_page(a_demo(tmp_path_factory.mktemp("runs") / "demo"))


@pytest.fixture(scope="module")
def vllm_page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return run_page(a_vllm_demo(tmp_path_factory.mktemp("runs") / "v"))


def section(page: Page, name: str) -> Section:
    (found,) = [section for section in page.sections if section.name == name]
    return found


def test_the_sentences_of_a_demo_come_first(page: Page) -> None:
    assert page.verdict == a_summary().sentences


def test_the_order_of_questions(page: Page) -> None:
    assert [section.name for section in page.sections] == [
        "times",
        "ledger",
        "predictions",
        "turn",
        "policies",
        "checks",
    ]


def test_distributions_repeat_the_summary(page: Page) -> None:
    table = section(page, "times").table
    assert table is not None
    assert table.rows == (
        ("local hit", "3", "300 ms", "320 ms (max)"),
        ("pool hit", "3", "400 ms", "420 ms (max)"),
        ("declined", "1", "5.50 s", "5.50 s (max)"),
        ("fallback", "1", "6.10 s", "6.10 s (max)"),
        ("cold prefill", "3", "6.00 s", "6.20 s (max)"),
    )


def test_requests_that_measure_the_link_are_no_points(page: Page) -> None:
    (figure,) = section(page, "times").figures
    drawn = {trace["name"]: len(trace["x"]) for trace in figure.chart["data"] if trace["mode"] == "markers"}
    assert drawn == {"local hit": 3, "pool hit": 3, "declined": 1, "fallback": 1, "cold prefill": 3}


def test_points_that_the_summary_did_not_count_are_told(tmp_path: Path) -> None:
    arms = {**a_summary().arms, "cold": a_summary().arms["declined"]}
    told = section(run_page(a_demo(tmp_path, a_summary(arms=arms))), "times").note
    assert "do not number what the summary counted: cold prefill" in told


def test_requests_left_out_are_counted(page: Page) -> None:
    assert "11 of 12 requests are shown; left out: 1 that measured the link." in section(page, "times").note


def test_a_killed_run_counts_them_too() -> None:
    told = section(run_page(EXAMPLE), "times").note
    assert "2 of 3 requests are shown; left out: 1 that loaded over a throttled link." in told


def test_lines_that_do_not_parse_are_left_out_and_told(tmp_path: Path) -> None:
    with (a_killed_run(tmp_path) / "decisions.jsonl").open("a") as file:
        file.write("garbage\n")
    told = " ".join(run_page(tmp_path).verdict)
    assert "1 of 2 requests became ready from the pool." in told
    assert "Left out: 1 line that did not parse, the first" in told
    assert "decisions.jsonl:3" in told


def test_a_file_of_which_no_line_parses_is_an_error(tmp_path: Path) -> None:
    (a_killed_run(tmp_path) / "decisions.jsonl").write_text("garbage\n")
    with pytest.raises(FormatError, match=r"no line parses: .*decisions\.jsonl:1"):
        run_page(tmp_path)


def test_one_request_is_no_plural(tmp_path: Path) -> None:
    (a_killed_run(tmp_path) / "decisions.jsonl").write_bytes(
        encode_record(a_record("A", "cold", 1.0)) + b"\n"
    )
    assert run_page(tmp_path).subtitle.startswith("1 request · replica A ·")


def test_choices_of_a_forced_policy_are_told_apart(tmp_path: Path) -> None:
    forced = a_record("A-0003", "pool_hit", 0.4, arm="policy always", lost=2.0)
    assert forced.decision is not None
    decision = msgspec.structs.replace(forced.decision, reason=Reason.ALWAYS)
    with (a_killed_run(tmp_path) / "decisions.jsonl").open("ab") as file:
        file.write(encode_record(msgspec.structs.replace(forced, decision=decision)) + b"\n")
    page = run_page(tmp_path)
    (tile,) = [tile for tile in page.tiles if tile.label == "Lost by wrong decisions"]
    table = section(page, "predictions").table
    assert (tile.value, tile.note) == ("500 ms", "of the rule; forced choices are not among them")
    assert table is not None
    assert table.columns[-1] == "lost, forced choices too"
    assert table.rows[0][-1] == "2.50 s"


class TestADemoWithVllm:
    def test_it_has_the_layout_of_a_demo(self, vllm_page: Page) -> None:
        assert vllm_page.title == "Demo run v with vLLM"
        assert vllm_page.tone == "good"
        assert [section.name for section in vllm_page.sections] == [
            "times",
            "ledger",
            "predictions",
            "checks",
            "metrics",
        ]

    def test_its_verdict_is_in_words(self, vllm_page: Page) -> None:
        assert vllm_page.verdict == (
            "A prompt that the other server had computed gave its first token after 500 ms, 20.0 times "
            "faster than a cold prefill (10.0 s).",
            "That is 400 ms more than a hit of the server's own prefix cache.",
            "All paths gave the same greedy answers.",
        )

    def test_its_arms_are_the_distributions(self, vllm_page: Page) -> None:
        table = section(vllm_page, "times").table
        assert table is not None
        assert [row[0] for row in table.rows] == [
            "local hit",
            "pool hit",
            "handed over",
            "told to recompute",
            "load fails half-way",
            "pool killed",
            "cold prefill",
        ]

    def test_prompts_that_were_only_computed_are_counted(self, vllm_page: Page) -> None:
        assert "14 of 16 requests are shown; left out: 2 that gave no client a first token." in (
            section(vllm_page, "times").note
        )

    def test_its_checks_are_in_words(self, vllm_page: Page) -> None:
        assert [check.name for check in section(vllm_page, "checks").checks] == [
            "Every block that was to be shared reached the pool",
            "A cold prompt was computed whole",
        ]

    def test_a_hand_off_is_no_hit_anywhere(self, vllm_page: Page) -> None:
        (tile,) = [tile for tile in vllm_page.tiles if tile.label == "From a cache"]
        assert tile.value == "24.0%"
        assert tile.note == "of 1.60 k prompt tokens; 12.0% more were handed over"
        assert section(vllm_page, "ledger").lead.startswith(
            "24.0% came from a cache, 12.0% were handed over;"
        )

    def test_its_counters_are_folded(self, vllm_page: Page) -> None:
        found = section(vllm_page, "metrics")
        assert found.table is None
        assert found.more is not None
        assert found.more.columns == ("counter", "A", "B")
        assert len(found.more.rows) == 100

    def test_a_killed_one_has_its_arms_and_no_checks(self, tmp_path: Path) -> None:
        page = run_page(a_vllm_demo(tmp_path, finished=False))
        assert [section.name for section in page.sections] == ["times", "ledger", "predictions"]
        assert page.tone == "plain"


def test_predicted_and_actual_stand_apart_for_loads_and_computes(page: Page) -> None:
    (figure,) = section(page, "predictions").figures
    drawn = {trace["name"]: (trace["x"], trace["y"]) for trace in figure.chart["data"][1:]}
    assert drawn == {
        "loaded": ([pytest.approx(0.099)] * 3, [0.11] * 3),
        "computed": ([5.0], [5.2]),
    }


def test_the_books_balance(page: Page) -> None:
    found = section(page, "ledger")
    assert found.note == "The parts sum to the 1,200 prompt tokens."


def test_checks_that_hold_are_good(page: Page) -> None:
    assert page.tone == "good"


def test_a_check_that_does_not_hold_is_told_first(tmp_path: Path) -> None:
    failed = a_summary(checks={"outputs_identical": False, "recovered": True}, differing=("inspect/0",))
    page = run_page(a_demo(tmp_path, failed))
    assert page.tone == "bad"
    assert section(page, "checks").lead == "1 of 2 did not hold. Answered in more than one way: inspect/0."


def test_a_killed_run_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    page = run_page(a_killed_run(tmp_path))
    assert page.verdict == (
        "Loads took 4.89 s less than computing was predicted to.",
        "1 of 2 requests became ready from the pool.",
        "Decisions that turned out wrong lost 500 ms, as the other choice was predicted.",
        "There is no summary.json: the run did not come to its end, or was no experiment.",
    )


def test_a_killed_demo_leaves_its_link_out_as_well(tmp_path: Path) -> None:
    (a_demo(tmp_path) / "summary.json").unlink()
    (figure,) = section(run_page(tmp_path), "times").figures
    drawn = {trace["name"]: len(trace["x"]) for trace in figure.chart["data"] if trace["mode"] == "markers"}
    assert drawn["pool hit"] == 3


def test_the_example_run_has_a_page() -> None:
    assert "predictions" in [section.name for section in run_page(EXAMPLE).sections]


def test_another_run_stands_beside(tmp_path: Path) -> None:
    faster = a_summary(bytes={"published": 2**30, "read": 2**30, "never_read": 0})
    page = run_page(a_demo(tmp_path / "a", faster), beside=a_demo(tmp_path / "b"))
    found = section(page, "beside")
    assert found.lead == "A repetition: the runs differ in nothing that was recorded."
    assert found.table is not None
    assert ("bytes.read", "1.07374e+09", "2.14748e+09", "0.500") in found.table.rows


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    (a_killed_run(tmp_path) / "decisions.jsonl").unlink()
    with pytest.raises(UsageError, match=r"neither decisions\.jsonl nor summary\.json"):
        run_page(tmp_path)


def test_a_summary_of_a_demo_that_does_not_parse_is_named(tmp_path: Path) -> None:
    path = a_demo(tmp_path) / "summary.json"
    path.write_text('{"arms": 1, "flips": [], "policies": {}}')
    with pytest.raises(FormatError, match=r"summary\.json: not the summary of a demo"):
        run_page(tmp_path)


def test_the_figures_of_another_command_are_a_table(tmp_path: Path) -> None:
    path = a_demo(tmp_path) / "summary.json"
    path.write_text('{"ramp": {"rate": 4.5, "ok": true}}')
    table = section(run_page(tmp_path), "summary").table
    assert table is not None
    assert table.rows == (("ramp.rate", "4.5"), ("ramp.ok", "True"))


def test_many_figures_of_another_command_are_folded(tmp_path: Path) -> None:
    path = a_demo(tmp_path) / "summary.json"
    path.write_bytes(msgspec.json.encode({f"figure_{n}": n for n in range(50)}))
    found = section(run_page(tmp_path), "summary")
    assert found.table is None
    assert found.more is not None
    assert len(found.more.rows) == 50


def test_requests_of_another_kind_are_no_points(tmp_path: Path) -> None:
    (a_killed_run(tmp_path) / "decisions.jsonl").unlink()
    (tmp_path / "requests.jsonl").write_text('{"handoff_id": "ask", "total_seconds": 1.5}\n')
    (tmp_path / "summary.json").write_text('{"taken": 1}')
    assert [section.name for section in run_page(tmp_path).sections] == ["summary"]


def test_a_run_of_hand_offs_says_so(tmp_path: Path) -> None:
    (a_killed_run(tmp_path) / "decisions.jsonl").write_bytes(
        encode_record(a_record("h-1", "handoff", 0.4)) + b"\n"
    )
    assert run_page(tmp_path).verdict[0] == "1 of 1 request became ready from a hand-off."


def test_a_client_s_line_that_does_not_parse_is_left_out(tmp_path: Path) -> None:
    with (a_demo(tmp_path) / "requests.jsonl").open("a") as file:
        file.write("garbage\n")
    assert "requests.jsonl:13" in run_page(tmp_path).verdict[-1]
