"""A GPU, an appliance or a job beside another one, in one chart."""

import json
from datetime import timedelta

from core.clock import to_ns
from core.db import SessionFactory
from dash_app.routes import appliance_path, gpu_path, job_path
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState
from protocol.job_spec import JobKind
from tests.cast import NOON, Cast
from tests.unit.dash_app.browsing import Browser
from tests.unit.dash_app.conftest import Fleet
from timeseries.points import Point
from timeseries.store import Store, write


def test_a_gpu_is_compared_with_a_peer_and_an_appliance_with_the_period_before(
    alice: Browser, fleet_of_three: Fleet
) -> None:
    def names(output: str, path: str, compare: str) -> list[str]:
        values = {f"{output.partition('-')[0]}_path_data": path}
        search = f"?range=15m&compare={compare}"
        answer = alice.fill(f"{output}.figure", url_search=search, **values)
        figure = json.loads(answer)["response"][output]["figure"]
        return [line["name"] for line in figure["layout"]["meta"]["legend"]]

    ident = fleet_of_three.first.id
    assert names("gpu-power", gpu_path(ident, "0"), "gpu-1") == ["power", "power, GPU 1"]
    assert names("gpu-power", gpu_path(ident, "0"), "gpu-9") == ["power"]
    # The fixture's samples are ten minutes old at most.
    assert names("appliance-memory", appliance_path(ident), "previous") == ["used", "total"]


def test_a_job_is_compared_with_another_one_from_its_start_on(
    alice: Browser, sessions: SessionFactory, store: Store, fleet_of_three: Fleet, cast: Cast
) -> None:
    job = fleet_of_three.job
    started_at = job.started_at or NOON
    with sessions.begin() as session:
        other = Job(
            tenant_id=job.tenant_id,
            user_id=cast.bob.id,
            name="eval",
            kind=JobKind.BATCH,
            image="pytorch",
            gpus=1,
            memory_bytes=1,
            state=JobState.SUCCEEDED,
            submitted_at=started_at,
            queue_at=started_at,
            started_at=started_at + timedelta(minutes=4),
            finished_at=started_at + timedelta(minutes=6),
        )
        session.add(other)
        session.flush()
        attempt = {"tenant_id": job.tenant_id, "appliance_id": fleet_of_three.second.id}
        session.add(
            Attempt(
                job_id=other.id,
                number=1,
                state=AttemptState.SUCCEEDED,
                gpu_uuids=["GPU-b0"],
                bound_at=other.started_at,
                started_at=other.started_at,
                **attempt,
            )
        )
        time_ns = to_ns(started_at + timedelta(minutes=5))
    tags = {"gpu": "0", "uuid": "GPU-b0", "model": "H100", "job": other.id}
    sample = Point("gpu", tags, {"power_watts": 250.0}, time_ns)
    identity = {"tenant": job.tenant_id, "appliance": fleet_of_three.second.id}
    assert write(store, [sample], identity=identity) == []
    page = alice.fill("page.children", url_pathname=job_path(job.id), url_search="")
    assert f"compare=job%3A{other.id}" in page
    assert "Last 1 h" not in page

    def lines(compare: str) -> dict[str, list[object]]:
        values = {"job_path_data": job_path(job.id), "url_search": f"?compare={compare}"}
        answer = json.loads(alice.fill("job-attempt-memory_bytes.figure", **values))["response"]
        traces = answer["job-gpu-power_watts"]["figure"]["data"]
        return {trace["name"]: [trace["x"][0], trace["y"]] for trace in traces}

    assert lines("").keys() == {"GPU 0"}
    assert lines(f"job:{fleet_of_three.foreign_job.id}").keys() == {"GPU 0"}
    compared = lines(f"job:{other.id}")
    # Its sample a minute after its start is drawn a minute after the start of this job.
    expected = f"{started_at + timedelta(minutes=1):%Y-%m-%d %H:%M:%S}"
    assert compared["GPU 0, eval"] == [expected, [250.0]]
