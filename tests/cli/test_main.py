from __future__ import annotations

import subprocess
import sys

import pytest

from kvferry.cli import main as frame
from kvferry.errors import ConfigError, EngineError, KvferryError, pip_install

COMMANDS = (
    "size",
    "demo",
    "doctor",
    "trace",
    "plan",
    "why",
    "break-even",
    "report",
    "replica",
    "handoff",
    "store",
    "config",
)


def run(*words: str) -> int:
    return frame.main(words)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in shown] == []


def test_help_imports_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys; from kvferry.cli.main import main; main(['--help']);"
        "heavy = {'torch', 'transformers', 'numpy', 'aiohttp', 'yaml', 'kvferry.cli.break_even'};"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_module_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvferry", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("demos",), "did you mean 'demo'?"),
        (("zzz",), "there are size, demo, doctor"),
        (("break-even", "--bites", "3"), "--bytes"),
        (
            ("break-even", "--bytes", "256MiB", "--overhead", "4ms", "--recompute", "60"),
            "--recompute: '60' has no unit",
        ),
        (("config", "show", "--set", "margin=5ms"), "did you mean 'gate.margin'?"),
        (("config", "zzz"), 'config: Unknown command "zzz"'),
        (("plan",), "plan: say --trace (a trace with blocks, of any known format)"),
        (
            ("break-even",),
            "break-even: say --bytes (what would be loaded, such as 256MiB), --overhead and --rec",
        ),
        (("break-even", "--bytes", "1MiB", "--recompute=1s"), "break-even: say --overhead (lookup and prep"),
        (("plan", "--trace"), "plan: --trace has no value (a trace with blocks"),
        (("report",), "report: say RUN (a run directory)"),
        (("trace", "convert"), "trace convert: say FILE (a trace, or a folder of them) and OUT"),
        (("store", "sweep"), "store sweep: say POOL ("),
        (("store", "sweep", "x"), "store sweep: say --unread (how long"),
        (("break-even", "--bytes", "-5MiB"), "such as 256MiB); write --bytes=-5MiB"),
        (("size", "--tp"), "size: --tp has no value (tensor-parallel ranks); write one behind it"),
        (("size", "--tp", "x"), "size: Invalid value for --tp"),
        (("size", "a", "b"), "size: 'b' is too much"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvferry: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize(
    ("raised", "status"),
    [(ConfigError("a\nb"), 2), (EngineError("gone"), 1), (KvferryError("x"), 1), (KeyboardInterrupt(), 130)],
)
def test_an_error_decides_the_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, status: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(frame, "app", fail)
    assert run("doctor") == status
    assert capsys.readouterr().err.count("\n") == 1


def test_what_a_terminal_would_obey_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KvferryError("bad\x1b[31m\x00 name")

    monkeypatch.setattr(frame, "app", fail)
    assert run("doctor") == 1
    assert capsys.readouterr().err == "kvferry: bad\\x1b[31m\\x00 name\n"


def test_a_missing_extra_names_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ImportError("cannot import") from ModuleNotFoundError("No module", name="torch.nn")

    monkeypatch.setattr(frame, "app", fail)
    assert run("replica") == 2
    assert pip_install("transformers") in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ImportError("cannot import") from ModuleNotFoundError("No module", name="kvferry.nonsense")

    monkeypatch.setattr(frame, "app", fail)
    with pytest.raises(ImportError):
        run("replica")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert run(name, "--help") == 0
    assert f"kvferry {name}" in capsys.readouterr().out
