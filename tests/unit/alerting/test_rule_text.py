"""Rules as text: what is printed can be parsed, and errors point at their place."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerting.language.checks import MAX_SECONDS, rule_errors
from alerting.language.parser import EXAMPLE
from alerting.language.text import (
    condition_of,
    parse_expression,
    rule_expression,
    with_canonical_parts,
)
from alerting.rule_request import ANY_VALUE, RuleRequest, group_tags
from alerting.states import FORECAST, FUNCTIONS, Comparison, NoDataPolicy, Operator
from core.errors import InvalidInputError
from tests.unit.alerting.helpers import hot

CLAUSES = ("over", "ahead", "by", "for", "no_data", "keep_firing_for", "every")
KEYWORDS = (*CLAUSES, "critical", "warning", "reset", "and", "offset")
NAMES = st.sampled_from(KEYWORDS) | st.from_regex(
    r"[A-Za-z_][A-Za-z0-9_.:/-]{0,12}", fullmatch=True
).filter(lambda name: name != "tenant")
UNITS = st.sampled_from(("", "_bytes", "_bytes_per_second", "_celsius", "_watts", "_seconds"))
LEVELS = st.floats(allow_nan=False, allow_infinity=False)
SECONDS = st.floats(0, MAX_SECONDS)
VALUES = st.text() | st.just(ANY_VALUE)
PATTERNS = st.sampled_from(("", "0", "a.*|b", "[0-9]+", 'say "no"', "/data/.*", "a=b", "x~"))


def matchers() -> st.SearchStrategy[str]:
    signs = st.sampled_from(("!=", "=~", "!~"))
    return st.builds("{}{}{}".format, NAMES, signs, PATTERNS)


def comparands() -> st.SearchStrategy[str]:
    windows = st.sampled_from(("over 5m", "over 1d offset 1d", "over 1h30m offset 7d"))
    metrics = st.sampled_from(("a.b", "a.b - a.c", 'a.b{gpu="0", job!="x"}'))
    functions = st.sampled_from(("avg", "max", "p99", "increase"))
    return st.builds("{} {}({}) {}".format, st.sampled_from(Operator), functions, metrics, windows)


def conditions() -> st.SearchStrategy[str]:
    tails = st.sampled_from(("over 5m > 70", "over 2m by appliance != 1", "over 1m <= -3"))
    aggregates = st.sampled_from(("last(a.b)", 'rate(a.b{gpu=~"[01]"})'))
    return st.builds("{} {}".format, aggregates, tails) | st.just(
        "avg(a.b) over 5m / avg(a.b) over 1d offset 1d by appliance > 1.5"
    )


@st.composite
def rules(draw: st.DrawFn) -> RuleRequest:
    """A valid rule."""
    comparison = draw(st.sampled_from(Comparison))
    levels = sorted(draw(st.lists(LEVELS, min_size=6, max_size=6, unique=True)))
    if not comparison.is_upper:
        levels.reverse()
    info_reset, info, warning_reset, warning, critical_reset, critical = levels
    has_info = comparison.has_side and draw(st.booleans())
    has = draw(
        st.sampled_from(("warning", "critical", "both" if comparison.has_side else "warning"))
    )
    has_resets = comparison.has_side and draw(st.booleans())
    aggregate = draw(st.sampled_from(FUNCTIONS))
    operator = draw(st.sampled_from(("", *Operator)))
    filters = draw(st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=3), max_size=2))
    needed = [tag for tag, values in filters.items() if ANY_VALUE in values]
    rule = RuleRequest(
        name="x",
        measurement=draw(NAMES),
        field=draw(NAMES) + draw(UNITS),
        operator=operator,
        other_field=draw(NAMES) if operator else "",
        aggregate=aggregate,
        ahead_seconds=draw(st.floats(1, MAX_SECONDS)) if aggregate == FORECAST else 0.0,
        window_seconds=draw(st.floats(1, MAX_SECONDS)),
        group_by=list(dict.fromkeys([*draw(st.lists(NAMES, max_size=3)), *needed])),
        filters=filters,
        matchers=draw(st.lists(matchers(), max_size=2).map(tuple)),
        compared_with=draw(st.just("") | comparands()) if aggregate != FORECAST else "",
        and_condition=draw(st.just("") | conditions()),
        comparison=comparison,
        info_threshold=info if has_info else None,
        info_reset=info_reset if has_info and has_resets else None,
        warning_threshold=None if has == "critical" else warning,
        critical_threshold=None if has == "warning" else critical,
        warning_reset=warning_reset if has_resets and has != "critical" else None,
        critical_reset=critical_reset if has_resets and has != "warning" else None,
        for_seconds=draw(SECONDS),
        keep_firing_seconds=draw(SECONDS),
        no_data=draw(st.sampled_from(NoDataPolicy)),
        interval_seconds=draw(SECONDS),
    )
    return with_canonical_parts(rule)


@given(rules())
def test_every_rule_is_parsed_as_printed(rule: RuleRequest) -> None:
    assert rule_errors(rule) == {}
    text = rule_expression(rule)
    parsed = parse_expression(text)
    assert parsed == replace(rule, name="", group_by=group_tags(rule))
    assert rule_expression(parsed) == text


@given(
    st.text()
    | st.lists(st.sampled_from((*KEYWORDS, *'(){}=|,.<>"', "avg", "gpu.x", "5", "5m", " "))).map(
        " ".join
    )
)
def test_any_other_text_is_an_error_with_a_column(text: str) -> None:
    for cut in (text, f"avg(gpu.x) > 5 {text}"):
        try:
            rule = parse_expression(cut)
        except InvalidInputError as error:
            column = int(error.message.removeprefix("Column ").partition(":")[0])
            assert 1 <= column <= len(cut) + 1
        else:
            assert parse_expression(rule_expression(rule)).measurement == rule.measurement


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "avg(gpu.temperature_celsius) over 1m by appliance, gpu > 80 °C, critical > 90 °C"),
        (
            {"critical_threshold": None, "for_seconds": 90.0, "group_by": ()},
            "avg(gpu.temperature_celsius) over 1m by appliance > 80 °C for 1m30s",
        ),
        (
            {
                "warning_threshold": None,
                "aggregate": "count",
                "comparison": Comparison.BELOW,
                "critical_threshold": 3.0,
                "filters": {"gpu": ["0", "1"]},
            },
            'count(gpu.temperature_celsius{gpu="0"|"1"}) over 1m by appliance, gpu critical < 3',
        ),
        (
            {"filters": {"gpu": ["*"]}},
            (
                "avg(gpu.temperature_celsius{gpu=*}) over 1m by appliance, gpu"
                " > 80 °C, critical > 90 °C"
            ),
        ),
    ],
)
def test_a_rule_reads_as_one_line(changes: dict[str, object], line: str) -> None:
    assert rule_expression(hot(**changes)) == line


def test_a_rule_may_be_typed_in_other_ways() -> None:
    assert rule_expression(parse_expression(EXAMPLE)) == f"{EXAMPLE} °C"
    typed = (
        "min(disk.free_bytes{mount=/|/data})by mount, critical<1GiB, <8GiB reset 9.5GiB over 1h 30m"
    )
    assert rule_expression(parse_expression(typed)) == (
        'min(disk.free_bytes{mount="/"|"/data"}) over 1h30m by appliance, mount '
        "< 8 GiB reset 9.5 GiB, critical < 1 GiB"
    )
    assert parse_expression("max(gpu.power_watts) > 1.2 kW").warning_threshold == 1200.0
    rate = parse_expression("rate(network.received_bytes) over 1m by interface > 1 MiB/s every 30s")
    assert (rate.warning_threshold, rate.interval_seconds) == (1024.0**2, 30.0)
    age = parse_expression("last(agent.certificate_remaining_seconds) < 259200, critical < 24h")
    assert rule_expression(age) == (
        "last(agent.certificate_remaining_seconds) over 5m by appliance < 3d, critical < 1d"
    )
    share = "forecast(disk.used_bytes / disk.total_bytes) ahead 1d over 6h by appliance > 0.95"
    assert rule_expression(parse_expression(share)) == share


def test_a_rule_compares_matches_and_combines() -> None:
    typed = (
        'max(gpu.power_watts{gpu!=0, job=~"train-.*", uuid="x"}) over 5m'
        "/max(gpu.power_watts)over 1d offset 1d by gpu >= 1.5 and"
        " last(gpu.utilization_percent) < 5 % every 1m for 10m"
    )
    printed = (
        'max(gpu.power_watts{uuid="x", gpu!="0", job=~"train-.*"}) over 5m '
        "/ max(gpu.power_watts) over 1d offset 1d by appliance, gpu >= 1.5 "
        "and last(gpu.utilization_percent) over 5m < 5 % for 10m every 1m"
    )
    rule = parse_expression(typed)
    assert rule_expression(rule) == printed
    assert rule.matchers == ("gpu!=0", "job=~train-.*")
    assert rule.compared_with == "/ max(gpu.power_watts) over 1d offset 1d"
    assert (rule.for_seconds, rule.interval_seconds) == (600.0, 60.0)
    condition = condition_of(rule)
    assert condition is not None
    assert (condition.warning_threshold, condition.group_by) == (5.0, ("gpu",))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('avg(gpu.x{gpu=~"["}) > 5', "matchers"),
        ('avg(gpu.x{tenant!="a"}) > 5', "matchers"),
        ("avg(gpu.x{" + ", ".join(["a!=b"] * 11) + "}) > 5", "matchers"),
        ("avg(gpu.x) / avg(gpu.x) over 40d > 5", "compared_with"),
        ("avg(gpu.x) / avg(gpu.x) over 1d offset 40d > 5", "compared_with"),
        ("avg(gpu.x) / forecast(gpu.x) over 1d > 5", "compared_with"),
        ("forecast(gpu.x) ahead 1d / avg(gpu.x) > 5", "compared_with"),
        ("avg(gpu.x) > 5 and avg(gpu.y) by gpu > 5", "and_condition"),
        ("avg(gpu.x) > 5 and avg(gpu.y) over 40d > 5", "and_condition"),
        ('avg(gpu.x) > 5 and avg(gpu.y{a=~"("}) > 5', "and_condition"),
        ("avg(gpu.x) != 5 reset 4", "warning_reset"),
        ("avg(gpu.x) == 5, critical == 6", "critical_threshold"),
    ],
)
def test_what_cannot_be_evaluated_is_an_error_of_its_part(text: str, field: str) -> None:
    assert rule_errors(replace(parse_expression(text), name="x")).keys() == {field}


@pytest.mark.parametrize(
    ("text", "column", "part"),
    [
        ("", 1, "the text ends"),
        ("mean(gpu.x) > 5", 1, "p95"),
        ("avg(gpu) > 5", 5, "MEASUREMENT.FIELD"),
        ("avg(gpu.x", 10, "')'"),
        ("avg(gpu.x)", 11, "threshold"),
        ("avg(gpu.x) => 5", 12, "'=>'"),
        ("avg(gpu.x{a!1}) > 5", 12, "!="),
        ('avg(gpu.x{a!=" b"}) > 5', 14, "space"),
        ("avg(gpu.x) > 5 and", 19, "function"),
        ("avg(gpu.x) > 5 and avg(gpu.y)", 30, "threshold"),
        ("avg(gpu.x) > 5 and avg(gpu.y) > 6, critical > 7", 36, "before 'and'"),
        ("avg(gpu.x) > 5 and avg(gpu.y) > 6 reset 5", 42, "no 'reset'"),
        ("avg(gpu.x) > 5 and max(gpu.y) > 6 and max(gpu.z) > 7", 35, "already"),
        ("avg(gpu.x) / 2 > 5", 14, "a function"),
        ("avg(gpu.x) over 5m offset 1d > 5", 20, "threshold"),
        ("avg(gpu.x) > hot", 14, "'hot'"),
        ("avg(gpu.x_celsius) > 5 GiB", 22, "'GiB'"),
        ("avg(gpu.x) > 1 > 2", 16, "repeated"),
        ("avg(gpu.x) > 1, critical < 2", 26, "same comparison"),
        ("avg(gpu.x) over 5 minutes > 1", 17, "5m"),
        ("avg(gpu.x) by over > 5", 15, "quote"),
        ("avg(gpu.x{a=1, a=2}) > 5", 16, "repeated"),
        ('avg(gpu.x{a="\\x"}) > 5', 13, "escape"),
        ("avg(gpu.x) > 5 no_data page", 24, "keep or resolve or alert"),
        ("avg(gpu.x) > 5, for 5m", 17, "'for'"),
        ("avg(gpu.x) > 5 over 5m over 1m", 24, "repeated"),
    ],
)
def test_an_error_names_its_column_and_what_to_write(text: str, column: int, part: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_expression(text)
    (message,) = caught.value.errors["expression"]
    assert message.startswith(f"Column {column}: ")
    assert part in message
