"""The catalogue: what is published, filtered, sorted and paged."""

# ruff: noqa: ANN401 - any field of a filter

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.errors import InvalidInputError, NotFoundError
from marketplace.accounts import admit
from marketplace.catalogue import (
    Capacity,
    CatalogueFilter,
    capacity,
    published_offer,
    refresh,
    search,
)
from marketplace.offers.calendar import Window
from marketplace.offers.service import set_offer_state
from marketplace.states import AccountState, OfferState, Side
from marketplace.terms import ComplianceFact, HourlyPrice, ServiceLevel, terms_hash
from tenants.models import TenantState
from tests.cast import NOON, Cast, scope_of
from tests.conftest import Fill
from tests.unit.jobqueue.builders import GIB, add_appliance, dispatch, submit
from tests.unit.marketplace.builders import admit_sides, publish, terms

A100 = [
    {"index": index, "uuid": f"GPU-a-{index}", "model": "NVIDIA A100", "memory_bytes": 40 * GIB}
    for index in range(4)
]
NIGHT = HourlyPrice(days=(0,), from_hour=0, until_hour=6, price=Decimal(1))


def fill_market(session: Session, cast: Cast) -> str:
    """H100s in Oslo at EUR 2.50, six of sixteen free; A100s in Bergen at EUR 1.20."""
    admit_sides(session, cast)
    for name in ("dgx-01", "dgx-02"):
        add_appliance(session, cast.acme, name)
    add_appliance(session, cast.acme, "a100-01", gpus=A100)
    oslo = terms(
        price=Decimal("2.5"),
        region="oslo",
        hourly_prices=(NIGHT,),
        facts=(ComplianceFact(name="gdpr"), ComplianceFact(name="iso27001")),
        service_level=ServiceLevel(availability_percent=99.5),
    )
    publish(session, cast, "dgx-01", "dgx-02", description="With NVLink", terms=oslo)
    bergen = terms(price=Decimal("1.2"), region="bergen", allows_slices=True)
    closed = [Window(until_hour=6)]
    publish(session, cast, "a100-01", name="A100s", terms=bergen, calendar=closed)
    for gpus in (8, 2):
        submit(session, cast.alice, gpus=gpus, gpu_models=["H100"])
        dispatch(session, now=NOON)
    refresh(session, now=NOON)
    return ""


@pytest.fixture(autouse=True)
def market(prefill: Callable[[Fill], str]) -> None:
    prefill(fill_market)


def names_of(session: Session, **changes: Any) -> list[str]:
    entries, total = search(session, CatalogueFilter(**changes))
    assert total == len(entries)
    return [entry.offer_name for entry in entries]


def test_an_entry_has_figures_prices_and_promises(session: Session) -> None:
    (entry,), total = search(session, CatalogueFilter(gpu_model="h100"))
    assert total == 1
    assert (entry.offer_name, entry.provider_name) == ("H100s in Oslo", "Acme")
    assert (entry.appliances, entry.gpus, entry.free_gpus, entry.most_free_gpus) == (2, 16, 6, 6)
    assert (entry.price, entry.lowest_price, entry.highest_price) == (
        Decimal("2.5"),
        Decimal(1),
        Decimal("2.5"),
    )
    assert (entry.gpu_model, entry.gpu_memory_bytes) == ("NVIDIA H100 80GB HBM3", 80 * GIB)
    assert (entry.region, entry.currency, entry.is_open) == ("oslo", "EUR", True)
    assert entry.facts == ("gdpr", "iso27001")
    assert (entry.availability_percent, entry.reputation) == (99.5, 0.7236)


H100, A100S = "H100s in Oslo", "A100s"


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({}, [A100S, H100]),
        ({"gpu_model": "a100"}, [A100S]),
        ({"gpu_model": "%"}, []),
        ({"min_gpu_memory_bytes": 80 * GIB}, [H100]),
        ({"min_free_gpus": 4}, [A100S, H100]),
        ({"min_free_gpus": 6}, [H100]),
        ({"min_free_gpus": 7}, []),
        ({"max_price": Decimal("2.49")}, [A100S]),
        ({"max_price": Decimal("2.5")}, [A100S, H100]),
        ({"region": "oslo"}, [H100]),
        ({"facts": ("iso27001", "gdpr")}, [H100]),
        ({"facts": ("iso",)}, []),
        ({"min_availability_percent": 99.5}, [H100]),
        ({"min_availability_percent": 99.6}, []),
        ({"text": "nvlink"}, [H100]),
        ({"text": "ACME"}, [A100S, H100]),
        ({"allows_slices": True}, [A100S]),
        ({"allows_slices": False}, [H100]),
        ({"is_open": True}, [H100]),
        ({"is_open": False}, [A100S]),
    ],
)
def test_filters(session: Session, wanted: dict[str, Any], names: list[str]) -> None:
    assert names_of(session, **wanted) == names


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("price", A100S),
        ("-price", H100),
        ("-gpu_model", H100),
        ("free_gpus", A100S),
        ("reputation,-offer_name", H100),
    ],
)
def test_sorts_and_pages(session: Session, sort: str, first: str) -> None:
    names = []
    for page in (1, 2):
        entries, total = search(session, CatalogueFilter(), sort=sort, page=page, page_size=1)
        assert total == 2
        names += [entry.offer_name for entry in entries]
    assert names[0] == first
    assert set(names) == {A100S, H100}
    assert search(session, CatalogueFilter(), page=3, page_size=1) == ([], 2)


def test_an_unknown_sort_is_refused(session: Session) -> None:
    with pytest.raises(InvalidInputError, match="Unknown sort field 'cost'"):
        search(session, CatalogueFilter(), sort="cost")


def test_capacity_is_what_is_open(session: Session) -> None:
    assert capacity(session) == [
        Capacity(
            gpu_model="NVIDIA H100 80GB HBM3",
            region="oslo",
            gpus=16,
            free_gpus=6,
            lowest_price=Decimal("2.5"),
        )
    ]


def test_only_what_is_published_by_admitted_providers_is_shown(
    session: Session, cast: Cast
) -> None:
    (entry,), _ = search(session, CatalogueFilter(gpu_model="H100"))
    shown = published_offer(session, entry.offer_id)
    assert shown.terms_hash == terms_hash(shown.terms)
    assert shown.entries == [entry]
    olivia = scope_of(cast.olivia)
    admit(session, olivia, cast.acme.id, Side.PROVIDER, AccountState.SUSPENDED, now=NOON)
    assert_hidden(session, entry.offer_id)
    admit(session, olivia, cast.acme.id, Side.PROVIDER, AccountState.ACTIVE, now=NOON)
    cast.acme.state = TenantState.SUSPENDED
    session.merge(cast.acme)
    session.flush()
    assert_hidden(session, entry.offer_id)


def test_a_paused_offer_in_use_is_not_shown(session: Session, cast: Cast) -> None:
    (entry,), _ = search(session, CatalogueFilter(gpu_model="H100"))
    set_offer_state(session, scope_of(cast.alice), entry.offer_id, OfferState.PAUSED, now=NOON)
    assert names_of(session) == [A100S]
    with pytest.raises(NotFoundError):
        published_offer(session, entry.offer_id)


def assert_hidden(session: Session, offer_id: str) -> None:
    assert search(session, CatalogueFilter()) == ([], 0)
    assert capacity(session) == []
    with pytest.raises(NotFoundError):
        published_offer(session, offer_id)
