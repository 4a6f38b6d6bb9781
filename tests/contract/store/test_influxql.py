"""Statements in InfluxQL, which read samples or aggregates: the same in every store."""

from typing import Any

from tests.contract.store.samples import ACME, ACME_2, GLOBEX, SECOND_NS, START_NS, gpu
from timeseries.influxql.queries import answers
from timeseries.promql.selection import Source
from timeseries.store import Store, write

NAMES = {ACME["appliance"]: "node-1", ACME_2["appliance"]: "node-2"}
SPAN = f"time >= {START_NS} AND time < {START_NS + 40 * SECOND_NS}"
START = START_NS // SECOND_NS


def test_a_statement_has_the_same_answer_in_every_store(store: Store) -> None:
    for identity, watts in ((ACME, 100.0), (ACME_2, 200.0), (GLOBEX, 900.0)):
        points = [gpu(at, gpu=name, power_watts=watts + at) for at in (0, 10, 30) for name in "01"]
        write(store, points, identity=identity)

    def rows(text: str) -> list[tuple[dict[str, str], list[list[Any]]]]:
        source = Source(store, ("acme",), names=NAMES)
        (answer,) = answers(source, text, now_ns=START_NS, epoch="s")
        series: Any = answer.get("series", answer)
        return [(line.get("tags", {}), line["values"]) for line in series]

    windows = "GROUP BY time(20s), appliance"
    # Of the store itself: all conditions are those of its matchers.
    assert rows(
        f"SELECT mean(power_watts) FROM gpu WHERE {SPAN} AND appliance =~ /^node-/ {windows}"
    ) == [
        ({"appliance": "node-1"}, [[START, 105], [START + 20, 130]]),
        ({"appliance": "node-2"}, [[START, 205], [START + 20, 230]]),
    ]
    # Of the samples: a condition joins different tags, or the function is not one of stores.
    condition = "(appliance = 'node-1' AND gpu = '0' OR appliance = 'node-2' AND gpu = '1')"
    assert rows(f"SELECT max(power_watts) FROM gpu WHERE {SPAN} AND {condition}") == [
        ({}, [[START + 30, 230]])
    ]
    assert rows(f"SELECT first(power_watts) FROM gpu WHERE {SPAN} AND appliance != 'node-1'") == [
        ({}, [[START, 200]])
    ]
    assert rows(
        f"SELECT power_watts, gpu FROM gpu WHERE {SPAN} AND appliance = 'node-2' AND gpu !~ /0/"
    ) == [({}, [[START, 200, "1"], [START + 10, 210, "1"], [START + 30, 230, "1"]])]
    # Of the samples, too: it compares a field.
    assert rows(f"SELECT power_watts FROM gpu WHERE {SPAN} AND power_watts > 220") == [
        ({}, [[START + 30, 230], [START + 30, 230]])
    ]
    condition = "(105 > power_watts OR gpu = '1')"
    assert rows(f"SELECT count(power_watts) FROM gpu WHERE {SPAN} AND {condition}") == [
        ({}, [[START, 7]])
    ]
    values = rows(f"SHOW TAG VALUES WITH KEY = appliance WHERE {SPAN} AND gpu = '0'")
    assert values == [({}, [["appliance", "node-1"], ["appliance", "node-2"]])]
