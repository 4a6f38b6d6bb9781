"""`vedette appliance` against a real portal."""

import json

from core.db import SessionFactory
from jobqueue.storage.service import record_storage
from protocol.attempts import ObservedState
from protocol.clusters import NodeState
from protocol.storage import StorageReport, StoredImage
from tenants.models import Appliance
from tenants.users.tokens import create_api_token
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.clusters import cluster, make_connector, node
from tests.fixtures.in_process import run_vedette
from tests.fixtures.rentals import OFFER_NAME, rent
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.builders import add_appliance, report, start


def test_the_storage_is_listed(*, url: str, cast: Cast, sessions: SessionFactory) -> None:
    with sessions.begin() as session:
        dgx = add_appliance(session, cast.acme, "dgx-01")
        secret = create_api_token(session, scope_of(cast.alice), name="test", now=NOON)[1]
    environ = {"VEDETTE_URL": url, "VEDETTE_TOKEN": secret, "TZ": "Asia/Kolkata"}
    storage = ("appliance", "storage", "dgx-01")
    assert "no container storage" in run_vedette(*storage, environ=environ).stdout
    assert run_vedette(*storage, "--clean", environ=environ).returncode == 1
    image = StoredImage(image_id="sha256:1", names=["acme/old:1"], size_bytes=2**30, used_at_ns=1)
    with sessions.begin() as session:
        record_storage(session, dgx.id, StorageReport(images=[image]), now=NOON)
    rows = [line.split() for line in run_vedette(*storage, environ=environ).stdout.splitlines()]
    assert rows[1] == ["acme/old:1", "1", "GiB", "1970-01-01", "05:30:00", "IST", "delete", "age"]
    printed = run_vedette(*storage, "-o", "json", environ=environ).stdout
    assert json.loads(printed)["images"][0]["verdict"] == "age"


def test_a_drain_is_followed_to_its_end(
    *, environ_of: EnvironOf, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        attempt = start(session, cast)
    environ = environ_of(cast.alice)
    wrong = run_vedette("appliance", "drain", "dgx-01", "--wait", "soon", environ=environ)
    assert wrong.returncode == 2
    run_vedette("appliance", "drain", "dgx-01", "--wait", "1h", environ=environ)
    with sessions.begin() as session:
        dgx = session.get_one(Appliance, attempt.appliance_id)
        assert dgx.drained_at is not None
        assert dgx.drain_deadline_at is not None
        assert (dgx.drain_deadline_at - dgx.drained_at).total_seconds() == 3600
        report(session, session.merge(attempt), ObservedState.SUCCEEDED, exit_code=0)
    done = run_vedette("appliance", "drain", "dgx-01", "--follow", environ=environ)
    assert (done.returncode, "1 of 1 ended" in done.stdout) == (0, True)


def test_the_nodes_of_a_cluster_are_listed(
    *, environ_of: EnvironOf, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        down = node("n2", state=NodeState.DOWN, reason="Not responding")
        make_connector(session, cast.acme, cluster(node("n1", allocated_gpus=1), down))
        add_appliance(session, cast.acme, "dgx-01")
    environ = environ_of(cast.alice)
    listed = run_vedette("appliance", "list", environ=environ).stdout
    assert "login  slurm cluster" in listed
    assert "n1.login" not in listed
    assert (
        "n1.login  node of login"
        in run_vedette("appliance", "list", "--nodes", environ=environ).stdout
    )
    rows = run_vedette("appliance", "nodes", "login", environ=environ).stdout.splitlines()
    assert [row.split() for row in rows] == [
        ["NODE", "STATE", "CPUS", "MEMORY", "GPUS", "REASON"],
        ["n1", "up", "0/64", "0", "B", "of", "512", "GiB", "1/4"],
        ["n2", "down", "0/64", "0", "B", "of", "512", "GiB", "0/4", "Not", "responding"],
    ]
    wrong = run_vedette("appliance", "nodes", "dgx-01", environ=environ)
    assert (wrong.returncode, "is no connector" in wrong.stderr) == (1, True)
    named = run_vedette("appliance", "nodes", "login", "-o", "name", environ=environ).stdout
    assert named.split() == ["n1.login", "n2.login"]


def test_rented_jobs_and_the_place_of_a_job_have_no_names(
    *, url: str, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        dgx = add_appliance(session, cast.acme, "dgx-01")
        rental = rent(session, cast.charlie, dgx, now=NOON, name="secret-plan")
        secrets = [
            create_api_token(session, scope_of(user), name="test", now=NOON)[1]
            for user in (cast.alice, cast.charlie)
        ]
    provider, customer = ({"VEDETTE_URL": url, "VEDETTE_TOKEN": text} for text in secrets)
    listed = ("appliance", "rented-jobs", "dgx-01")
    rows = run_vedette(*listed, environ=provider).stdout.splitlines()
    assert rows[1].split()[:3] == [rental.grant.contract_id, "starting", "1"]
    names = run_vedette(*listed, "-o", "name", environ=provider)
    assert (names.returncode, names.stdout.strip()) == (0, rental.job.id)
    shown = run_vedette("job", "list", environ=customer).stdout
    assert OFFER_NAME in shown
    assert "dgx-01" not in shown
