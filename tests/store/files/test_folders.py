"""Folders that are reached by another name, or lose a part while a tier is open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvferry.errors import ConfigError
from kvferry.store.files import FilesTier
from kvferry.store.tier import Found, Got, Put

from ..conftest import Blocks


def test_a_symbolic_link_and_its_folder_are_one_tier(tmp_path: Path, blocks: Blocks) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    by_link, by_name = FilesTier(link, ghost_keys=1000), FilesTier(folder, ghost_keys=1000)
    assert by_link.put([blocks.key(0)], [[blocks.payload(0)]], 5.0) == bytes([Put.STORED])
    assert by_name.put([blocks.key(0)], [[blocks.payload(0)]], 5.0) == bytes([Put.HELD])
    assert by_name.drop([blocks.key(0)], 5.0) == 1
    assert by_link.find([blocks.key(0)], 5.0) == bytes([Found.GHOST])


def test_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="cannot be used as a files tier"):
        FilesTier(link)


def test_somebody_who_deletes_the_blocks_deletes_the_blocks(tmp_path: Path, blocks: Blocks) -> None:
    tier = FilesTier(tmp_path, ghost_keys=1000)
    keys = [blocks.key(n) for n in range(3)]
    tier.put(keys, [[blocks.payload(n)] for n in range(3)], 5.0)
    for folder in (tmp_path / "blocks").iterdir():
        shutil.rmtree(folder)
    assert tier.find(keys, 5.0) == bytes([Found.ABSENT]) * 3
    assert tier.get(keys[:1], [[blocks.blank()]], 5.0) == bytes([Got.ABSENT])
    assert tier.put(keys, [[blocks.payload(n)] for n in range(3)], 5.0) == bytes([Put.STORED]) * 3
    assert tier.get(keys[:1], [[blocks.blank()]], 5.0) == bytes([Got.OK])
