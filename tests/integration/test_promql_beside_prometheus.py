"""Expressions evaluated by us and by Debian's Prometheus over the same samples."""

import json
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.fixtures.memory_stores import memory_store
from tests.fixtures.prometheus import prometheus
from tests.integration.promql_expressions import Expressions, samples
from timeseries.points import Point
from timeseries.promql.queries import Answer, query_range
from timeseries.promql.render import rendered
from timeseries.promql.selection import Source
from timeseries.promql.values import Grid
from timeseries.store import Store, write

CASES = 200
START_MS = 1_700_000_100_000
END_MS = START_MS + 3_600_000
STEP_MS = 60_000
TOLERANCE = 1e-9

Series = dict[str, dict[float, float]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    series = {
        f"{name}{{{','.join(f'{tag}={json.dumps(text)}' for tag, text in tags)}}}": values
        for (name, tags), values in samples(START_MS, END_MS).items()
    }
    with prometheus(folder, series=series) as address:
        yield address


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    opened = memory_store()
    points = [
        Point(name, dict(tags), {"value": value}, at_ms * 1_000_000)
        for (name, tags), values in samples(START_MS, END_MS).items()
        for at_ms, value in values
    ]
    assert write(opened, points, identity={"tenant": "acme"}) == []
    yield opened
    opened.close()


def asked(url: str, path: str, **parameters: str | float) -> Any:  # noqa: ANN401 - JSON
    """Return the data that Prometheus answers; the text of its error otherwise."""
    answer = requests.get(f"{url}/api/v1/{path}", params=parameters, timeout=30).json()
    return answer.get("data") or answer["error"]


def series_of(data: dict[str, Any]) -> Series:
    """Return the values of an answer by labels and time."""
    if data["resultType"] == "scalar":
        at, value = data["result"]
        return {"": {at: float(value)}}
    return {
        json.dumps(row["metric"], sort_keys=True): {
            at: float(value) for at, value in row.get("values") or [row["value"]]
        }
        for row in data["result"]
    }


def differences(ours: Series, theirs: Series) -> list[str]:
    """Return what is not the same, to within the tolerance."""
    missing = sorted(theirs.keys() - ours.keys())
    extra = sorted(ours.keys() - theirs.keys())
    texts = [f"missing {labels}" for labels in missing] + [f"extra {labels}" for labels in extra]
    for labels in ours.keys() & theirs.keys():
        own, wanted = ours[labels], theirs[labels]
        if own.keys() != wanted.keys():
            texts.append(f"{labels}: times differ: {sorted(own.keys() ^ wanted.keys())[:3]}")
            continue
        texts += [
            f"{labels} at {at}: {own[at]!r}, not {wanted[at]!r}"
            for at in own
            if not is_equal(own[at], wanted[at])
        ][:2]
    return texts


def is_equal(own: float, wanted: float) -> bool:
    if math.isnan(wanted):
        return math.isnan(own)
    return own == wanted or math.isclose(own, wanted, rel_tol=TOLERANCE, abs_tol=1e-12)


def data_of(answer: Answer) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(rendered(answer))
    return data


@pytest.mark.nightly
def test_random_expressions_have_the_values_that_prometheus_gives(url: str, store: Store) -> None:
    generated = Expressions(random.Random(20_261_126))  # noqa: S311 - not for secrets
    grid = Grid(START_MS + 600_000, STEP_MS, 45)
    errors, with_values = [], 0
    for _ in range(CASES):
        text = generated.vector(depth=3)
        theirs = asked(
            url,
            "query_range",
            query=text,
            start=grid.start_ms / 1000,
            end=grid.end_ms / 1000,
            step=STEP_MS / 1000,
        )
        try:
            ours = data_of(query_range(Source(store, ("acme",)), text, grid))
        except Exception as error:  # noqa: BLE001 - compared with what Prometheus says
            if not isinstance(theirs, str):
                errors.append(f"{text}\n    {type(error).__name__}: {error}")
            continue
        if isinstance(theirs, str):
            errors.append(f"{text}\n    Prometheus: {theirs}")
            continue
        wrong = differences(series_of(ours), series_of(theirs))
        with_values += bool(theirs["result"])
        errors += [f"{text}\n    " + "\n    ".join(wrong[:4])] if wrong else []
    assert not errors, f"{len(errors)} of {CASES} differ:\n" + "\n".join(errors[:10])
    assert with_values > CASES * 0.7
