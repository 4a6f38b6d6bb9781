"""`/jobs`: where a job would go, why it waits, and the jobs of a file."""

from typing import Any

from marshmallow import Schema, fields, validate

from core.spec import MAX_INTEGER
from jobqueue.dispatch.capacity import list_capacities
from jobqueue.jobs.appliance_requests import MAX_PROFILE_LENGTH
from jobqueue.placement.decisions import Action
from jobqueue.placement.explanation import Explanation
from jobqueue.queue.pending import explain_job, explain_new, try_job
from jobqueue.queue.service import apply_jobs, get_job, rehearse_jobs
from jobqueue.queue.slice_offers import slices_that_fit
from jobqueue.states import WAITING
from portal.api.blueprint import APIBlueprint
from portal.api.job_requests import ApplicationSchema, JobRequestSchema, job_request
from portal.api.schemas import PageQuery, StrictSchema, about, envelope, page_of, whole_list
from portal.context import current_scope, database, now, portal
from protocol.gpu_slices import PartitionMode
from protocol.inventory import MAX_GPUS
from protocol.job_spec import JobRequest
from tenants.models import ApplianceState
from tenants.permissions import Permission

MAX_SEARCH_LENGTH = 100

job_placement = APIBlueprint(
    "Job placement",
    "/jobs",
    "Where jobs go and why they wait.",
    changes=Permission.SUBMIT_JOBS,
)


class ExampleSchema(Schema):
    """An appliance that is not eligible, and why."""

    appliance_id = fields.String(**about("Empty for a rented one."))
    appliance = fields.String(**about("Its name, or the offer of a rented one."))
    fact = fields.String()


class RejectionSchema(Schema):
    """How many appliances are not eligible for one reason, with a few of them."""

    code = fields.String()
    count = fields.Integer()
    examples = fields.List(fields.Nested(ExampleSchema))


class PartSchema(Schema):
    """A part of a job's points: its value times its weight."""

    name = fields.String(**about("`priority`, `fair_share`, `age` or `size`."))
    value = fields.Float(**about("The age is in days."))
    weight = fields.Integer()
    points = fields.Float()


class ForecastErrorsSchema(Schema):
    """By how much the tenant's forecasts of the last 30 days were too early or too late."""

    count = fields.Integer()
    median_seconds = fields.Float()
    p90_seconds = fields.Float()


class ExplanationSchema(Schema):
    """Why a job waits, or where a new one would go; the most relevant reason comes first."""

    is_pending = fields.Boolean(**about("False if it has been placed, or would be at once."))
    reason = fields.String()
    appliance_id = fields.String(
        allow_none=True, **about("Where it starts, or for which it waits; null for a rented one.")
    )
    position = fields.Integer(allow_none=True)
    queue_length = fields.Integer(allow_none=True)
    needs = fields.String(**about("What would have to free up."))
    data = fields.String(**about("Which appliances have the most of its datasets in their caches."))
    expected_start_at = fields.AwareDateTime(
        allow_none=True, **about("By time limits; null if it can't be estimated.")
    )
    past_errors = fields.Nested(
        ForecastErrorsSchema,
        allow_none=True,
        **about("Null until a job that had a forecast has started."),
    )
    points = fields.Float(**about("The sum of the parts; more come first."))
    parts = fields.List(
        fields.Nested(PartSchema),
        **about("Empty if the queue is ordered by submission and priority."),
    )
    rank = fields.Integer(allow_none=True, **about("Of the user in the fair share tree, from 1."))
    user_count = fields.Integer(**about("How many users have a rank."))
    rejections = fields.List(fields.Nested(RejectionSchema))
    assumption = fields.String(**about("Of a dry run: that its dependencies are met, for example."))


class AppliedJobSchema(Schema):
    """A job of a file."""

    job_id = fields.String(allow_none=True, **about("Null after a dry run."))
    name = fields.String()
    placement = fields.Nested(ExplanationSchema, allow_none=True, **about("Of a dry run."))


@job_placement.operation("POST", "/dry-run", body=JobRequestSchema, answer=ExplanationSchema)
def dry_run(body: dict[str, Any]) -> dict[str, Any]:
    """Return where a new job would go and when, and why not elsewhere; nothing is submitted."""
    with database() as session:
        return _explained(try_job(session, current_scope(), job_request(body), now=now()), "")


@job_placement.operation("POST", "/apply", body=ApplicationSchema, answer=page_of(AppliedJobSchema))
def apply(body: dict[str, Any]) -> dict[str, Any]:
    """Submit the jobs of a file: all or none; a dry run returns where they would go, and when."""
    requests = [job_request(job) for job in body["jobs"]]
    scope, box = current_scope(), portal().secrets
    if not body["is_dry_run"]:
        with database() as session:
            made = apply_jobs(session, scope, requests, box=box, now=now())
        rows = [{"job_id": job.id, "name": job.name, "placement": None} for job in made]
        return whole_list(rows)
    with database() as session:
        tried = rehearse_jobs(session, scope, requests, box=box, now=now())
    # Planning a long queue takes a while: nobody's writes wait for it.
    with database() as session:
        explanations = explain_new(session, scope, tried, now=now())
    return whole_list(
        [
            {"job_id": None, "name": job.name, "placement": _explained(explanations[job.id], "")}
            for job in tried
        ]
    )


class CapacityQuery(PageQuery):
    """Which appliances to list."""

    search = fields.String(
        load_default="",
        validate=validate.Length(max=MAX_SEARCH_LENGTH),
        **about("A part of the name, site, region or GPU model."),
    )


class CapacitySchema(Schema):
    """An appliance with its GPUs."""

    appliance_id = fields.String()
    name = fields.String()
    gpus = fields.Integer()
    usable_gpus = fields.Integer(**about("GPUs that have not failed."))
    free_gpus = fields.Integer(
        **about("Usable whole GPUs without a job or a program outside of jobs.")
    )
    shared_gpus = fields.Integer(**about("Usable GPUs that jobs get slices of."))
    slots = fields.Integer(
        **about("Slots of these: of the memory under MIG, else one for each share.")
    )
    free_slots = fields.Integer(**about("Those without a job."))
    state = fields.Enum(ApplianceState, by_value=True)
    is_drained = fields.Boolean()
    is_quarantined = fields.Boolean()
    summary = fields.String(**about("The same in words."))


@job_placement.operation(
    "GET",
    "/appliances",
    query=CapacityQuery,
    answer=page_of(CapacitySchema),
    needs=Permission.SUBMIT_JOBS,
)
def capacities(query: dict[str, Any]) -> dict[str, Any]:
    """List appliances by name with their usable and free GPUs, to choose one for a job."""
    with database() as session:
        return envelope(list_capacities(session, current_scope(), **query))


class IsolationSchema(Schema):
    """What separates a job from others on the same GPU."""

    memory = fields.String()
    faults = fields.String()
    bandwidth = fields.String()
    metrics = fields.String()


class OfferSchema(Schema):
    """Slices of a kind that suffice for a request, or whole GPUs where no slice does."""

    mode = fields.Enum(PartitionMode, by_value=True, attribute="kind.mode")
    gpu_model = fields.String(attribute="kind.gpu_model")
    profile = fields.String(attribute="kind.profile", **about("Under MIG."))
    memory_bytes = fields.Integer(attribute="kind.memory_bytes")
    share_milli = fields.Integer(attribute="kind.share_milli", **about("Thousandths of the GPU."))
    free = fields.Integer(**about("How many fit now."))
    total = fields.Integer(**about("How many fit on idle GPUs."))
    title = fields.String()
    text = fields.String()
    isolation = fields.Nested(IsolationSchema)


class OfferQuery(StrictSchema):
    """What a job would request; see there."""

    gpus = fields.Integer(load_default=0, validate=validate.Range(0, MAX_GPUS))
    gpu_slice = fields.String(load_default="", validate=validate.Length(max=MAX_PROFILE_LENGTH))
    gpu_memory_bytes = fields.Integer(load_default=0, validate=validate.Range(0, MAX_INTEGER))
    gpu_compute = fields.Float(load_default=0.0, validate=validate.Range(0, 1))
    gpu_model = fields.String(
        load_default="",
        validate=validate.Length(max=MAX_SEARCH_LENGTH),
        **about("A word of the GPU model."),
    )
    appliance = fields.String(load_default="", **about("Its name or ID."))


@job_placement.operation(
    "GET",
    "/gpu-offers",
    query=OfferQuery,
    answer=page_of(OfferSchema),
    needs=Permission.SUBMIT_JOBS,
)
def gpu_offers(query: dict[str, Any]) -> dict[str, Any]:
    """List which slices, or whole GPUs, a job could get now, and what each isolates."""
    word, appliance = query.pop("gpu_model").strip(), query.pop("appliance")
    request = JobRequest(name="", image="-", gpu_models=[word] if word else [], **query)
    with database() as session:
        scope = current_scope()
        return whole_list(slices_that_fit(session, scope, request, appliance=appliance, now=now()))


@job_placement.operation("GET", "/<job_id>/pending", answer=ExplanationSchema)
def pending(job_id: str) -> dict[str, Any]:
    """Return why a job waits, what would have to free up, and when it is expected to start."""
    with database() as session:
        job = get_job(session, current_scope(), job_id)
        explanation = explain_job(session, current_scope(), job_id, now=now())
        return _explained(explanation, job.message, is_pending=job.state in WAITING)


def _explained(
    explanation: Explanation | None, message: str, *, is_pending: bool = False
) -> dict[str, Any]:
    if explanation is None:
        nothing = dict.fromkeys(("appliance_id", "position", "queue_length", "expected_start_at"))
        points = {"points": 0.0, "parts": [], "rank": None, "user_count": 0, "past_errors": None}
        shown = {"is_pending": is_pending, "reason": message}
        return {
            **shown,
            "needs": "",
            "data": "",
            "rejections": [],
            "assumption": "",
            **nothing,
            **points,
        }
    decision = explanation.decision
    return {
        "is_pending": decision.action is not Action.ASSIGN,
        "reason": decision.reason,
        "appliance_id": None if decision.rental else decision.appliance_id,
        "position": explanation.position,
        "queue_length": explanation.queue_length,
        "needs": explanation.needs,
        "data": explanation.data,
        "expected_start_at": explanation.expected_start_at,
        "past_errors": explanation.past_errors,
        "points": explanation.points,
        "parts": explanation.parts,
        "rank": explanation.rank,
        "user_count": explanation.user_count,
        "rejections": decision.rejections,
        "assumption": explanation.assumption,
    }
