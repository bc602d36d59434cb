from __future__ import annotations

from kvferry.config import child_environment

OURS = {"PATH": "/bin", "KVFERRY_TTL": "1h", "KVFERRY_CONFIG": "/k.yaml", "KVFERRY_CACHE_DIR": "/c"}


def test_a_child_inherits_everything() -> None:
    assert child_environment(env=OURS) == OURS


def test_an_experiment_hides_its_users_settings_but_not_the_cache_folder() -> None:
    assert child_environment(env=OURS, settings=False) == {"PATH": "/bin", "KVFERRY_CACHE_DIR": "/c"}


def test_changes_are_made_last() -> None:
    changed = child_environment({"KVFERRY_TTL": "2h", "X": "1"}, env=OURS, settings=False)
    assert (changed["KVFERRY_TTL"], changed["X"]) == ("2h", "1")
