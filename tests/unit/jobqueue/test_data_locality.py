"""Placement counts what is cached already, and says so."""

from typing import Any

import pytest

from jobqueue.executors.abilities import Need
from jobqueue.placement.decisions import Action
from jobqueue.placement.explanation import explain_jobs
from jobqueue.placement.views import ApplianceView, JobView, Snapshot
from tests.cast import NOON
from tests.unit.jobqueue.builders import GIB, appliance, busy, job, plan

TIB = 1024**4
VERSION = "imagenet-1"


def reader(name: str = "train", *, total_bytes: int = 2 * TIB, **changes: Any) -> JobView:  # noqa: ANN401 - any field
    """A job for a GPU that reads a dataset."""
    fields = {"gpus": 1, "datasets": ((VERSION, total_bytes),), "needs": frozenset({Need.DATASETS})}
    return job(name, **(fields | changes))


def snapshot(*appliances: ApplianceView, jobs: list[JobView], cached: dict[str, int]) -> Snapshot:
    return Snapshot(now=NOON, appliances=appliances, jobs=jobs, copies={VERSION: cached})


def places(
    cached: dict[str, int], *jobs: JobView, names: tuple[str, ...] = ("a", "b", "c")
) -> list[str | None]:
    views = [appliance(name) for name in names]
    decisions = plan(snapshot(*views, jobs=list(jobs), cached=cached))
    return [decision.appliance_id for decision in decisions]


def test_the_appliance_with_most_of_the_data_goes_first() -> None:
    assert places({"b": TIB, "c": 2 * TIB}, reader()) == ["c"]
    assert places({"b": TIB}, reader()) == ["b"]


def test_within_a_quarter_of_the_data_the_policy_decides() -> None:
    assert places({"a": TIB, "b": TIB + 200 * GIB}, reader()) == ["a"]
    assert places({"c": 100 * GIB}, reader()) == ["a"]


def test_what_is_fetched_in_a_moment_does_not_override_the_policy() -> None:
    assert places({"c": GIB // 2}, reader(total_bytes=GIB // 2)) == ["a"]


def test_more_cached_bytes_than_the_version_has_count_as_all() -> None:
    assert places({"b": 9 * TIB, "c": 2 * TIB}, reader()) == ["b"]


def test_the_decision_says_how_much_is_cached() -> None:
    [decision] = plan(snapshot(appliance("a"), jobs=[reader()], cached={"a": int(1.9 * TIB)}))
    assert decision.reason.endswith("Of its data, 1.9 of 2 TiB cached there.")
    assert (decision.cached_bytes, decision.dataset_bytes) == (int(1.9 * TIB), 2 * TIB)


def test_an_appliance_whose_agent_fetches_no_datasets_is_rejected() -> None:
    old = appliance("old", missing={Need.DATASETS: "its agent fetches no datasets"})
    [decision] = plan(snapshot(old, jobs=[reader()], cached={"old": 2 * TIB}))
    assert decision.action is Action.UNPLACED
    assert [rejection.code for rejection in decision.rejections] == ["ability_missing"]
    [other] = plan(snapshot(old, jobs=[job("plain", gpus=1)], cached={}))
    assert other.action is Action.ASSIGN


def test_healthy_gpus_go_before_cached_data() -> None:
    failed_before = reader(failed_on=frozenset({"c"}))
    assert places({"c": 2 * TIB}, failed_before) == ["a"]


def test_a_waiting_job_learns_where_its_data_is() -> None:
    views = [busy("a"), busy("b")]
    waiting = snapshot(*views, jobs=[reader()], cached={"b": TIB, "gone": TIB})
    explanation = explain_jobs(waiting, ["train"])["train"]
    assert explanation.data == "b: 1 of 2 TiB cached"
    nowhere = explain_jobs(snapshot(*views, jobs=[reader()], cached={}), ["train"])["train"]
    assert nowhere.data == "0 of 2 TiB cached"
    plain = explain_jobs(snapshot(*views, jobs=[job("plain", gpus=1)], cached={}), ["plain"])
    assert plain["plain"].data == ""


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        (("oslo", "oslo", "oslo", "oslo"), ["c", "d"]),
        # Members of one site are closer together than those that have the data.
        (("oslo", "bergen", "oslo", "bergen"), ["b", "d"]),
    ],
)
def test_a_gang_goes_where_most_of_its_data_is_as_far_as_it_stays_close(
    sites: tuple[str, ...], expected: list[str]
) -> None:
    views = [appliance(name, site=site) for name, site in zip("abcd", sites, strict=True)]
    gang = reader("gang", gpus=8, nodes=2, members=["gang", "gang-1"], array_id="gang")
    cached = {"b": TIB, "c": 2 * TIB, "d": 2 * TIB}
    decisions = plan(snapshot(*views, jobs=[gang], cached=cached))
    assert [decision.appliance_id for decision in decisions] == expected
    assert "TiB cached there." in decisions[0].reason
