"""The plain-text protocol: what lines say, and what is said of bad ones."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.collectd.commands import CommandError, parse_command
from plugins.collectd.types_db import parse_types
from plugins.collectd.values import Identity, Notification, Severity, ValueList

TYPES, _ = parse_types(
    """
    gauge value:GAUGE:U:U
    cpu value:DERIVE:0:U
    counter value:COUNTER:U:U
    absolute value:ABSOLUTE:0:U
    if_octets rx:DERIVE:0:U tx:DERIVE:0:U
    """
)


def value_lists(line: str) -> list[ValueList]:
    said = parse_command(line, TYPES)
    assert isinstance(said, list)
    return said


def notification(line: str) -> Notification:
    said = parse_command(line, TYPES)
    assert isinstance(said, Notification)
    return said


def fault(line: str) -> str:
    with pytest.raises(CommandError) as caught:
        parse_command(line, TYPES)
    return str(caught.value)


def test_the_first_example_of_the_manual_is_read() -> None:
    assert value_lists("PUTVAL leeloo/cpu-0/cpu-idle N:2299366") == [
        ValueList(
            identity=Identity(
                host="leeloo", plugin="cpu", plugin_instance="0", type="cpu", type_instance="idle"
            ),
            values=(2299366,),
        )
    ]


def test_the_second_example_of_the_manual_is_read() -> None:
    line = "PUTVAL alice/interface/if_octets-eth0 interval=10 1180647081:421465:479194"
    assert value_lists(line) == [
        ValueList(
            identity=Identity(
                host="alice", plugin="interface", type="if_octets", type_instance="eth0"
            ),
            values=(421465, 479194),
            time_ns=1180647081 * 10**9,
            interval_seconds=10.0,
        )
    ]


def test_one_line_may_hold_many_value_lists_and_options_hold_for_what_follows() -> None:
    line = "PUTVAL h/p/gauge 1:1 interval=5 2:2 interval=7 foo=bar 3:3"
    assert [
        (value_list.time_ns, value_list.values, value_list.interval_seconds)
        for value_list in value_lists(line)
    ] == [
        (1 * 10**9, (1.0,), None),
        (2 * 10**9, (2.0,), 5.0),
        (3 * 10**9, (3.0,), 7.0),
    ]


def test_quotes_keep_spaces_and_a_backslash_keeps_a_quote() -> None:
    [value_list] = value_lists(r'PUTVAL "myups/snmp/gauge-Out \"1\" \\ x" N:1')
    assert value_list.identity.type_instance == r'Out "1" \ x'


def test_an_option_may_be_quoted_in_part_or_whole() -> None:
    for option in ('interval="10"', '"interval=10"'):
        assert value_lists(f"PUTVAL h/p/gauge {option} N:1")[0].interval_seconds == 10.0


def test_a_backslash_outside_of_quotes_is_itself() -> None:
    assert value_lists(r"PUTVAL h/p-C:\x/gauge N:1")[0].identity.plugin_instance == r"C:\x"


def test_slashes_in_names_become_what_collectd_makes_of_them() -> None:
    [value_list] = value_lists("PUTVAL h/df/gauge-/var/lib N:1")
    assert value_list.identity.type_instance == "var_lib"
    assert value_lists("PUTVAL h/df/gauge-/ N:1")[0].identity.type_instance == "root"


def test_only_the_first_hyphen_parts_a_name_from_its_instance() -> None:
    [value_list] = value_lists("PUTVAL h/p-a-b/gauge-c-d N:1")
    assert (value_list.identity.plugin_instance, value_list.identity.type_instance) == (
        "a-b",
        "c-d",
    )
    assert str(value_list.identity) == "h/p-a-b/gauge-c-d"


def test_u_is_an_unknown_value() -> None:
    assert value_lists("PUTVAL h/p/gauge N:U")[0].values == (None,)
    assert value_lists("PUTVAL h/p/if_octets N:U:5")[0].values == (None, 5)


def test_a_gauge_that_is_not_finite_is_unknown() -> None:
    for text in ("nan", "inf", "-inf"):
        assert value_lists(f"PUTVAL h/p/gauge N:{text}")[0].values == (None,)


def test_a_time_is_exact_to_the_nanosecond() -> None:
    assert value_lists("PUTVAL h/p/gauge 1700000000.123456789:1")[0].time_ns == (
        1700000000123456789
    )


def test_a_counter_takes_hexadecimal_and_loses_its_fraction_as_in_collectd() -> None:
    assert value_lists("PUTVAL h/p/counter N:0xFF")[0].values == (255,)
    assert value_lists("PUTVAL h/p/cpu N:-12.9")[0].values == (-12,)


@pytest.mark.parametrize("line", ["", "   ", "# a comment", "  # PUTVAL h/p/gauge N:1"])
def test_empty_lines_and_comments_say_nothing(line: str) -> None:
    assert parse_command(line, TYPES) is None


def test_commands_are_read_in_any_case() -> None:
    assert len(value_lists("putval h/p/gauge N:1")) == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hello world", "column 1: 'hello' is not a command; expected PUTVAL or PUTNOTIF"),
        ("PUTVAL", "column 1: PUTVAL needs an identifier and values"),
        ("PUTVAL h/p/gauge", "column 8: no values after the identifier"),
        ("PUTVAL h/p/gauge interval=5", "column 8: no values"),
        ("PUTVAL p/gauge N:1", "column 8: 'p/gauge' is not an identifier"),
        ("PUTVAL h/-x/gauge N:1", "column 8: 'h/-x/gauge' has no plugin or no type"),
        ("PUTVAL h/p/nope N:1", "column 8: type 'nope' is not in any types.db"),
        ("PUTVAL h/p/gauge N", "column 18: type gauge takes TIME:value, and 'N' has 0 values"),
        ("PUTVAL h/p/gauge  N:1:2", "column 19: type gauge takes TIME:value"),
        ("PUTVAL h/p/if_octets N:1", "column 22: type if_octets takes TIME:rx:tx"),
        ("PUTVAL h/p/gauge N:high", "column 20: value is 'high': expected a number or U"),
        ("PUTVAL h/p/gauge N:1_000", "column 20: value is '1_000': expected a number or U"),
        ("PUTVAL h/p/if_octets N:1:1e5", "column 26: tx is '1e5': expected a whole number or U"),
        ("PUTVAL h/p/counter N:-1", "column 22: value is '-1': a counter is from 0 to "),
        ("PUTVAL h/p/cpu N:9223372036854775808", "column 18: value is"),
        ("PUTVAL h/p/gauge soon:1", "column 18: the time is 'soon'; expected seconds since"),
        ("PUTVAL h/p/gauge -5:1", "column 18: the time is '-5'"),
        ("PUTVAL h/p/gauge 1e30:1", "column 18: the time is '1e30'"),
        ('PUTVAL "h/p/gauge N:1', "column 8: unterminated quote"),
        ('PUTVAL "h/p/gauge\\', "column 8: unterminated quote"),
    ],
)
def test_an_invalid_line_is_rejected_with_column_and_reason(line: str, expected: str) -> None:
    assert fault(line).startswith(expected)


def test_a_long_invalid_word_is_truncated_in_the_error() -> None:
    assert len(fault("x" * 5000)) < 150


def test_a_notification_has_series_time_and_message() -> None:
    line = "PUTNOTIF type=temperature severity=warning time=1201094702 message=The roof is on fire!"
    assert notification(line) == Notification(
        severity=Severity.WARNING,
        message="The roof is on fire!",
        time_ns=1201094702 * 10**9,
        identity=Identity(type="temperature"),
    )


def test_a_notifications_message_may_be_quoted() -> None:
    line = 'PUTNOTIF severity=okay time=5 host=h plugin=ups message="on  battery"'
    assert notification(line).message == "on  battery"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("PUTNOTIF time=5 message=x", "column 1: PUTNOTIF needs the option severity="),
        ("PUTNOTIF severity=okay message=x", "column 1: PUTNOTIF needs the option time="),
        ("PUTNOTIF severity=okay time=5", "column 1: PUTNOTIF needs the option message="),
        ("PUTNOTIF severity=bad time=5 message=x", "column 10: severity is 'bad'"),
        ("PUTNOTIF severity=okay time=N message=x", "column 24: the time is 'N'"),
        ("PUTNOTIF severe message=x", "column 10: 'severe' is not an option"),
    ],
)
def test_an_invalid_notification_is_rejected_with_column_and_reason(
    line: str, expected: str
) -> None:
    assert fault(line).startswith(expected)


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(CommandError):
        parse_command(f"PUTVAL {text}", TYPES)


@given(st.text(min_size=1, max_size=40).filter(lambda text: "/" not in text))
def test_any_instance_can_be_quoted(instance: str) -> None:
    quoted = instance.replace("\\", "\\\\").replace('"', '\\"')
    [value_list] = value_lists(f'PUTVAL "h/p/gauge-{quoted}" N:1')
    assert value_list.identity.type_instance == instance
