"""Slices in placement: which GPU has room for which, who may share it, and what a job is told."""

# ruff: noqa: ANN401, S311 - builders pass any field on, and the stream is repeatable

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replace_fields

from jobqueue.partitions.isolation import IsolationRules
from jobqueue.partitions.mig import best_start, bits, place_layout, valid_profiles
from jobqueue.placement.decisions import Action, Decision
from jobqueue.placement.explanation import explain_jobs
from jobqueue.placement.ledger import Ledger
from jobqueue.placement.plan import Planner
from jobqueue.placement.policies import POLICY_NAMES
from jobqueue.placement.slices import GPUKind, SliceNeed
from jobqueue.placement.views import (
    ApplianceView,
    Caps,
    GPUView,
    JobView,
    RunningJob,
    Snapshot,
)
from protocol.gpu_slices import GPUSlice, PartitionMode
from tests.cast import NOON
from tests.unit.jobqueue.builders import GIB, appliance, gpu_uuid, job, plan
from tests.unit.jobqueue.mig_gpus import H100_PROFILES

MIG = GPUKind(mode=PartitionMode.MIG, memory_bytes=80 * GIB, profiles=H100_PROFILES)
LAYOUT = GPUKind(
    mode=PartitionMode.MIG,
    memory_bytes=80 * GIB,
    profiles=H100_PROFILES,
    layout=tuple(place_layout(H100_PROFILES, ["3g.40gb", "2g.20gb", "1g.10gb"]) or ()),
)
MPS = GPUKind(mode=PartitionMode.MPS, memory_bytes=80 * GIB, shares=4)
TURNS = GPUKind(mode=PartitionMode.TIME_SLICING, memory_bytes=80 * GIB, shares=4)


def cut(name: str, *kinds: GPUKind | None, **changes: Any) -> ApplianceView:
    """An appliance with GPUs of 80 GiB of these kinds."""
    gpus = [
        GPUView(gpu_uuid(name, index), 80 * GIB, model="NVIDIA H100", kind=kind)
        for index, kind in enumerate(kinds)
    ]
    return replace(appliance(name, gpus=0, **changes), gpus=gpus)


def sliced(
    name: str, profile: str = "", *, memory: int = 0, compute: float = 0.0, **changes: Any
) -> JobView:
    """A waiting job of the user `ada` for a part of a GPU; `memory` is in GiB."""
    need = SliceNeed(profile, memory * GIB, compute)
    return job(name, **{"gpus": 1, "slice_need": need, "user_id": "ada", **changes})


def decide(views: Sequence[ApplianceView], *jobs: JobView, **changes: Any) -> dict[str, Decision]:
    """Plan for these jobs; their decisions by name."""
    decisions = plan(Snapshot(now=NOON, appliances=views, jobs=jobs, **changes))
    return {decision.job_id: decision for decision in decisions}


def held(decision: Decision) -> tuple[str, int] | None:
    """The profile and first slot of a job's instance."""
    part = decision.gpu_slice
    return (part.profile, part.start) if part else None


def running(name: str, decision: Decision, **changes: Any) -> RunningJob:
    """A job that runs as it was decided."""
    assert decision.gpu_slice is not None
    return RunningJob(
        job_id=name,
        **{
            "gpu_uuids": decision.gpu_uuids,
            "gpu_slice": decision.gpu_slice,
            "gpu_milli": decision.gpu_slice.share_milli,
            "user_id": "ada",
            **changes,
        },
    )


def test_small_instances_leave_room_for_large_ones() -> None:
    jobs = [sliced(f"small-{n}", "1g.10gb") for n in range(3)] + [sliced("wide", "3g.40gb")]
    made = decide([cut("a", MIG)], *jobs)
    assert [made[f"small-{n}"].gpu_slice.start for n in range(3)] == [6, 4, 5]  # type: ignore[union-attr]
    assert held(made["wide"]) == ("3g.40gb", 0)
    slot = made["small-0"].gpu_slice
    assert slot == GPUSlice(
        mode=PartitionMode.MIG,
        gpu_uuid=gpu_uuid("a", 0),
        share_milli=125,
        memory_bytes=10 * GIB,
        profile="1g.10gb",
        start=6,
        slots=1,
    )
    assert made["small-0"].reason.endswith("It gets a 1g.10gb instance in slot 6 of GPU 0.")


def test_three_slots_beside_each_other_are_no_room_for_an_instance_of_four() -> None:
    made = decide([cut("a", MIG)], *(sliced(f"large-{n}", "3g.40gb") for n in range(3)))
    assert [held(made[f"large-{n}"]) for n in range(2)] == [("3g.40gb", 4), ("3g.40gb", 0)]
    assert made["large-2"].action is Action.BIND
    middle = running("middle", made["large-0"])
    split = GPUSlice(
        mode=PartitionMode.MIG,
        gpu_uuid=gpu_uuid("b", 0),
        share_milli=125,
        profile="1g.10gb",
        start=2,
        slots=1,
    )
    odd = RunningJob(job_id="odd", gpu_uuids=[gpu_uuid("b", 0)], gpu_slice=split, gpu_milli=125)
    views = [cut("a", MIG, running=[middle]), cut("b", MIG, running=[odd])]
    later = decide(views, sliced("x", "3g.40gb"), sliced("y", "3g.40gb"), sliced("z", "4g.40gb"))
    assert (later["x"].appliance_id, held(later["x"])) == ("a", ("3g.40gb", 0))
    assert (later["y"].appliance_id, held(later["y"])) == ("b", ("3g.40gb", 4))
    assert later["z"].gpu_slice is None


@pytest.mark.parametrize(
    ("kinds", "need", "expected"),
    [
        ((MIG,), {"memory": 8}, "1g.10gb"),
        ((MIG,), {"memory": 12}, "1g.20gb"),
        ((MIG,), {"memory": 12, "compute": 0.24}, "2g.20gb"),
        ((MIG,), {"compute": 0.4}, "3g.40gb"),
        ((MPS,), {"memory": 8}, 1),
        ((MPS,), {"memory": 20, "compute": 0.25}, 1),
        ((MPS,), {"memory": 21}, 2),
        ((TURNS,), {"compute": 0.6}, 3),
        ((MPS, MIG), {"memory": 8}, "1g.10gb"),
        ((None,), {"memory": 8}, None),
    ],
)
def test_what_is_needed_becomes_the_smallest_slice_that_suffices(
    kinds: tuple[GPUKind, ...], need: dict[str, Any], expected: str | int | None
) -> None:
    made = decide([cut("a", *kinds)], sliced("x", **need))["x"]
    assert made.action is Action.ASSIGN
    if expected is None:
        assert made.gpu_slice is None
        assert "so it gets a whole one" in made.reason
    else:
        assert made.gpu_slice is not None
        assert expected in {made.gpu_slice.profile, made.gpu_slice.shares}
        assert made.gpu_slice.memory_bytes >= need.get("memory", 0) * GIB


def test_a_whole_gpu_is_given_only_where_no_slices_suffice() -> None:
    full = [sliced(f"n{n}", "1g.10gb") for n in range(7)]
    views = [cut("a", MIG), cut("b", None)]
    assert decide(views, *full, sliced("x", memory=8))["x"].action is Action.BIND
    assert decide(views, sliced("x", memory=81))["x"].action is Action.UNPLACED
    only = decide(views, sliced("x", memory=8, requested="b"))["x"]
    assert (only.appliance_id, only.gpu_slice) == ("b", None)
    named = decide([cut("b", None)], sliced("x", "1g.10gb"))["x"]
    assert named.action is Action.UNPLACED
    assert "has whole GPUs only, 1g.10gb requested" in str(named.rejections[0])


def test_whole_jobs_take_no_gpu_that_is_cut_by_mig_or_shared() -> None:
    views = [cut("a", MIG, MPS, None)]
    made = decide(views, sliced("x", memory=10), job("whole", gpus=2))
    assert made["x"].gpu_uuids == (gpu_uuid("a", 0),)
    assert made["whole"].gpu_uuids == (gpu_uuid("a", 1), gpu_uuid("a", 2))
    shared = decide(views, sliced("x", memory=20), job("whole", gpus=2, submitted_at=NOON))
    assert (shared["x"].gpu_slice or TURNS).mode is PartitionMode.MIG
    on_mps = sliced("x", memory=20, compute=0.25)
    assert decide(views, on_mps, job("y", gpus=2))["y"].action is Action.BIND
    text = str(decide([cut("a", MIG, MIG)], job("y", gpus=1))["y"].rejections[0])
    assert text == "a: has 0 whole of 2 GPUs, the others are cut by MIG; 1 requested"


def test_shares_end_where_the_gpu_is_full() -> None:
    jobs = [sliced(f"j{n}", memory=20) for n in range(5)]
    made = decide([cut("a", MPS)], *jobs)
    assert [made[f"j{n}"].action for n in range(5)] == [Action.ASSIGN] * 4 + [Action.BIND]
    assert "0 of 1 GPU" in str(made["j4"].rejections[0])


@pytest.mark.parametrize(
    ("kind", "rules", "owners", "expected"),
    [
        (TURNS, {}, [("ada", None), ("ada", None)], True),
        (TURNS, {}, [("ada", None), ("bob", None)], False),
        (TURNS, {}, [("ada", "p"), ("bob", "p")], True),
        (TURNS, {}, [("ada", "p"), ("ada", "q")], True),
        (MPS, {}, [("ada", "p"), ("bob", "p")], False),
        (MIG, {}, [("ada", "p"), ("bob", "q")], True),
        (MIG, {"between_users": PartitionMode.WHOLE}, [("ada", "p"), ("bob", "p")], False),
        (
            TURNS,
            {"between_users": PartitionMode.TIME_SLICING},
            [("ada", None), ("bob", None)],
            True,
        ),
        (TURNS, {"between_users": PartitionMode.MIG}, [("ada", "p"), ("bob", "p")], False),
        (MIG, {"between_projects": PartitionMode.WHOLE}, [("ada", "p"), ("ada", "q")], False),
        (TURNS, {}, [(None, None), (None, None)], False),
        (MPS, {}, [(None, "p"), (None, "p")], False),
    ],
)
def test_jobs_share_a_gpu_only_with_the_isolation_that_the_tenant_wants(
    kind: GPUKind,
    rules: dict[str, PartitionMode],
    owners: list[tuple[str | None, str | None]],
    expected: bool,  # noqa: FBT001 - a case
) -> None:
    jobs = [
        sliced(f"j{n}", memory=10, user_id=user, project_id=project)
        for n, (user, project) in enumerate(owners)
    ]
    made = decide([cut("a", kind)], *jobs, isolation=IsolationRules(**rules))
    assert made["j0"].action is Action.ASSIGN
    assert (made["j1"].action is Action.ASSIGN) is expected
    if not expected:
        assert made["j1"].rejections[0].code == "gpus_not_isolated"


def test_a_layout_stays_unless_it_may_change_on_an_idle_gpu() -> None:
    made = decide([cut("a", LAYOUT)], sliced("x", "1g.10gb"), sliced("y", memory=12))
    assert held(made["x"]) in {(place.profile, place.start) for place in LAYOUT.layout}
    assert held(made["y"]) == ("2g.20gb", made["y"].gpu_slice.start)  # type: ignore[union-attr]
    full = decide([cut("a", LAYOUT)], sliced("x", "7g.80gb"))["x"]
    assert full.action is Action.UNPLACED
    assert str(full.rejections[0]) == "a: has 1g.10gb, 2g.20gb, 3g.40gb, 7g.80gb requested"
    kind = GPUKind(
        mode=LAYOUT.mode,
        memory_bytes=LAYOUT.memory_bytes,
        profiles=LAYOUT.profiles,
        layout=LAYOUT.layout,
        may_change_layout=True,
    )
    changed = decide([cut("a", kind)], sliced("x", "7g.80gb"))["x"]
    assert held(changed) == ("7g.80gb", 0)
    assert "GPU 0 of a was idle, so its layout changes for this job." in changed.reason
    occupied = decide([cut("a", kind)], sliced("w", "1g.10gb"), sliced("x", "7g.80gb"))
    assert occupied["x"].action is Action.BIND
    # Once changed, the GPU is cut on demand until it is idle.
    small = decide([cut("a", kind)], sliced("w", "1g.20gb"), sliced("x", "1g.20gb"))
    assert {held(small["w"]), held(small["x"])} == {("1g.20gb", 6), ("1g.20gb", 4)}


def test_a_gpu_that_changes_its_mode_gets_no_jobs() -> None:
    view = cut("a", MIG)
    switching = replace(view, gpus=[replace(view.gpus[0], is_switching=True)])
    made = decide([switching], sliced("x", "1g.10gb"))["x"]
    assert made.action is Action.BIND
    assert "1 to be partitioned anew once idle" in str(made.rejections[0])


def test_jobs_of_another_mode_keep_slices_off_until_they_end() -> None:
    other = decide([cut("a", MPS)], sliced("old", memory=10))["old"]
    made = decide([cut("a", TURNS, running=[running("old", other)])], sliced("x", memory=10))
    assert made["x"].action is Action.BIND


def test_slices_count_towards_caps_by_their_size() -> None:
    jobs = [sliced(f"j{n}", "1g.10gb") for n in range(12)]
    made = decide([cut("a", MIG, MIG)], *jobs, caps=Caps(gpus_per_user=1))
    assert sum(decision.action is Action.ASSIGN for decision in made.values()) == 8
    held_back = made["j9"]
    assert held_back.action is Action.HELD
    assert held_back.reason == (
        "The user's jobs have 1 of at most 1 GPUs, and this one requests 0.125."
    )


def test_preemptible_slices_stop_for_a_job_that_is_not() -> None:
    first = decide([cut("a", MIG)], sliced("x", "4g.40gb"), sliced("y", "3g.40gb"))
    busy = [
        running("x", first["x"], is_preemptible=True),
        running("y", first["y"], is_preemptible=True),
    ]
    made = decide(
        [cut("a", MIG, running=busy)], sliced("z", "3g.40gb", user_id="bob"), allows_preemption=True
    )
    assert made["z"].action is Action.BIND
    assert len(made["z"].victims) == 1
    both = decide([cut("a", MIG, running=busy)], sliced("z", "7g.80gb"), allows_preemption=True)
    assert set(both["z"].victims) == {"x", "y"}


def test_a_later_slice_does_not_delay_an_earlier_one() -> None:
    first = decide([cut("a", MIG)], sliced("x", "3g.40gb"))
    busy = [running("x", first["x"], ends_at=NOON + timedelta(hours=1))]
    views = [cut("a", MIG, running=busy)]
    hour, day = timedelta(minutes=30), timedelta(days=1)
    made = decide(
        views,
        sliced("large", "7g.80gb"),
        sliced("long", "1g.10gb", time_limit=day, submitted_at=NOON + hour),
        sliced("short", "1g.10gb", time_limit=hour, submitted_at=NOON + hour),
    )
    assert [made[name].action for name in ("large", "long")] == [Action.BIND] * 2
    assert made["short"].action is Action.ASSIGN
    snapshot = Snapshot(now=NOON, appliances=views, jobs=[sliced("large", "7g.80gb")])
    explained = explain_jobs(snapshot, {"large"})["large"]
    assert explained.expected_start_at == NOON + timedelta(hours=1)
    assert explained.needs == "room for 7g.80gb on a"


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_no_slot_is_used_twice_and_arrays_agree_with_the_parts(policy: str) -> None:
    chosen = random.Random(7)
    kinds = [MIG, LAYOUT, MPS, TURNS, None]
    views = [cut(f"a{n}", *(chosen.choice(kinds) for _ in range(4))) for n in range(6)]
    rules = IsolationRules(between_projects=PartitionMode.MPS)
    planner = Planner(Snapshot(now=NOON, appliances=views, jobs=(), policy=policy, isolation=rules))
    placed: list[tuple[int, Any]] = []
    for number in range(120):
        owner: dict[str, Any] = {
            "user_id": chosen.choice("ab"),
            "project_id": chosen.choice(["p", "q", None]),
        }
        if chosen.random() < 0.3:
            wanted = job(f"j{number}", gpus=chosen.choice([1, 2]), **owner)
        elif chosen.random() < 0.5:
            wanted = sliced(f"j{number}", chosen.choice(H100_PROFILES).name, **owner)
        else:
            compute = chosen.choice([0.0, 0.2, 0.5])
            wanted = sliced(f"j{number}", memory=chosen.randrange(60), compute=compute, **owner)
        decision = planner.decide(wanted)
        ledger = planner.ledger
        if decision.action is Action.ASSIGN:
            place = ledger.index[decision.appliance_id or ""]
            placed.append((place, ledger.allocations[place][-1]))
        if placed and (decision.action is not Action.ASSIGN or chosen.random() < 0.3):
            place, allocation = placed.pop(chosen.randrange(len(placed)))
            ledger.release(place, allocation)
            planner._full.clear()  # noqa: SLF001 - plans free nothing
            planner.reservations.jobs.clear()
        _check(ledger)


def _check(ledger: Ledger) -> None:
    slices = ledger.slices
    assert slices is not None
    shape = sliced("probe", memory=10).shape
    room = ledger.with_room(shape)
    for place, view in enumerate(ledger.views):
        for slot in range(len(view.gpus)):
            parts = slices.parts_at(place, slot)
            masks = [bits(part.start, part.slots) for part in parts if part.slots]
            assert all(not first & second for first, second in combinations(masks, 2))
            kind = slices.kind_at(place, slot)
            if kind is not None and kind.mode is not PartitionMode.MIG:
                assert sum(part.shares for part in parts) <= kind.shares
            assert 0 <= ledger.gpu_free[slot, place] <= 1000
            whole = [
                allocation
                for allocation in ledger.allocations[place]
                if slot in allocation.gpus and allocation.part is None
            ]
            assert not (whole and parts)
            assert len(whole) <= 1
            assert room[slot, place] == (
                slot in ledger.pick_gpus(place, shape) or _fits(ledger, place, slot)
            )


def _fits(ledger: Ledger, place: int, slot: int) -> bool:
    request = sliced("probe", memory=10).shape.slice
    assert request is not None
    assert ledger.slices is not None
    is_open = ledger.gpu_free[slot, place] > 0
    return bool(is_open) and ledger.slices.part_for(place, slot, request) is not None


def test_profiles_that_make_no_sense_are_left_out() -> None:
    good = H100_PROFILES[0]
    bad = [
        replace_fields(good, name="none", slots=0),
        replace_fields(good, name="beyond", starts=(16,)),
        replace_fields(good, name="negative", memory_bytes=-1),
        replace_fields(good, name="still", multiprocessors=0),
        replace_fields(good, name="nowhere", starts=()),
    ]
    assert valid_profiles([*bad, good, good]) == (good,)


def test_best_starts_keep_the_most_places() -> None:
    smallest = H100_PROFILES[0]
    taken, starts = 0, []
    while (start := best_start(H100_PROFILES, smallest, taken)) is not None:
        starts.append(start)
        taken |= bits(start, 1)
    assert sorted(starts) == list(range(7))
    assert starts[0] == 6
    assert place_layout(H100_PROFILES, ["4g.40gb", "3g.40gb"]) is not None
    assert place_layout(H100_PROFILES, ["4g.40gb", "4g.40gb"]) is None
    assert place_layout(H100_PROFILES, ["5g.60gb"]) is None
    assert np.array(starts).size == 7


@pytest.mark.parametrize("mode", [PartitionMode.MPS, PartitionMode.TIME_SLICING])
def test_jobs_from_before_a_change_of_shares_keep_what_they_have(mode: PartitionMode) -> None:
    halves, finer = (GPUKind(mode=mode, memory_bytes=80 * GIB, shares=shares) for shares in (2, 48))
    first = decide([cut("a", halves)], sliced("first"))["first"]
    view = cut("a", finer, running=[running("first", first)])
    assert decide([view], sliced("large", compute=0.51))["large"].action is not Action.ASSIGN
    assert decide([view], sliced("other", compute=0.5))["other"].action is Action.ASSIGN
