"""What an appliance gets of a customer's job that rents it, and what its provider sees of it."""

from pathlib import Path

import msgspec
import pytest
from sqlalchemy import delete
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from core.settings import ServerSettings
from jobqueue.dispatch.appliance_lifecycle import (
    drain_progress,
    running_job_names,
    start_drain,
    sweep_attempts,
)
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.images.tokens import RegistryTokens
from jobqueue.models import Attempt, Job
from jobqueue.partitions.allocations import read_gpu_allocations
from jobqueue.partitions.fleet import gpus_in_use
from jobqueue.queue.service import attempts_between, job_events
from jobqueue.rentals import (
    HIDDEN_IMAGE,
    HIDDEN_WORD,
    RENTED_JOB,
    RentedJob,
    list_rented_jobs,
    listed_job,
    without_names,
    without_words,
    words_of_customers,
)
from jobqueue.states import AttemptState, JobState
from jobqueue.storage.service import read_storage, record_storage
from protocol.attempts import AttemptSpec, ObservedState
from protocol.gpu_processes import GPUProcess
from protocol.job_spec import ContainerPolicy, Mount
from protocol.lines import ApplianceLine, LineBatch
from protocol.storage import CleanupResult, StorageReport, StoredImage
from tenants.fleet.appliances import appliance_names
from tenants.models import Appliance, ApplianceState, Tenant, TenantState
from tests.cast import BOX, NOON, Cast, scope_of
from tests.fixtures.rentals import OFFER_NAME, Rental, rent
from tests.unit.jobqueue.builders import add_appliance, observed, start

REGISTRY = "registry.example"
SECRET_IMAGE = f"{REGISTRY}/globex/secret-model:3"


@pytest.fixture
def tokens(tmp_path: Path) -> RegistryTokens:
    settings = ServerSettings(data_dir=tmp_path, registry_url=f"https://{REGISTRY}")
    return RegistryTokens(settings)


@pytest.fixture
def dgx(session: Session, cast: Cast) -> Appliance:
    return add_appliance(session, cast.acme, "dgx-01")


@pytest.fixture
def rental(session: Session, cast: Cast, dgx: Appliance) -> Rental:
    """A job of globex on acme's dgx-01."""
    return rent(session, cast.charlie, dgx, now=NOON, name="secret-plan", image=SECRET_IMAGE)


def spec_of(session: Session, attempt: Attempt, tokens: RegistryTokens | None) -> AttemptSpec:
    state = desired_state(session, attempt.appliance_id, box=BOX, registry=tokens, now=NOON)
    return next(spec for spec in state.attempts if spec.attempt_id == attempt.id)


def test_a_rented_attempt_gets_the_strictest_policy_and_nothing_of_the_host(
    session: Session, rental: Rental, tokens: RegistryTokens
) -> None:
    job = rental.job
    job.container_policy = ContainerPolicy.STANDARD
    job.network, job.uses_rdma = "host", True
    job.mounts = [msgspec.to_builtins(Mount(source="/data", target="/data"))]
    session.flush()
    spec = spec_of(session, rental.attempt, tokens)
    assert spec.container_policy == ContainerPolicy.RESTRICTED
    assert (spec.network, spec.uses_rdma, spec.mounts) == ("bridge", False, [])
    assert spec.name == RENTED_JOB
    assert spec.always_pulls


def test_its_image_is_pulled_with_a_token_of_its_own_tenant(
    session: Session, rental: Rental, tokens: RegistryTokens
) -> None:
    state = desired_state(session, rental.attempt.appliance_id, box=BOX, registry=tokens, now=NOON)
    assert state.registry is None  # the token of acme's appliance is not for globex's images
    assert state.attempts[0].registry is not None
    assert state.attempts[0].registry.host == REGISTRY


def test_an_own_attempt_is_as_before_unless_its_image_is_another_tenants(
    session: Session, cast: Cast, tokens: RegistryTokens
) -> None:
    attempt = start(session, cast, image=f"{REGISTRY}/acme/train:1")
    assert not spec_of(session, attempt, tokens).always_pulls
    attempt.job.image = SECRET_IMAGE
    session.flush()
    stolen = spec_of(session, attempt, tokens)
    assert stolen.always_pulls  # one that a customer's job has left would start otherwise
    assert stolen.registry is None


def test_the_provider_sees_a_contract_and_gpus_but_no_names(
    session: Session, cast: Cast, rental: Rental, dgx: Appliance
) -> None:
    scope = scope_of(cast.alice)
    (seen,) = list_rented_jobs(session, scope, dgx.id).items
    assert seen == RentedJob(
        id=rental.job.id,
        contract_id=rental.grant.contract_id,
        state=AttemptState.STARTING,
        gpu_uuids=["GPU-dgx-01-0"],
        since=NOON,
    )
    assert seen.name == "rented job"
    allocations = read_gpu_allocations(session, scope, appliance_id=dgx.id)
    assert allocations.job_of("GPU-dgx-01-0") == seen
    assert gpus_in_use(session, cast.acme.id) == {"GPU-dgx-01-0"}
    assert running_job_names(session, dgx.id) == [RENTED_JOB]


def test_other_tenants_and_the_customer_see_nothing_of_the_appliance(
    session: Session, cast: Cast, rental: Rental, dgx: Appliance
) -> None:
    with pytest.raises(NotFoundError):
        list_rented_jobs(session, scope_of(cast.charlie), dgx.id)
    assert not read_gpu_allocations(session, scope_of(cast.charlie)).by_gpu
    assert gpus_in_use(session, cast.globex.id) == set()
    assert rental.attempt.own_appliance is None
    assert rental.attempt.place_name == f"{OFFER_NAME} (rented)"
    names = appliance_names(session, (cast.globex.id,))
    assert names == {rental.grant.contract_id: f"{OFFER_NAME} (rented)"}


def test_an_operator_sees_the_job_itself(cast: Cast, rental: Rental) -> None:
    assert listed_job(rental.attempt, scope_of(cast.olivia)) is rental.job


def test_the_history_of_the_appliance_names_no_rented_job(
    session: Session, cast: Cast, rental: Rental, dgx: Appliance
) -> None:
    apply_report(session, dgx.id, [observed(rental.attempt, ObservedState.RUNNING)], now=NOON)
    scope, end = scope_of(cast.alice), NOON.replace(hour=13)
    own = attempts_between(session, scope, dgx.id, start=NOON, end=end, limit=9)
    everything = attempts_between(
        session, scope, dgx.id, start=NOON, end=end, limit=9, has_rented=True
    )
    assert (list(own), [listed_job(attempt, scope).name for attempt in everything]) == (
        [],
        [RENTED_JOB],
    )


@pytest.mark.usefixtures("rental")
def test_a_drain_lists_a_rented_job(session: Session, cast: Cast, dgx: Appliance) -> None:
    start_drain(session, scope_of(cast.alice), dgx.id, now=NOON)
    progress = drain_progress(session, dgx)
    assert progress is not None
    assert [job.name for job in progress.jobs] == [RENTED_JOB]


def test_messages_of_the_job_name_the_offer(
    session: Session, cast: Cast, rental: Rental, dgx: Appliance
) -> None:
    dgx.state = ApplianceState.UNREACHABLE
    session.flush()
    sweep_attempts(session, now=NOON)
    dgx.state = ApplianceState.LOST
    session.flush()
    sweep_attempts(session, now=NOON)
    session.refresh(rental.job)
    texts = [event.message for event in job_events(session, scope_of(cast.charlie), rental.job.id)]
    assert rental.job.state is JobState.LOST
    assert f"{OFFER_NAME} (rented) is lost" in texts[-1]
    assert not any("dgx-01" in text for text in texts)


def test_quarantine_by_rented_jobs_names_no_image(
    session: Session, cast: Cast, rental: Rental, dgx: Appliance
) -> None:
    other = rent(session, cast.charlie, dgx, now=NOON, grant=rental.grant, image=SECRET_IMAGE)
    for each in (rental, other):
        message = f"{SECRET_IMAGE} can't start"
        report = observed(
            each.attempt, ObservedState.FAILED, reason="start_failed", message=message
        )
        apply_report(session, dgx.id, [report], now=NOON)
    session.refresh(dgx)
    assert dgx.quarantined_at == NOON
    assert "secret" not in dgx.quarantine_reason


def test_failed_pulls_of_a_customer_dont_quarantine_the_appliance(
    session: Session, cast: Cast, rental: Rental, dgx: Appliance
) -> None:
    add_appliance(session, cast.acme, "dgx-02")
    other = rent(session, cast.charlie, dgx, now=NOON, grant=rental.grant)
    for each in (rental, other):
        report = observed(each.attempt, ObservedState.FAILED, reason="image_pull_failed")
        apply_report(session, dgx.id, [report], now=NOON)
    session.refresh(dgx)
    assert dgx.quarantined_at is None


def storage_report(*names: str, **changes: object) -> StorageReport:
    images = [StoredImage(image_id=f"sha256:{at}", names=[name]) for at, name in enumerate(names)]
    return msgspec.structs.replace(StorageReport(images=images), **changes)


def test_images_of_rented_jobs_have_no_names(
    session: Session, cast: Cast, rental: Rental, dgx: Appliance
) -> None:
    dgx_report = storage_report("postgres:17", SECRET_IMAGE)
    error = f"conflict: unable to delete {SECRET_IMAGE}"
    cleanup = CleanupResult(finished_at_ns=1, errors=[error])
    record_storage(session, dgx.id, msgspec.structs.replace(dgx_report, cleanup=cleanup), now=NOON)
    view = read_storage(session, scope_of(cast.alice), dgx.id, now=NOON)
    assert view.report is not None
    assert [image.names for image in view.report.images] == [["postgres:17"], [HIDDEN_IMAGE]]
    assert view.report.images[1].image_id != "sha256:1"
    assert view.cleanup is not None
    assert not any("secret" in text for text in view.cleanup.errors)
    # It stays so when the job is forgotten.
    session.execute(delete(Job).where(Job.id == rental.job.id))
    session.expire_all()
    record_storage(session, dgx.id, dgx_report, now=NOON)
    view = read_storage(session, scope_of(cast.alice), dgx.id, now=NOON)
    assert view.report is not None
    assert view.report.images[1].names == [HIDDEN_IMAGE]


def test_an_image_that_was_there_before_stays_the_providers(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    record_storage(session, dgx.id, storage_report("python:3.13"), now=NOON)
    rent(session, cast.charlie, dgx, now=NOON)
    record_storage(session, dgx.id, storage_report("python:3.13"), now=NOON)
    view = read_storage(session, scope_of(cast.alice), dgx.id, now=NOON)
    assert view.report is not None
    assert view.report.images[0].names == ["python:3.13"]


def test_processes_of_rented_jobs_have_no_names(
    session: Session, rental: Rental, dgx: Appliance
) -> None:
    process = GPUProcess(pid=7, name="secret.py", gpu=0, uuid="GPU-0", owner="job", container="c1")
    own = msgspec.structs.replace(process, name="train.py", job="own")
    rented = msgspec.structs.replace(process, job=rental.job.id)
    shown = without_names(session, dgx.id, [own, rented])
    assert shown is not None
    assert [(seen.name, seen.container) for seen in shown] == [("train.py", "c1"), ("", "")]


def test_lines_of_the_appliance_name_no_rented_image(
    session: Session, cast: Cast, rental: Rental, dgx: Appliance
) -> None:
    rent(session, cast.charlie, dgx, now=NOON, grant=rental.grant, image="python:3.13")
    text = f"pulling {SECRET_IMAGE}; {SECRET_IMAGE[:-2]} failed; python ran python:3.13"
    batch = LineBatch(key="k" * 16, lines=[ApplianceLine(at_ns=1, text=text)])
    (shown,) = without_words([batch], words_of_customers(session, dgx.id, now=NOON))
    assert shown.lines[0].text == (
        f"pulling {HIDDEN_WORD}; {HIDDEN_WORD} failed; python ran {HIDDEN_WORD}"
    )


@pytest.mark.parametrize("side", ["acme", "globex"])
def test_a_rental_ends_with_the_tenant_of_a_side(
    session: Session, cast: Cast, rental: Rental, side: str
) -> None:
    tenant = session.get_one(Tenant, getattr(cast, side).id)
    tenant.state = TenantState.SUSPENDED
    session.flush()
    sweep_attempts(session, now=NOON)
    session.refresh(rental.attempt)
    assert rental.attempt.state is AttemptState.LOST
    assert OFFER_NAME in rental.attempt.message
