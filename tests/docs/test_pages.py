"""Links resolve, names exist, the two READMEs say the same, and the pages speak of this project alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvferry.cli.main import app
from kvferry.gate.facts import Reason
from kvferry.serving.server import make_app
from kvferry.store.open import SCHEMES
from kvferry.telemetry.names import METRICS

from .pages import ROOT, Page, pages

SOURCE = ROOT / "src" / "kvferry"
README = next(page for page in pages() if page.path == ROOT / "README.md")
RUSSIAN = next(page for page in pages() if page.path == ROOT / "README.ru.md")
FORBIDDEN = (
    r"\bTODO\b|\bFIXME\b|\bTBD\b",
    r"(?i)\b(blazing|cutting[- ]edge|state[- ]of[- ]the[- ]art|seamless|revolutionary|effortless)",
    r"(?i)coming soon|в ближайшее время",
    r"pythonhosted|pypi\.org|download\.pytorch|huggingface\.co",
    r"(?<![\w.])/(?:work|root|home)/",
    r"(?i)\b(?:co)?pilot\b|language model wrote|as an ai\b",
)
"""Promises, noise, and places that are nobody's business."""

by_page = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.path.relative_to(ROOT)))


@by_page
def test_links_resolve(page: Page) -> None:
    known = {other.path: other.anchors for other in pages()}
    broken = []
    for link in page.links:
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        if not path.exists() or (anchor and anchor not in known.get(path, ())):
            broken.append(link)
    assert broken == []


@by_page
def test_no_forbidden_words(page: Page) -> None:
    assert [found for word in FORBIDDEN for found in re.findall(word, page.text)] == []


@by_page
def test_sources_named_exist(page: Page) -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md|sh|json))`", page.text))
    missing = [name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()]
    assert missing == []


@by_page
def test_metrics_named_exist(page: Page) -> None:
    # The last three open a line of a file, and say what it is.
    known = {metric.name for metric in METRICS} | {"kvferry_trace", "kvferry_gateway", "kvferry_vllm_events"}
    named = set(re.findall(r"\bkvferry_[a-z_]*[a-z](?![a-z_]*\*)", page.text))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} <= known


@by_page
def test_routes_named_exist(page: Page) -> None:
    class Controls:
        pass

    routes = {route.path for route in make_app(object(), Controls()).routes}  # type: ignore[arg-type,attr-defined]
    named = set(re.findall(r"(?:GET |POST |http://[\w.]+:\d+)(/[\w/]+)", page.text)) - {"/v1"}
    assert named <= routes


@by_page
def test_pools_named_exist(page: Page) -> None:
    # The dollar keeps regular expressions in code out.
    named = set(re.findall(r"\b([a-z0-9]+)://(?!\S*\$)", page.text))
    assert named <= {*SCHEMES, "http", "https", "shm", "tcp"}


def test_the_tree_names_every_room() -> None:
    tree = next(block.text for block in README.blocks if block.text.startswith("src/kvferry/\n"))
    named = set(re.findall(r"^  ([a-z_]+(?:/|\.py))", tree, re.MULTILINE))
    rooms = {f"{path.name}/" for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    modules = {path.name for path in SOURCE.glob("*.py") if not path.name.startswith("__")}
    assert named == rooms | modules


def test_the_architecture_names_every_room() -> None:
    (page,) = [page for page in pages() if page.path.name == "ARCHITECTURE.md"]
    diagram = next(block.text for block in page.blocks if block.text.startswith("cli"))
    named = set(re.findall(r"[a-z]+", " ".join(line[:48] for line in diagram.splitlines())))
    assert named == {path.stem for path in SOURCE.iterdir() if not path.name.startswith(("__", "py."))}


def commands(page: Page) -> set[str]:
    return set(re.findall(r"^\| `kvferry ([a-z-]+)` \|", page.text, re.MULTILINE))


def test_the_readme_names_every_command() -> None:
    assert commands(README) == {name for name in app if not name.startswith("-")}


def test_both_readmes_name_the_same_commands() -> None:
    assert commands(RUSSIAN) == commands(README)


@pytest.mark.parametrize(
    "words",
    ["make demo", "make test", "TORCH_INDEX", "q95(T_load) + interference + margin < q50(T_recompute)"],
)
def test_both_readmes_say(words: str) -> None:
    assert words in README.text
    assert words in RUSSIAN.text


def test_every_reason_is_explained() -> None:
    page: Path = ROOT / "docs" / "reading-a-decision.md"
    text = page.read_text(encoding="utf-8")
    assert [reason.value for reason in Reason if f"`{reason.value}`" not in text] == []


def test_every_page_is_listed() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    missing = [
        p.name for p in (ROOT / "docs").glob("*.md") if f"({p.name})" not in index and p.stem != "README"
    ]
    assert missing == []


def test_every_example_is_listed() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in (ROOT / "examples").glob("*.py") if f"`{path.name}`" not in index] == []
