"""Job templates: those that ship, and those of a tenant."""

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.queue.service import submit_job
from jobqueue.queue.shipped_templates import SHIPPED, ShippedTemplate
from jobqueue.queue.templates import (
    ITEMS,
    TemplateRequest,
    delete_template,
    get_template,
    list_templates,
    replace_template,
    request_of,
    save_template,
)
from protocol.job_spec import JobRequest, Mount, Port
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance

TUNE = JobRequest(
    name="tune",
    image="acme/tune:3",
    gpus=2,
    secrets={"HF_TOKEN": "x"},
    ports=[Port(container_port=6006, name="web")],
    mounts=[Mount(source="/data", target="/data")],
)


def wanted(name: str = "tune", job: JobRequest = TUNE) -> TemplateRequest:
    return TemplateRequest(name=name, description="LoRA", job=job)


@pytest.mark.parametrize("template", SHIPPED, ids=lambda shipped: shipped.name)
def test_a_shipped_template_can_be_submitted(
    session: Session, cast: Cast, template: ShippedTemplate
) -> None:
    for number in range(template.request.nodes):
        add_appliance(session, cast.acme, f"dgx-{number}")
    stored = get_template(session, scope_of(cast.bob), template.name)
    job = submit_job(session, scope_of(cast.bob), request_of(stored), box=BOX, now=NOON)
    assert (job.image, job.gpus) == (template.request.image, template.request.gpus)
    for script in (word for word in job.command if "import" in word):
        compile(script, template.name, "exec")
    with pytest.raises(ConflictError):
        delete_template(session, scope_of(cast.alice), template.name)


def test_a_template_has_everything_of_its_job_but_secrets(session: Session, cast: Cast) -> None:
    saved = save_template(session, scope_of(cast.bob), wanted(), now=NOON)
    session.expire_all()
    request = request_of(get_template(session, scope_of(cast.alice), "tune"))
    assert (request.image, request.gpus, request.ports, request.mounts) == (
        TUNE.image,
        TUNE.gpus,
        TUNE.ports,
        TUNE.mounts,
    )
    assert request.secrets == {}
    assert "HF_TOKEN" not in str(saved.request)
    assert [listed.name for listed in list_templates(session, scope_of(cast.alice))][:2] == [
        "tune",
        SHIPPED[0].name,
    ]


def test_templates_belong_to_their_tenant_and_user(session: Session, cast: Cast) -> None:
    saved = save_template(session, scope_of(cast.alice), wanted(), now=NOON)
    for ident in (saved.id, "tune"):
        with pytest.raises(NotFoundError):
            get_template(session, scope_of(cast.charlie), ident)
    with pytest.raises(ForbiddenError):
        delete_template(session, scope_of(cast.bob), saved.id)
    own = save_template(session, scope_of(cast.bob), wanted("bob's"), now=NOON)
    changed = wanted("bob's", JobRequest(name="tune", image="acme/tune:4"))
    replace_template(session, scope_of(cast.alice), own.id, changed, now=NOON)
    assert request_of(own).image == "acme/tune:4"
    assert delete_template(session, scope_of(cast.bob), own.id) == "bob's"


def test_errors_and_taken_names_are_reported(session: Session, cast: Cast) -> None:
    bob = scope_of(cast.bob)
    broken = JobRequest(name="", image="UPPER", gpus=-1)
    with pytest.raises(InvalidInputError) as caught:
        save_template(session, bob, TemplateRequest(name="a/b", job=broken), now=NOON)
    assert caught.value.errors.keys() == {"name", "image", "gpus"}
    for number in range(ITEMS.max_items):
        save_template(session, bob, wanted(f"tune {number}"), now=NOON)
    with pytest.raises(ConflictError, match="'tune 0'"):
        save_template(session, bob, wanted("tune 0"), now=NOON)
    with pytest.raises(ConflictError, match="200"):
        save_template(session, bob, wanted(), now=NOON)
