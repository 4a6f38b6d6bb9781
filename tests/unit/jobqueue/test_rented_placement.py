"""Placement on rented appliances: own ones first, then offers in their order, and why not."""

# ruff: noqa: ANN401 - `decide` passes any field on

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from jobqueue.executors.abilities import Need
from jobqueue.placement.decisions import Action, Decision
from jobqueue.placement.explanation import explain_jobs
from jobqueue.placement.slices import SliceNeed
from jobqueue.placement.views import (
    ApplianceView,
    Caps,
    JobView,
    ReservationView,
    RunningJob,
    Snapshot,
)
from protocol.health import HealthState
from tests.cast import NOON
from tests.unit.jobqueue.builders import GIB, appliance, busy, gpu_uuid, job, plan
from tests.unit.jobqueue.rental_builders import paying, rental, rented

HOUR = timedelta(hours=1)


def decide(*views: ApplianceView, wanted: JobView, **changes: Any) -> Decision:
    [decision] = plan(Snapshot(now=NOON, appliances=views, jobs=[wanted], **changes))
    return decision


def facts_of(decision: Decision) -> dict[str, str]:
    return {rejected.code: str(rejected) for rejected in decision.rejections}


def foreign(name: str, *, gpus: int = 8) -> RunningJob:
    uuids = [gpu_uuid(name, index) for index in range(gpus)]
    return RunningJob(job_id=f"of-others-{name}", gpu_uuids=uuids, is_foreign=True)


def test_a_free_own_appliance_comes_before_a_cheaper_offer() -> None:
    decision = decide(
        rented("a", rental(price="0.01")),
        appliance("zebra"),
        wanted=job("train", gpus=1, rental=paying()),
    )
    assert decision.appliance_id == "zebra"
    assert decision.rental is None


def test_a_job_goes_to_an_offer_before_it_waits_for_a_busy_own_appliance() -> None:
    pool = rental()
    decision = decide(
        busy("dgx-01"), rented("a", pool), wanted=job("train", gpus=1, rental=paying())
    )
    assert (decision.action, decision.appliance_id) == (Action.ASSIGN, "a")
    assert (decision.policy, decision.rental) == ("rented", pool)
    assert decision.reason == (
        "No own appliance is free. pool can run it for 2.50 an hour for each GPU."
    )


def test_a_job_without_a_highest_price_waits_for_its_own_appliance() -> None:
    decision = decide(busy("dgx-01"), rented("a", rental()), wanted=job("train", gpus=1))
    assert (decision.action, decision.appliance_id) == (Action.BIND, "dgx-01")
    assert facts_of(decision)["not_rented"] == (
        "offer pool: the job has no highest price, so it stays on own appliances"
    )


def test_the_cheapest_offer_that_has_room_runs_the_job() -> None:
    decision = decide(
        rented("a", rental("fine", "2.50")),
        rented("b", rental("cheap", "1.25")),
        rented("c", rental("full", "0.50"), running=[foreign("c")]),
        wanted=job("train", gpus=1, rental=paying()),
    )
    assert decision.appliance_id == "b"
    assert decision.reason == (
        "No own appliance can run the job now. Of 2 offers with room, cheap has the lowest price, "
        "1.25 an hour for each GPU."
    )


def test_of_one_price_the_better_reputation_comes_first_then_the_own_region() -> None:
    good = rental("good", reputation=0.9)
    local = rental("local", reputation=0.9, is_local=True)
    views = [rented("a", rental("poor", reputation=0.4)), rented("b", good)]
    wanted = job("train", gpus=1, rental=paying())
    better = decide(*views, wanted=wanted)
    nearer = decide(*views, rented("c", local), wanted=wanted)
    assert (better.appliance_id, nearer.appliance_id) == ("b", "c")
    assert better.reason.endswith(
        "good has the lowest price, 2.50 an hour for each GPU and the best reputation of those."
    )
    assert nearer.reason.endswith("and is in a region of own appliances.")


def test_prices_are_compared_divided_by_the_factor_of_the_provider() -> None:
    dear = rental("dear", "2.50", placement_factor=0.95)
    cheap = rental("cheap", "2.00", placement_factor=0.7)
    wanted = job("train", gpus=1, rental=paying())
    decision = decide(rented("a", cheap), rented("b", dear), wanted=wanted)
    assert decision.appliance_id == "b"
    assert decision.reason.endswith(
        "dear costs 2.50 an hour for each GPU, which is the lowest price with reputation counted."
    )


def test_what_a_job_pays_at_most_is_compared_with_the_price_itself() -> None:
    poor = rental("poor", "2.00", placement_factor=0.1)
    wanted = job("train", gpus=1, rental=paying("2.00"))
    assert decide(rented("a", poor), wanted=wanted).action is Action.ASSIGN


def test_of_one_offer_the_appliance_with_the_data_comes_first() -> None:
    pool = rental()
    wanted = job("train", gpus=1, rental=paying(), datasets=(("imagenet", 100 * GIB),))
    copies = {"imagenet": {"b": 100 * GIB}}
    decision = decide(rented("a", pool), rented("b", pool), wanted=wanted, copies=copies)
    assert decision.appliance_id == "b"


def test_price_comes_before_data_and_before_degraded_gpus() -> None:
    cheap, dear = rental("cheap", "1"), rental("dear", "2")
    sick = rented("a", cheap)
    gpus = [type(gpu)(gpu.uuid, gpu.memory_bytes, HealthState.DEGRADED) for gpu in sick.gpus]
    wanted = job("train", gpus=1, rental=paying(), datasets=(("imagenet", 100 * GIB),))
    decision = decide(
        replace(sick, gpus=gpus),
        rented("b", dear),
        wanted=wanted,
        copies={"imagenet": {"b": 100 * GIB}},
    )
    assert decision.appliance_id == "a"


def test_a_job_goes_elsewhere_than_where_it_failed_though_that_is_cheaper() -> None:
    decision = decide(
        rented("a", rental("cheap", "1")),
        rented("b", rental("dear", "2")),
        wanted=job("train", gpus=1, rental=paying(), failed_on=frozenset({"a"})),
    )
    assert decision.appliance_id == "b"


REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("price_too_high", {"price": "12.40"}, {}, "12.40 an hour is above the highest price 10.00"),
    ("price_too_high", {"price": "10.001"}, {}, "10.001 an hour is above the highest price 10.00"),
    ("offer_closed", {"is_open": False}, {}, "lets no jobs start now"),
    (
        "offer_region",
        {"region": "eu-north"},
        {"rental": paying(regions=frozenset({"us-east", "us-west"}))},
        "is in eu-north, us-east or us-west asked",
    ),
    (
        "offer_compliance",
        {"facts": frozenset({"gdpr"})},
        {"rental": paying(facts=frozenset({"gdpr", "iso27001"}))},
        "does not state iso27001",
    ),
    (
        "offer_availability",
        {"availability_percent": 99.0},
        {"rental": paying(availability_percent=99.5)},
        "promises 99 % availability, 99.5 % asked",
    ),
    (
        "offer_availability",
        {},
        {"rental": paying(availability_percent=99.5)},
        "promises no availability, 99.5 % asked",
    ),
    (
        "offer_reputation",
        {"reputation": 0.5},
        {"rental": paying(reputation=0.8)},
        "its provider's reputation is 0.50, 0.8 asked",
    ),
    (
        "offer_max_gpus",
        {"max_gpus": 4},
        {"gpus": 8},
        "its contract allows 4 GPUs at once, 8 requested",
    ),
    (
        "offer_time",
        {"max_seconds": 86400},
        {},
        "its jobs run for 1d at most, and the job has no time limit; set one",
    ),
    (
        "offer_time",
        {"max_seconds": 3600},
        {"rental": paying(time_limit=2 * HOUR)},
        "its jobs run for 1h at most, 2h asked",
    ),
    (
        "offer_time",
        {"ends_at": NOON + HOUR, "ends_in": HOUR},
        {"rental": paying(time_limit=2 * HOUR)},
        "its contract ends at 2026-03-02 13:00 UTC, before the job's limit",
    ),
    ("rental_refuses", {}, {"needs": {Need.MOUNTS}}, "rented appliances mount no host paths"),
    ("rental_refuses", {}, {"needs": {Need.MEMBERS}}, "rented appliances run no members of gangs"),
]


@pytest.mark.parametrize(("code", "granted", "asked", "text"), REFUSALS)
def test_an_offer_that_does_not_suit_is_left_out_and_says_why(
    code: str, granted: dict[str, Any], asked: dict[str, Any], text: str
) -> None:
    fields: dict[str, Any] = {"gpus": 1, "rental": paying()}
    asked = asked | ({"needs": frozenset(asked["needs"])} if "needs" in asked else {})
    decision = decide(rented("secret-7", rental(**granted)), wanted=job("t", **(fields | asked)))
    assert decision.action is Action.UNPLACED
    [rejected] = decision.rejections
    assert (rejected.code, str(rejected)) == (code, f"offer pool: {text}")
    assert rejected.examples[0].appliance_id == ""


@pytest.mark.parametrize(
    ("granted", "asked"),
    [
        ({"price": "10"}, {}),
        ({"region": "EU-North"}, {"regions": frozenset({"eu-north"})}),
        ({"facts": frozenset({"gdpr", "iso27001"})}, {"facts": frozenset({"gdpr"})}),
        ({"availability_percent": 99.5}, {"availability_percent": 99.5}),
        ({"reputation": 0.8}, {"reputation": 0.8}),
        ({"max_gpus": 1}, {}),
        ({"max_seconds": 3600}, {"time_limit": HOUR}),
        ({"ends_at": NOON + HOUR, "ends_in": HOUR}, {"time_limit": HOUR}),
    ],
)
def test_an_offer_that_just_suits_is_taken(granted: dict[str, Any], asked: dict[str, Any]) -> None:
    wanted = job("train", gpus=1, rental=paying(**asked))
    assert decide(rented("a", rental(**granted)), wanted=wanted).action is Action.ASSIGN


def test_the_gpus_of_a_contract_are_counted_over_all_its_appliances() -> None:
    pool = rental(max_gpus=4)
    running = RunningJob(
        job_id="running", gpu_uuids=[gpu_uuid("a", 0)], contract_id=pool.contract_id
    )
    views = [rented("a", pool, running=[running]), rented("b", pool)]
    jobs = [
        job("first", gpus=2, rental=paying()),
        job("second", gpus=2, rental=paying()),
        job("third", gpus=1, rental=paying()),
    ]
    first, second, third = plan(Snapshot(now=NOON, appliances=views, jobs=jobs))
    assert (first.action, third.action) == (Action.ASSIGN, Action.ASSIGN)
    assert second.action is Action.WAIT
    assert facts_of(second)["contract_full"] == (
        "offer pool: 3 of the 4 GPUs of its contract in use, 2 requested (and 1 more)"
    )


def test_a_job_that_only_busy_offers_can_run_is_bound_to_none() -> None:
    view = rented("secret-7", rental(), running=[foreign("secret-7", gpus=7)])
    decision = decide(view, wanted=job("train", gpus=2, rental=paying()))
    assert (decision.action, decision.appliance_id) == (Action.WAIT, None)
    assert decision.reason == (
        "No rented appliance is free. The job starts on the first that has room."
    )
    assert facts_of(decision) == {"gpus_busy": "offer pool: 1 of 8 GPUs free, 2 requested"}


def test_a_busy_own_appliance_is_waited_for_rather_than_a_busy_offer() -> None:
    view = rented("a", rental(), running=[foreign("a")])
    decision = decide(busy("dgx-01"), view, wanted=job("train", gpus=1, rental=paying()))
    assert (decision.action, decision.appliance_id) == (Action.BIND, "dgx-01")


def test_without_a_contract_a_job_is_told_so() -> None:
    decision = decide(appliance("small", gpus=1), wanted=job("train", gpus=2, rental=paying()))
    assert decision.action is Action.UNPLACED
    assert decision.reason.endswith("No contract lets its jobs run on rented appliances.")


def test_jobs_of_other_tenants_take_resources_and_count_towards_nothing_else() -> None:
    shared = appliance("dgx-01", running=[foreign("dgx-01", gpus=6)])
    jobs = [job("first", gpus=2), job("second", gpus=1)]
    snapshot = Snapshot(now=NOON, appliances=[shared], jobs=jobs, caps=Caps(gpus=2))
    first, second = plan(snapshot)
    assert first.gpu_uuids == (gpu_uuid("dgx-01", 6), gpu_uuid("dgx-01", 7))
    assert second.action is Action.HELD


def test_no_job_stops_for_another_on_a_rented_appliance() -> None:
    own = RunningJob(
        job_id="running",
        gpu_uuids=[gpu_uuid("a", index) for index in range(8)],
        is_preemptible=True,
        contract_id="contract-pool",
    )
    decision = decide(
        rented("a", rental(), running=[own]),
        wanted=job("train", gpus=1, rental=paying()),
        allows_preemption=True,
    )
    assert (decision.action, list(decision.victims)) == (Action.WAIT, [])


def test_no_customers_job_stops_for_one_of_the_provider() -> None:
    decision = decide(
        appliance("dgx-01", running=[foreign("dgx-01")]),
        wanted=job("train", gpus=1, priority=100),
        allows_preemption=True,
    )
    assert (decision.action, list(decision.victims)) == (Action.BIND, [])


def test_what_the_provider_reserves_is_kept_without_the_name_of_it() -> None:
    own = ReservationView(
        name="",
        project="",
        project_ids=frozenset({"secret"}),
        appliance_ids=["a"],
        gpus=None,
        periods=[(NOON, NOON + HOUR)],
        holder="its provider",
    )
    decision = decide(
        rented("a", rental()),
        wanted=job("train", gpus=1, rental=paying()),
        reservations=[own],
    )
    assert decision.action is Action.WAIT
    assert facts_of(decision)["reserved"].startswith("offer pool: reserved by its provider from ")


def test_a_slice_needs_an_offer_that_allows_slices() -> None:
    wanted = job("t", gpus=1, slice_need=SliceNeed("1g.10gb"), rental=paying())
    decision = decide(rented("a", rental()), wanted=wanted)
    assert facts_of(decision) == {
        "offer_slices": "offer pool: rents out whole GPUs only, 1g.10gb requested"
    }


def test_an_explanation_says_what_would_have_to_free_up_by_the_offers_name() -> None:
    view = rented("secret-7", rental(), running=[foreign("secret-7", gpus=7)])
    wanted = job("train", gpus=3, rental=paying())
    explained = explain_jobs(Snapshot(now=NOON, appliances=[view], jobs=[wanted]), ["train"])
    assert explained["train"].needs == "2 more GPUs on offer pool"
    assert explained["train"].expected_start_at is None
    assert "secret-7" not in repr(explained["train"].decision.rejections)


def test_a_job_that_waits_for_an_offer_is_not_overtaken_there_by_endless_ones() -> None:
    view = rented("a", rental(), running=[foreign("a", gpus=4)])
    jobs = [job("large", gpus=8, rental=paying()), job("small", gpus=1, rental=paying())]
    large, small = plan(Snapshot(now=NOON, appliances=[view], jobs=jobs))
    assert (large.action, small.action) == (Action.WAIT, Action.WAIT)
