"""Jobs wait for their data without GPUs, and start in the end."""

# ruff: noqa: ANN401 - builders pass any field on

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from jobqueue.executors.abilities import Need
from jobqueue.placement.decisions import Action, Decision
from jobqueue.placement.explanation import explain_jobs
from jobqueue.placement.views import ApplianceView, CacheView, JobView, RunningJob, Snapshot
from tests.cast import NOON
from tests.unit.jobqueue.builders import GIB, appliance, busy, gpu_uuid, job, plan

TIB = 1024**4
VERSION = "imagenet-1"
# A TiB takes 1,024 seconds.
RATE = GIB
NAMES = ("a", "b", "c")
FETCH_SECONDS = 2 * TIB / RATE


def reader(name: str = "train", **changes: Any) -> JobView:
    """A job for all GPUs of an appliance that reads 2 TiB."""
    fields = {"gpus": 8, "datasets": ((VERSION, 2 * TIB),), "needs": frozenset({Need.DATASETS})}
    return job(name, **(fields | changes))


def running(name: str, *, gpus: int, **changes: Any) -> RunningJob:
    """A job on the first GPUs of the appliance a."""
    uuids = [gpu_uuid("a", index) for index in range(gpus)]
    return RunningJob(job_id=name, name=name, gpu_uuids=uuids, **changes)


def snapshot(
    *appliances: ApplianceView, jobs: list[JobView], cached: dict[str, int], **changes: Any
) -> Snapshot:
    caches = {view.id: CacheView(RATE) for view in appliances}
    fields: dict[str, Any] = {
        "caches": caches,
        "longest_fetch": timedelta(minutes=5),
    } | changes
    return Snapshot(now=NOON, appliances=appliances, jobs=jobs, copies={VERSION: cached}, **fields)


def decide(
    *jobs: JobView,
    cached: dict[str, int] | None = None,
    views: tuple[ApplianceView, ...] = tuple(map(appliance, NAMES)),
    **changes: Any,
) -> list[Decision]:
    return plan(snapshot(*views, jobs=list(jobs), cached=cached or {}, **changes))


def waiting_on(name: str, *, since: datetime = NOON, job_name: str = "train") -> JobView:
    return reader(job_name, bound_to=name, data_wait_since=since)


def test_a_job_whose_data_is_far_waits_for_it_without_gpus() -> None:
    waits, other = decide(reader(), job("z-other", gpus=8), views=(appliance("a"),))
    assert (waits.action, waits.appliance_id, waits.gpu_uuids) == (Action.BIND, "a", ())
    assert waits.waits_for_data
    assert waits.reason == (
        "a fetches its data: 0 of 2 TiB cached, about 34m 8s to fetch. "
        "Others use the GPUs meanwhile."
    )
    assert [str(rejection) for rejection in waits.rejections] == [
        "a: 0 of 2 TiB cached, about 34m 8s to fetch"
    ]
    assert waits.rejections[0].code == "data_missing"
    assert (other.action, other.appliance_id) == (Action.ASSIGN, "a")


def test_it_starts_once_little_is_missing() -> None:
    nearly = int(2 * TIB - 300 * RATE)
    [starts] = decide(waiting_on("a"), cached={"a": nearly})
    assert (starts.action, starts.appliance_id) == (Action.ASSIGN, "a")
    [waits] = decide(waiting_on("a"), cached={"a": nearly - 2 * RATE})
    assert (waits.action, waits.waits_for_data) == (Action.STAY, True)


def test_it_starts_where_its_data_is_rather_than_wait_elsewhere() -> None:
    [starts] = decide(waiting_on("a"), cached={"c": 2 * TIB, "a": TIB})
    assert (starts.action, starts.appliance_id) == (Action.ASSIGN, "c")


def test_with_the_data_there_it_is_protected_from_later_jobs() -> None:
    views = (appliance("a", running=[running("old", gpus=4, ends_at=NOON + timedelta(hours=1))]),)
    later = job("z-later", gpus=4)
    waits, blocked = decide(waiting_on("a"), later, cached={"a": 2 * TIB}, views=views)
    assert (waits.action, waits.waits_for_data, blocked.action) == (Action.STAY, False, Action.BIND)
    _, starts = decide(waiting_on("a"), later, views=views)
    assert starts.action is Action.ASSIGN


def test_jobs_wait_for_data_on_as_many_appliances_as_they_need() -> None:
    decisions = decide(*(reader(f"task-{number}") for number in range(3)))
    assert sorted(decision.appliance_id or "" for decision in decisions) == ["a", "b", "c"]
    assert all(decision.waits_for_data for decision in decisions)


def test_a_job_stays_where_its_data_is_being_fetched() -> None:
    [stays] = decide(waiting_on("b"), cached={"b": GIB})
    assert (stays.action, stays.appliance_id) == (Action.STAY, "b")


def test_one_whose_gpus_were_taken_moves_if_its_data_is_elsewhere_first() -> None:
    free, taken = appliance("b"), busy("a")
    [moves] = decide(waiting_on("a"), cached={"a": TIB}, views=(taken, free))
    assert (moves.action, moves.appliance_id) == (Action.BIND, "b")
    ends_soon = appliance("a", running=[running("x", gpus=8, ends_at=NOON + timedelta(minutes=9))])
    [stays] = decide(waiting_on("a"), cached={"a": TIB}, views=(ends_soon, free))
    assert (stays.action, stays.appliance_id) == (Action.STAY, "a")
    assert not stays.waits_for_data


def test_no_job_waits_for_its_data_for_ever() -> None:
    patience = timedelta(seconds=2 * FETCH_SECONDS, minutes=10)
    [waits] = decide(waiting_on("a", since=NOON - patience))
    assert waits.action is Action.STAY
    overdue = waiting_on("a", since=NOON - patience - timedelta(seconds=1))
    [starts] = decide(overdue, views=(busy("a"), appliance("b")))
    assert (starts.action, starts.appliance_id) == (Action.ASSIGN, "b")


def test_the_rate_of_a_fetch_that_stalled_makes_nobody_wait_for_years() -> None:
    stalled: dict[str, Any] = {"caches": {"a": CacheView(1)}, "views": (appliance("a"),)}
    [waits] = decide(waiting_on("a", since=NOON - timedelta(days=29)), **stalled)
    assert waits.waits_for_data
    [starts] = decide(waiting_on("a", since=NOON - timedelta(days=31)), **stalled)
    assert (starts.action, starts.appliance_id) == (Action.ASSIGN, "a")
    waiting = snapshot(appliance("a"), jobs=[reader()], cached={}, caches=stalled["caches"])
    explained = explain_jobs(waiting, ["train"])["train"]
    assert explained.expected_start_at is None, "that is too far ahead to expect"


def test_data_that_could_not_be_fetched_lets_the_job_start_and_fail_there() -> None:
    caches = {name: CacheView(RATE, frozenset({VERSION})) for name in NAMES}
    [starts] = decide(reader(), caches=caches)
    assert starts.action is Action.ASSIGN


def test_jobs_start_at_once_where_nothing_is_fetched_ahead() -> None:
    assert decide(reader(), caches={})[0].action is Action.ASSIGN
    assert decide(reader(), longest_fetch=None)[0].action is Action.ASSIGN
    assert decide(reader(), longest_fetch=timedelta(hours=1))[0].action is Action.ASSIGN
    assert decide(job("plain", gpus=8))[0].action is Action.ASSIGN


def test_no_job_stops_for_one_that_could_not_start_yet() -> None:
    victim = running("victim", gpus=8, is_preemptible=True)
    views = (appliance("a", running=[victim]),)
    [waits] = decide(reader(), views=views, allows_preemption=True)
    assert (waits.action, waits.victims) == (Action.BIND, [])
    [displaces] = decide(reader(), cached={"a": 2 * TIB}, views=views, allows_preemption=True)
    assert displaces.victims == ["victim"]


def test_the_explanation_expects_the_start_once_the_data_is_there() -> None:
    waiting = snapshot(appliance("a"), jobs=[reader()], cached={"a": TIB})
    explained = explain_jobs(waiting, ["train"])["train"]
    assert explained.expected_start_at == NOON + timedelta(seconds=TIB / RATE, minutes=-5)
    assert explained.data == "a: 1 of 2 TiB cached"
    after = NOON + timedelta(hours=2)
    taken = appliance("a", running=[running("x", gpus=8, ends_at=after)])
    later = replace(waiting, appliances=[taken], jobs=[waiting_on("a")])
    assert explain_jobs(later, ["train"])["train"].expected_start_at == after


def gang(*places: str, since: datetime | None = None) -> JobView:
    return msgspec.structs.replace(
        reader("gang", nodes=2, members=["gang", "gang-1"], array_id="gang"),
        member_places=places,
        data_wait_since=since,
    )


def test_a_gang_waits_for_its_data_where_all_members_have_room() -> None:
    decisions = decide(gang(), cached={"c": TIB})
    assert [decision.action for decision in decisions] == [Action.BIND] * 2
    assert "c" in {decision.appliance_id for decision in decisions}
    assert all(decision.waits_for_data for decision in decisions)
    assert "fetches its data: 0 of 2 TiB cached" in decisions[0].reason


def test_a_gang_starts_once_its_data_is_on_all_its_appliances() -> None:
    half = decide(gang("a", "c", since=NOON), cached={"c": 2 * TIB})
    assert [decision.action for decision in half] == [Action.STAY] * 2
    assert [decision.appliance_id for decision in half] == ["a", "c"]
    whole = decide(gang("a", "c", since=NOON), cached={"a": 2 * TIB, "c": 2 * TIB})
    assert [decision.action for decision in whole] == [Action.ASSIGN] * 2
    assert {decision.appliance_id for decision in whole} == {"a", "c"}


def test_a_gang_whose_gpus_were_taken_keeps_its_data_and_is_protected() -> None:
    views = (appliance("a"), appliance("b"), busy("c"))
    copies = {"a": 2 * TIB, "c": 2 * TIB}
    *members, other = decide(
        gang("a", "c", since=NOON), job("other", gpus=8, requested="a"), cached=copies, views=views
    )
    assert [decision.action for decision in members] == [Action.STAY] * 2
    assert members[0].reason.startswith("1 of 2 members fit now")
    assert not members[0].waits_for_data
    assert other.action is Action.BIND


def test_a_gang_does_not_wait_for_ever_either() -> None:
    since = NOON - timedelta(hours=3)
    decisions = decide(gang("a", "c", since=since), views=(busy("a"), *map(appliance, "bc")))
    assert [decision.action for decision in decisions] == [Action.ASSIGN] * 2
