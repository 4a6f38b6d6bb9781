"""Queries by the API, which are pages of groups: the same in every store."""

import pytest

from core.errors import InvalidInputError
from tests.contract.store.samples import ACME, ACME_2, GLOBEX, SECOND_NS, START_NS, gpu
from timeseries.sample_query import query_groups, to_csv
from timeseries.store import Aggregate, RangeQuery, Store, write

QUERY = RangeQuery(
    measurement="gpu",
    fields=("power_watts", "fan_percent"),
    start_ns=START_NS,
    end_ns=START_NS + 40 * SECOND_NS,
    aggregate=Aggregate.MAX,
    step_ns=20 * SECOND_NS,
    tenants=("acme",),
    group_by=("gpu", "job"),
)


def test_the_pages_of_a_query_have_each_group_once_with_all_its_windows(store: Store) -> None:
    seconds = (0, 10, 30)
    busy = [gpu(at, tags={"job": "j1"}, power_watts=100.0 + at) for at in seconds]
    idle = [gpu(at, gpu="1", power_watts=50.0 + at, fan_percent=7.0) for at in seconds]
    write(store, busy + idle, identity=ACME)
    write(store, [gpu(30, gpu="1", tags={"job": "j1"}, power_watts=1.0)], identity=ACME_2)
    write(store, [gpu(0, gpu="9", power_watts=999.0)], identity=GLOBEX)

    pages = [query_groups(store, QUERY, page=page, page_size=2) for page in (1, 2, 3)]

    assert [total for _, total in pages] == [3, 3, 3]
    assert [[tuple(group.tags.values()) for group in groups] for groups, _ in pages] == [
        [("0", "j1"), ("1", "")],
        [("1", "j1")],
        [],
    ]
    assert to_csv(QUERY, pages[0][0]).split() == [
        "time,gpu,job,power_watts,fan_percent",
        "2023-11-14T22:10:00Z,0,j1,110.0,",
        "2023-11-14T22:10:20Z,0,j1,130.0,",
        "2023-11-14T22:10:00Z,1,,60.0,7.0",
        "2023-11-14T22:10:20Z,1,,80.0,7.0",
    ]


def test_names_of_another_tenant_are_as_unknown_as_those_of_nobody(store: Store) -> None:
    write(store, [gpu(0, power_watts=1.0, fan_percent=1.0)], identity=ACME)
    write(store, [gpu(0, power_wattz=1.0, tags={"jobs": "x"})], identity=GLOBEX)

    with pytest.raises(InvalidInputError) as caught:
        query_groups(store, QUERY, page=1, page_size=1)

    assert caught.value.errors.keys() == {"group_by"}
    assert "jobs" not in caught.value.message
