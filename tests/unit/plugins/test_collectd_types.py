"""Types: the format of types.db(5), what is built in, and what a bad line costs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.base import PluginError
from plugins.collectd.types_db import COMMON_TYPES, DataSource, SourceKind, load_types, parse_types

NOWHERE = Path("/nowhere/types.db")


def test_the_common_types_are_there_without_collectd() -> None:
    types = load_types([], system=NOWHERE)
    assert types["gauge"] == (DataSource("value", SourceKind.GAUGE, None, None),)
    assert [source.name for source in types["if_octets"]] == ["rx", "tx"]


def test_the_common_types_are_valid() -> None:
    assert parse_types(COMMON_TYPES)[1] == []


@pytest.mark.parametrize(
    "line",
    [
        "pair  rx:DERIVE:0:U, tx:gauge:-1.5:4e9",
        "pair\trx:DERIVE:0:U tx:GAUGE:-1.5:4e9",
        "  pair rx:DERIVE:0:U,tx:GAUGE:-1.5:4e9,  ",
    ],
)
def test_data_sources_are_set_apart_by_commas_or_spaces(line: str) -> None:
    types, faults = parse_types(line)
    assert faults == []
    assert types["pair"] == (
        DataSource("rx", SourceKind.DERIVE, 0.0, None),
        DataSource("tx", SourceKind.GAUGE, -1.5, 4e9),
    )


def test_comments_and_empty_lines_say_nothing() -> None:
    assert parse_types("# a comment\n\n   \n#x value:GAUGE:U:U\n") == ({}, [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("lonely", "no data source"),
        ("short value:GAUGE:0", "is not a data source"),
        ("odd value:SPEED:0:U", "has the kind 'SPEED'"),
        ("bound value:GAUGE:low:U", "has the bound 'low'"),
        ("twice value:GAUGE:0:U value:GAUGE:0:U", "two data sources have the same name"),
    ],
)
def test_an_invalid_line_is_reported_and_the_others_are_accepted(line: str, reason: str) -> None:
    types, faults = parse_types(f"good value:GAUGE:U:U\n{line}\n")
    assert list(types) == ["good"]
    assert len(faults) == 1
    assert faults[0].startswith("line 2: ")
    assert reason in faults[0]


def test_a_file_of_ones_own_goes_before_the_systems(tmp_path: Path) -> None:
    system, own = tmp_path / "types.db", tmp_path / "own.db"
    system.write_text("gauge value:GAUGE:0:1\nonly_here value:GAUGE:0:1\n", encoding="utf-8")
    own.write_text("gauge value:GAUGE:0:2\n", encoding="utf-8")
    types = load_types([own], system=system)
    assert types["gauge"][0].maximum == 2.0
    assert "only_here" in types


def test_a_file_that_is_not_there_is_a_plugin_error_that_names_it() -> None:
    with pytest.raises(PluginError, match=r"types_db: /nowhere/types.db can't be read"):
        load_types([NOWHERE], system=NOWHERE)


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    types, faults = parse_types(text)
    assert len(types) + len(faults) <= len(text.splitlines())
