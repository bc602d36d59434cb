from __future__ import annotations

from kvferry import __version__
from kvferry.runs import describe_machine, versions


def test_this_machine_has_a_core_and_a_name() -> None:
    machine = describe_machine()
    assert machine.cores >= 1
    assert machine.cpu


def test_versions_name_kvferry() -> None:
    assert versions()["kvferry"] == __version__


def test_a_part_that_is_not_installed_is_absent() -> None:
    assert all(versions().values())
