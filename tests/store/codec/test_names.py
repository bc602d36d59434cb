from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from kvferry.config import Config
from kvferry.config.schema import CodecName
from kvferry.errors import ConfigError
from kvferry.keys.namespace import Namespace, differences
from kvferry.store.codec import CODECS, BlockLayout, bytes_per_token, kv_dtype_name, open_codec

SMOLLM2 = BlockLayout(30, 3, 32, 64, "float32")


def namespace(codec: str) -> Namespace:
    return Namespace(
        model="m",
        weights_revision="r",
        tokenizer="t",
        attention="a",
        position="p",
        implementation="i",
        kv_dtype=kv_dtype_name("float32", codec),
        layout="l",
        block_tokens=32,
    )


def test_the_setting_knows_the_codecs_that_there_are() -> None:
    assert get_args(CodecName) == tuple(CODECS)


def test_blocks_are_exact_unless_the_settings_say_otherwise() -> None:
    assert Config().codec == "raw"


def test_exact_blocks_keep_the_name_of_their_type() -> None:
    assert kv_dtype_name("bfloat16", "raw") == "bfloat16"


def test_lossy_blocks_name_the_type_and_the_codec() -> None:
    assert kv_dtype_name("float32", "int8") == "float32+int8"


@pytest.mark.parametrize("one", CODECS)
@pytest.mark.parametrize("other", CODECS)
def test_codecs_share_no_namespace(one: str, other: str) -> None:
    same = namespace(one).digest() == namespace(other).digest()
    assert same is (one == other)


def test_the_field_that_differs_is_named() -> None:
    assert differences(namespace("raw"), namespace("int8")) == ("kv_dtype",)


@pytest.mark.parametrize(
    "use",
    [
        lambda: kv_dtype_name("float32", "int5"),
        lambda: open_codec("int5", SMOLLM2),
        lambda: bytes_per_token("int5", SMOLLM2),
    ],
)
def test_an_unknown_codec_is_refused(use: Any) -> None:
    with pytest.raises(ConfigError, match=r"'int5'.*raw, fp8, int8, int4"):
        use()


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="codec"):
        msgspec.structs.replace(Config(), codec="int5")


@pytest.mark.parametrize(("name", "expected"), [("raw", 46080), ("int8", 12060), ("int4", 7200)])
def test_the_bytes_of_a_token(name: str, expected: int) -> None:
    assert bytes_per_token(name, SMOLLM2) == expected


def test_a_fraction_of_a_byte_counts_as_one() -> None:
    assert bytes_per_token("fp8", BlockLayout(1, 1, 32, 64, "float32")) == 2 * 64 + 1
