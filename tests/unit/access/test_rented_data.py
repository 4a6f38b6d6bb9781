"""An appliance reads and writes data of a job that rents it, and no other data of its tenant."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import select, update

from core.db import SessionFactory
from datasets.catalog import DatasetRequest, create_dataset
from datasets.models import DataPart, DatasetCopyRecord, DatasetVersion
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.models import Attempt
from jobqueue.states import AttemptState
from logs.forwarding.service import ForwardRequest, create_forward
from logs.models import ForwardBatch, ForwardKind
from protocol.attempts import LogChunk, LogUpload
from protocol.datasets import CopyState, DatasetCopy, DatasetReport
from protocol.job_spec import DatasetMount
from tenants.models import Appliance
from tests.cast import BOX, NOON, Cast, FrozenClock, make_appliance, scope_of
from tests.fixtures.rentals import Rental, rent
from tests.unit.access.conftest import AgentAPI
from tests.unit.access.test_agent_datasets import manifest, send_head, send_pages
from tests.unit.access.test_results import Site
from tests.unit.jobqueue.builders import add_appliance, inventory


@pytest.fixture
def rental(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, dgx: Appliance, clock: FrozenClock
) -> Rental:
    """A job of globex on acme's dgx-01 that reads a dataset of globex, and writes results."""
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-02")
        reader = make_appliance(session, cast.globex, "reader")
        request = DatasetRequest(name="secretdata", source_url="s3://globex/secretbucket")
        dataset = create_dataset(session, scope_of(cast.charlie), request, now=NOON)
        [version] = dataset.versions
        version.indexing_appliance_id = reader.id
    head, pages = manifest("a", "b/c")
    with AgentAPI.open(api.url, api.app, secret="vda_globex_reader") as globex:
        send_pages(globex, version, pages)
        assert send_head(globex, version, head).status_code == 204
    with sessions.begin() as session:
        appliance = session.get_one(Appliance, dgx.id)
        appliance.inventory = inventory("dgx-01", can_stage_data=True, can_keep_results=True)
        mount = DatasetMount(dataset="secretdata", target="/data")
        return rent(
            session, cast.charlie, appliance, now=clock.now, datasets=[mount], outputs=["/out"]
        )


@pytest.fixture
def agent(api: AgentAPI) -> Iterator[AgentAPI]:
    with AgentAPI.open(api.url, api.app, secret="vda_acme_dgx-01") as agent:
        yield agent


def version_of(sessions: SessionFactory) -> DatasetVersion:
    with sessions() as session:
        return session.scalars(select(DatasetVersion)).one()


def test_the_appliance_reads_the_datasets_of_the_job_while_it_runs(
    api: AgentAPI, agent: AgentAPI, rental: Rental, sessions: SessionFactory
) -> None:
    version = version_of(sessions)
    path = f"/agent/v1/datasets/{version.id}"
    head = agent.request("GET", f"{path}/head")
    assert head.status_code == 200
    page = msgspec.json.decode(head.content)["pages"][0]["sha256"]
    assert agent.request("GET", f"{path}/pages/{page}").status_code == 200
    assert agent.request("GET", f"/agent/v1/parts/{page}").status_code == 200
    with AgentAPI.open(api.url, api.app, secret="vda_acme_dgx-02") as other:
        assert other.request("GET", f"{path}/head").status_code == 404
        assert other.request("GET", f"/agent/v1/parts/{page}").status_code == 404
    with sessions.begin() as session:
        ended = update(Attempt).where(Attempt.id == rental.attempt.id)
        session.execute(ended.values(state=AttemptState.SUCCEEDED))
    assert agent.request("GET", f"{path}/head").status_code == 404
    assert agent.request("GET", f"/agent/v1/parts/{page}").status_code == 404


def test_orders_name_no_dataset_and_no_peers(
    rental: Rental, sessions: SessionFactory, dgx: Appliance
) -> None:
    with sessions() as session:
        state = desired_state(session, dgx.id, box=BOX, now=NOON)
    (dataset,) = state.attempts[0].datasets
    assert dataset.version_id == rental.job.datasets[0]["version_id"]
    assert dataset.digest != "0" * 64
    assert "secret" not in dataset.name
    assert (dataset.target, dataset.peers) == ("/data", [])


def test_its_copy_is_noted_for_placement_alone(
    agent: AgentAPI, rental: Rental, sessions: SessionFactory, cast: Cast
) -> None:
    ident = rental.job.datasets[0]["version_id"]
    copy = DatasetCopy(version_id=ident, state=CopyState.COMPLETE, cached_bytes=4)
    report = DatasetReport(cache_bytes=4, cache_limit_bytes=9, copies=[copy])
    answer = agent.request("POST", "/agent/v1/datasets", data=msgspec.json.encode(report))
    assert answer.status_code == 204
    with sessions() as session:
        record = session.scalars(select(DatasetCopyRecord)).one()
    assert (record.tenant_id, record.appliance_id) == (cast.globex.id, rental.attempt.appliance_id)


def test_results_are_stored_for_the_customer(
    api: AgentAPI, rental: Rental, sessions: SessionFactory, cast: Cast, tmp_path: Path
) -> None:
    site = Site(api.url, tmp_path, sessions, rental.job.id, rental.attempt.id)
    folder = site.output()
    ((_, place),) = folder.pairs()
    (place / "model.bin").write_bytes(os.urandom(3000))
    client = site.client("dgx-01")
    site.client = lambda appliance="": client  # type: ignore[method-assign] # noqa: ARG005 - the agent there
    assert site.uploads(folder)(is_final=True)
    assert site.stored() == {"/out/model.bin": 3000}
    with sessions() as session:
        parts = {part.tenant_id for part in session.scalars(select(DataPart))}
    assert parts == {cast.globex.id}
    client.close()


def test_parts_of_other_attempts_are_refused(
    api: AgentAPI, agent: AgentAPI, rental: Rental
) -> None:
    path = f"/agent/v1/parts/{'0' * 64}"
    for sender, attempt in ((agent, "x"), (api, rental.attempt.id)):
        if sender is api:
            with AgentAPI.open(api.url, api.app, secret="vda_acme_dgx-02") as other:
                answer = other.request("PUT", f"{path}?attempt={attempt}", data=b"x")
        else:
            answer = sender.request("PUT", f"{path}?attempt={attempt}", data=b"x")
        assert answer.status_code == 404
    assert agent.request("GET", f"{path}?attempt={rental.attempt.id}").status_code == 404


def test_output_goes_to_the_forwards_of_the_customer(
    agent: AgentAPI, rental: Rental, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        for user in (cast.alice, cast.charlie):
            request = ForwardRequest(name="x", kind=ForwardKind.LOKI, url="https://loki.example")
            create_forward(session, scope_of(user), request, box=BOX, now=NOON)
    chunk = LogChunk(attempt_id=rental.attempt.id, offset=0, data=b"step 1\n")
    body = msgspec.msgpack.encode(LogUpload(chunks=[chunk]))
    assert agent.request("POST", "/agent/v1/logs", data=body).status_code == 200
    with sessions() as session:
        batch = session.scalars(select(ForwardBatch)).one()
    assert (batch.tenant_id, batch.appliance_id) == (cast.globex.id, "")
