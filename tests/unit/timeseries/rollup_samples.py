"""Samples and questions for the tests of roll-ups: three GPUs of two tenants over some hours."""

import random
from collections.abc import Sequence

from timeseries.points import FieldValue, Point
from timeseries.store import Aggregate, RangeQuery, Series, Store, write

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS
START_NS = 472_222 * HOUR_NS

ACME = {"tenant": "acme", "appliance": "a1"}
ACME_2 = {"tenant": "acme", "appliance": "a2"}
GLOBEX = {"tenant": "globex", "appliance": "g1"}
IDENTITIES = (ACME, ACME_2, GLOBEX)
FIELDS = ("busy", "count", "power_watts")


def gpu(time_ns: int, *, gpu: str = "0", **fields: FieldValue) -> Point:
    """Return a point of measurement `gpu`."""
    return Point("gpu", {"gpu": gpu}, fields, time_ns)


def seeded(number: int) -> random.Random:
    """Return a source of numbers that are the same in each run."""
    return random.Random(number)  # noqa: S311 - samples, not secrets


def random_points(rng: random.Random, *, hours: tuple[float, float], amount: int) -> list[Point]:
    """Return points at instants of their own, each with some of the fields."""
    low, high = (START_NS + int(hour * HOUR_NS) for hour in hours)
    points = []
    for time_ns in rng.sample(range(low, high), amount):
        fields: dict[str, FieldValue] = {
            "power_watts": rng.choice([0.0, rng.gauss(300, 40), -rng.expovariate(0.1)]),
            "count": rng.randrange(-(2**40), 2**40),
            "busy": rng.random() < 0.5,
        }
        name = rng.choice(FIELDS)
        if rng.random() < 0.3:
            del fields[name]
        points.append(gpu(time_ns, gpu=rng.choice("01"), **fields))
    return points


def write_all(store: Store, points: Sequence[Point], identity: dict[str, str]) -> None:
    """Write points, all of which must be taken."""
    assert write(store, points, identity=identity) == []


def ask(
    store: Store,
    aggregate: Aggregate,
    *,
    hours: tuple[float, float] = (0, 4),
    step_ns: int | None = None,
    tenants: tuple[str, ...] | None = ("acme",),
    group_by: tuple[str, ...] = (),
) -> list[Series]:
    """Return an aggregate of every field over some hours after `START_NS`."""
    return store.query_range(
        RangeQuery(
            measurement="gpu",
            fields=FIELDS,
            start_ns=START_NS + int(hours[0] * HOUR_NS),
            end_ns=START_NS + int(hours[1] * HOUR_NS),
            aggregate=aggregate,
            step_ns=step_ns,
            tenants=tenants,
            group_by=group_by,
        )
    )
