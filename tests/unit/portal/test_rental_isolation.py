"""A provider and a customer see each other's side of a rental by the contract alone.

acme provides an appliance, on which a job of globex runs; initech has nothing to do with it. Every
route is visited by all of them, so that a new one is visited without being named here.
"""

import json
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import pytest
from flask import Flask
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.db import SessionFactory
from jobqueue.dispatch.appliance_lifecycle import start_drain
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.models import Job
from jobqueue.rentals import without_names, without_words, words_of_customers
from jobqueue.storage.service import record_storage
from logs.ingest import store_batches
from protocol.attempts import ObservedState
from protocol.gpu_processes import GPUProcess
from protocol.lines import ApplianceLine, LineBatch
from protocol.storage import StorageReport, StoredImage
from tenants.fleet.heartbeats import record_heartbeat
from tenants.models import Appliance, Membership, Role, Tenant, TenantState, User
from tests.cast import NOON, Cast, make_appliance, scope_of
from tests.fixtures.rentals import OFFER_NAME, rent
from tests.unit.jobqueue.builders import append_log, inventory, observed
from tests.unit.portal.conftest import Browser, SignIn
from tests.unit.portal.routes import BODIES, READING, address, visits
from tests.unit.portal.test_dash_requests import PATH as DASH_PATH
from tests.unit.portal.test_dash_requests import callbacks
from tests.unit.portal.world import World
from timeseries.points import Point
from timeseries.store import Store, write

# They describe the API, whoever reads them.
DOCUMENTS = {"openapi_document", "operator_openapi_document", "public_openapi_document"}
CUSTOMERS = "customersecret"
PROVIDERS = "providersecret"
IMAGE = f"registry.example/globex/{CUSTOMERS}image:1"
OF_PROVIDER = ("", "/appliances/{appliance_id}", "/appliances/{appliance_id}/gpus/0")
OF_CUSTOMER = ("", "/jobs/{job_id}")


@dataclass(frozen=True, slots=True)
class Rented:
    """The ids of the appliance, of the job that rents it, and of its contract."""

    appliance_id: str
    job_id: str
    contract_id: str


@pytest.fixture
def rented(sessions: SessionFactory, cast: Cast, store: Store, world: World) -> Rented:
    """A job of globex that runs on an appliance of acme, with something of everything."""
    assert world
    with sessions.begin() as session:
        appliance = _appliance(session, cast)
        rental = rent(
            session,
            cast.charlie,
            appliance,
            now=NOON,
            name=f"{CUSTOMERS}-job",
            image=IMAGE,
            command=["python", f"{CUSTOMERS}.py"],
            env={f"{CUSTOMERS.upper()}": f"{CUSTOMERS}-value"},
            labels={f"{CUSTOMERS}-label": "x"},
            outputs=[f"/{CUSTOMERS}-results"],
        )
        seen = observed(rental.attempt, ObservedState.RUNNING, message=f"{CUSTOMERS} runs")
        apply_report(session, appliance.id, [seen], now=NOON)
        append_log(session, rental.attempt, f"{CUSTOMERS} output\n".encode())
        _report(session, appliance, rental.job)
        ids = Rented(appliance.id, rental.job.id, rental.grant.contract_id)
    tags = {"gpu": "0", "uuid": f"GPU-{PROVIDERS}-0", "model": "H100"}
    point = Point("gpu", tags | {"job": ids.job_id}, {"utilization_percent": 50.0}, to_ns(NOON))
    for tenant, place in ((cast.acme, ids.appliance_id), (cast.globex, ids.contract_id)):
        write(store, [point], identity={"tenant": tenant.id, "appliance": place})
    return ids


def _appliance(session: Session, cast: Cast) -> Appliance:
    name = f"{PROVIDERS}-name"
    appliance = make_appliance(session, cast.acme, name, inventory=inventory(PROVIDERS))
    appliance.site, appliance.region = f"{PROVIDERS}-site", f"{PROVIDERS}-region"
    appliance.labels = {f"{PROVIDERS}-label": "x"}
    session.flush()
    return appliance


def _report(session: Session, appliance: Appliance, job: Job) -> None:
    """Report what an agent does, as the agent API stores it."""
    process = GPUProcess(
        pid=7, name=f"{CUSTOMERS}.py", gpu=0, uuid="GPU-0", owner="job", job=job.id
    )
    record_heartbeat(
        session,
        appliance.id,
        inventory=None,
        agent_version="1.0.0",
        sent_at=NOON,
        gpu_processes=without_names(session, appliance.id, [process]),
        now=NOON,
    )
    images = [StoredImage(image_id="sha256:1", names=[IMAGE])]
    record_storage(session, appliance.id, StorageReport(images=images), now=NOON)
    text = f"{PROVIDERS} pulls {IMAGE}"
    batch = LineBatch(key="k" * 16, lines=[ApplianceLine(at_ns=to_ns(NOON), text=text)])
    words = words_of_customers(session, appliance.id, now=NOON)
    store_batches(
        session,
        tenant_id=appliance.tenant_id,
        appliance_id=appliance.id,
        batches=without_words([batch], words),
        now=NOON,
    )


@pytest.fixture
def dave(sessions: SessionFactory, cast: Cast, sign_in: SignIn) -> Browser:
    """The admin of a third tenant."""
    with sessions.begin() as session:
        initech = Tenant(slug="initech", name="Initech", state=TenantState.ACTIVE, created_at=NOON)
        user = User(
            email="dave@initech.example",
            name="Dave",
            password_hash=cast.alice.password_hash,
            created_at=NOON,
        )
        user.memberships.append(Membership(tenant=initech, role=Role.ADMIN, created_at=NOON))
        session.add(user)
    return sign_in(user)


def answers(
    app: Flask,
    browser: Browser,
    ids: dict[str, str],
    *,
    of: Callable[[AbstractSet[str]], bool] = lambda _parameters: True,
    under: str = "/",
) -> dict[str, tuple[int, str]]:
    """Return the status and the text of every route that shows something, by its address.

    Args:
        app: the portal.
        browser: whose answers.
        ids: what stands for the parameters of paths.
        of: whether to visit the routes with these parameters.
        under: how the paths of these routes begin.
    """
    texts = {}
    headers = {"X-CSRFToken": browser.token()}
    for route, method in visits(app):
        if not of(route.arguments) or not str(route).startswith(under):
            continue
        if route.endpoint in DOCUMENTS:
            continue
        if method != "GET" and route.endpoint not in READING:
            continue
        if method == "GET" and str(route).startswith("/static"):
            continue
        path = address(app, route, ids)
        body = BODIES.get(str(route.endpoint)) if method != "GET" else None
        answer = browser.client.open(path, method=method, headers=headers, json=body)
        texts[f"{method} {path}"] = (answer.status_code, answer.data.decode(errors="replace"))
    return texts


def but_of_acme(world: World) -> Callable[[AbstractSet[str]], bool]:
    """Return which routes to visit: `test_tenant_isolation.py` visits those of acme's things."""
    of_acme = world.ids.keys() - {"job_id", "appliance_id"}
    return lambda parameters: not parameters & of_acme


def are_many(seen: dict[str, tuple[int, str]]) -> bool:
    return sum(status == 200 for status, _ in seen.values()) > 80


def dashboards(browser: Browser, paths: tuple[str, ...], ids: dict[str, str]) -> dict[str, str]:
    """Return what the callbacks of dashboards answer, by path and callback."""
    texts = {}
    headers = {"X-CSRFToken": browser.token(), "Content-Type": "application/json"}
    for path in (f"/dashboards{path}".format(**ids) for path in paths):
        for body in callbacks(browser):
            for item in body["inputs"] + body["state"]:
                if (item["id"], item["property"]) == ("url", "pathname"):
                    item["value"] = path
                elif (item["id"], item["property"]) == ("url", "search"):
                    item["value"] = ""
            answer = browser.client.post(DASH_PATH, data=json.dumps(body), headers=headers)
            assert answer.status_code in {200, 204}, (path, body["output"], answer.text)
            texts[f"{path} {body['output'][:60]}"] = answer.text
    return texts


def having(texts: dict[str, tuple[int, str]] | dict[str, str], *words: str) -> list[str]:
    """Return the addresses whose answers have one of some words."""
    return [
        f"{path}: {text[max(0, text.find(word) - 150) : text.find(word) + 150]}"
        for path, answer in texts.items()
        for text in [answer if isinstance(answer, str) else answer[1]]
        for word in words
        if word in text.lower()
    ]


def test_the_provider_sees_nothing_of_the_job(
    app: Flask, world: World, alice: Browser, rented: Rented
) -> None:
    ids = world.ids | {"appliance_id": rented.appliance_id}
    seen = answers(app, alice, ids)
    assert are_many(seen)
    assert having(seen, CUSTOMERS, "charlie@globex") == []
    assert having(dashboards(alice, OF_PROVIDER, ids), CUSTOMERS, "charlie@globex") == []
    page = seen[f"GET /appliances/{rented.appliance_id}"][1]
    assert "rented job" in page
    assert rented.contract_id in page
    (job,) = json.loads(seen[f"GET /api/v1/appliances/{rented.appliance_id}/rented-jobs"][1])[
        "items"
    ]
    assert (job["contract_id"], job["gpu_uuids"]) == (
        rented.contract_id,
        [f"GPU-{PROVIDERS}-0"],
    )


def test_the_job_is_none_of_the_provider(
    app: Flask, world: World, alice: Browser, rented: Rented
) -> None:
    ids = world.ids | {"job_id": rented.job_id}
    seen = answers(app, alice, ids, of=lambda parameters: "job_id" in parameters)
    of_job = {path: status for path, (status, _) in seen.items() if rented.job_id in path}
    assert len(of_job) >= 20
    assert set(of_job.values()) == {404}
    assert having(seen, CUSTOMERS) == []


def test_the_customer_sees_nothing_of_the_appliance(
    app: Flask, world: World, charlie: Browser, rented: Rented
) -> None:
    ids = world.ids | {"job_id": rented.job_id, "appliance_id": rented.appliance_id}
    seen = answers(app, charlie, ids, of=but_of_acme(world))
    assert are_many(seen)
    others = {path: text for path, text in seen.items() if rented.appliance_id not in path}
    # GPUs have their UUIDs in the container, too; here they are made of a marker.
    texts = {
        path: text.replace(f"GPU-{PROVIDERS}", "").replace(rented.appliance_id, PROVIDERS)
        for path, (_, text) in others.items()
    }
    assert having(texts, PROVIDERS, "alice@acme") == []
    shown = dashboards(charlie, OF_CUSTOMER, world.ids | {"job_id": rented.job_id})
    assert (
        having(
            {path: text.replace(f"GPU-{PROVIDERS}", "") for path, text in shown.items()},
            PROVIDERS,
            rented.appliance_id,
        )
        == []
    )
    job = json.loads(seen[f"GET /api/v1/jobs/{rented.job_id}"][1])
    assert (job["appliance_id"], job["appliance_name"]) == (None, f"{OFFER_NAME} (rented)")
    assert (job["contract_id"], job["attempt"]["region"]) == (rented.contract_id, "eu-central")
    assert OFFER_NAME in seen[f"GET /jobs/{rented.job_id}"][1]
    of_appliance = {status for path, (status, _) in seen.items() if rented.appliance_id in path}
    assert of_appliance == {404}


def test_its_log_and_charts_are_the_customers(charlie: Browser, rented: Rented) -> None:
    assert f"{CUSTOMERS} output" in charlie.get(f"/api/v1/jobs/{rented.job_id}/log").text
    usage = charlie.get(f"/api/v1/jobs/{rented.job_id}/usage").text
    assert "utilization_percent" in usage


# The pages show what the API answers.
@pytest.mark.parametrize("under", ["/api/", pytest.param("/", marks=pytest.mark.nightly)])
def test_a_third_tenant_sees_neither(
    app: Flask, world: World, dave: Browser, rented: Rented, under: str
) -> None:
    ids = world.ids | {"job_id": rented.job_id, "appliance_id": rented.appliance_id}
    seen = answers(app, dave, ids, of=but_of_acme(world), under=under)
    assert are_many(seen)
    assert having(seen, CUSTOMERS, PROVIDERS, OFFER_NAME.lower(), rented.contract_id) == []


def test_a_drain_shows_that_a_rented_job_runs(
    alice: Browser, sessions: SessionFactory, cast: Cast, rented: Rented
) -> None:
    with sessions.begin() as session:
        start_drain(session, scope_of(cast.alice), rented.appliance_id, now=NOON)
    path = f"appliances/{rented.appliance_id}"
    answer = alice.get(f"/api/v1/{path}/drain")
    assert answer.json is not None
    (job,) = answer.json["jobs"]
    assert (job["name"], job["contract_id"]) == ("rented job", rented.contract_id)
    for page in (f"/{path}", f"/{path}/drain"):
        assert CUSTOMERS not in alice.get(page).text
    retired = alice.call("POST", f"/api/v1/{path}/retire")
    assert retired.status_code == 409
    assert CUSTOMERS not in retired.text
