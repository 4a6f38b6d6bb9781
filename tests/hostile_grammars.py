"""Texts made of the words of the grammars that users write, with long, deep and huge parts."""

from hypothesis import strategies as st

Texts = st.SearchStrategy[str]
_REPEATS = [1, 1, 1, 2, 30, 900]
MAX_LENGTH = 100_000
"""Longer texts only fill the memory of the tests: nested repeats would make tens of megabytes."""


def _cut(text: str) -> str:
    return text[:MAX_LENGTH]


def words(text: str) -> Texts:
    """Return one of the words of a text; `_` stands for a space, `$` for a new line."""
    return st.sampled_from([word.replace("_", " ").replace("$", "\n") for word in text.split()])


def joined(parts: Texts, separator: str = "") -> Texts:
    """Return texts of a few parts, some of which are repeated many times."""
    repeated = st.tuples(parts, st.sampled_from(_REPEATS)).map(
        lambda pair: _cut(separator.join([pair[0]] * pair[1]))
    )
    return st.lists(repeated, max_size=8).map(separator.join).map(_cut)


def _operations(children: Texts) -> Texts:
    """Return expressions of templates that are made of others."""
    operators = words("+ - * / ~ % ** // < in and or")
    filters = words("abs int float title trim upper lower default round length join center replace")
    return st.one_of(
        st.tuples(children, operators, children).map(" ".join),
        st.tuples(children, filters, children).map(lambda parts: "({})|{}({})".format(*parts)),
        st.tuples(children, st.sampled_from([2, 20, 200])).map(
            lambda pair: "(" * pair[1] + pair[0] + ")" * pair[1]
        ),
        st.tuples(children, operators, st.sampled_from([2, 40, 150])).map(
            lambda parts: f" {parts[1]} ".join([parts[0]] * parts[2])
        ),
        st.tuples(children, children).map(lambda pair: f"{pair[0]}[{pair[1]}:]"),
    ).map(_cut)


HUGE = st.sampled_from(["0", "-1", "1e308", "1e999", "0.1", "2500000", "9" * 300, "9" * 5000])
EXPRESSIONS = st.recursive(
    HUGE
    | words("value labels labels.label 'a'")
    | st.sampled_from(["value_text", "labels.label_1", '"\\ud800"']),
    _operations,
    max_leaves=6,
)
TEMPLATES = joined(
    EXPRESSIONS.map(lambda text: "{{ " + text + " }}")
    | EXPRESSIONS.map(lambda text: "{% if " + text + " %}x{% endif %}")
    | words("{%_for_x_in_range(9**9)_%} {%_set_x=1_%} {{[ {# x")
)
RULES = joined(
    HUGE
    | words('avg( gpu.power forecast( { } gpu= "a" | , ) * / + > < \\ " °C 5m 1d')
    | words("ahead by over for every reset critical alert")
    | st.sampled_from(["no_data", "keep_firing_for", "gpu.power_watts"]),
    " ",
)
SCHEDULES = joined(
    HUGE | words("* */ , - / # L MON FEB @daily R R5/ 2026-01-01T00:00 /P 1M /PT1M _")
)
YAML = joined(
    HUGE
    | words("[ ] { } -_ ?_ :_ ,_ $ __ &a_ *a_ <<:_ !!int_ !!timestamp_ # ' |$ $---$ 2026-99-99")
    | words("dashboards:$ -_name:_x$ __panels:$ __-_title:_x$")
)
ADDRESSES = joined(
    st.tuples(
        words("range from to page tz compare refresh sort state search fields step measurement"),
        HUGE | words("a %00 %ff ² ../.. now -1h") | st.sampled_from(["x" * 3000, "a," * 2000]),
    ).map("=".join),
    "&",
)
MATCHERS = joined(words("a =~ = ! ( ) * {1000} [a-z] \\p{L} |")).map(lambda text: f"a=~{text}")
QUANTITIES = joined(HUGE | words("d h GiB _ °C - % , 1-9 ."))
PROMQL = joined(
    HUGE
    | words('avg ( ) [5m] _by_ _ > {a="b"} ,')
    | st.sampled_from(["avg_over_time(", "gpu_temperature_celsius"])
)
INFLUXQL = joined(
    HUGE
    | words("SELECT mean ( x ) , * FROM gpu WHERE time > now() - 1h AND OR host = 'a' =~ /a/ != ;")
    | words("GROUP BY time(1m) fill(previous) LIMIT 1 SHOW TAG VALUES WITH KEY IN 9e9 9d /")
    | st.sampled_from(["SELECT mean(x) FROM gpu WHERE ", " GROUP BY time(1m), *", "difference("])
)
