"""Metronome's API: jobs, schedules, runs and the queue.

Source: Metronome's `jobspec.schema.json`, `schedulespec.schema.json` and controllers.
"""

import re
import secrets
import string
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import RLock

from apscheduler.triggers.cron import CronTrigger
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.mesos.cluster import Cluster, Task, TaskRequest
from tests.mesos.serving import Answer, HTTPError, application, body_of, flag, message, ticking

JOB_ID = re.compile(r"([a-z0-9]+(-[a-z0-9]+)*)(\.([a-z0-9]+(-[a-z0-9]+)*))*")
RUN_KEYS = frozenset(
    {
        "args", "artifacts", "cmd", "cpus", "gpus", "disk", "networks", "ucr", "docker", "env",
        "maxLaunchDelay", "mem", "placement", "user", "taskKillGracePeriodSeconds", "restart",
        "volumes", "secrets",
    }
)  # fmt: skip
LEAST = {"cpus": 0.01, "mem": 32, "disk": 0}
POLICIES = frozenset({"ALLOW", "FORBID"})
TICK_SECONDS = 0.05


def timestamp(at: datetime | None = None) -> str:
    """Return an instant as Metronome writes it."""
    return f"{at or datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "+0000"


@dataclass(slots=True)
class Run:
    """One run of a job."""

    id: str
    status: str = "INITIAL"
    created_at: str = field(default_factory=timestamp)
    completed_at: str | None = None
    task: Task | None = None
    is_stopped: bool = False


@dataclass(slots=True)
class Job:
    """One job with its schedules, runs and history."""

    spec: Answer
    schedules: dict[str, Answer] = field(default_factory=dict)
    next_at: dict[str, datetime] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    succeeded: list[Answer] = field(default_factory=list)
    failed: list[Answer] = field(default_factory=list)


class Metronome:
    """The state of a Metronome, which a thread brings about."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.jobs: dict[str, Job] = {}
        self.lock = RLock()
        ticking(self.tick, is_over=cluster.closing.is_set, seconds=TICK_SECONDS)

    def job(self, job_id: str) -> Job:
        """Return a job, or 404."""
        if job_id not in self.jobs:
            raise HTTPError(404, {"id": job_id, "message": "Job not found"})
        return self.jobs[job_id]

    def start(self, job: Job) -> Run:
        """Create a run."""
        alphabet = string.ascii_letters + string.digits
        suffix = "".join(secrets.choice(alphabet) for _ in range(5))
        run = Run(f"{datetime.now(UTC):%Y%m%d%H%M%S}{suffix}")
        job.runs[run.id] = run
        return run

    def stop(self, job: Job, run_id: str) -> None:
        """Stop a run."""
        if run_id not in job.runs:
            body = {"id": run_id, "jobSpec": job.spec["id"], "message": "Job Run not found"}
            raise HTTPError(404, body)
        run = job.runs[run_id]
        run.is_stopped = True
        if run.task is None:
            self._finish(job, run, is_success=False)
        else:
            self.cluster.kill(run.task)

    def schedule(self, job: Job, body: Answer, schedule_id: str | None = None) -> Answer:
        """Add or change a schedule."""
        schedule = {
            "timezone": "UTC", "startingDeadlineSeconds": 900, "concurrencyPolicy": "ALLOW",
            "enabled": True, **body,
        }  # fmt: skip
        faults = {}
        try:
            trigger = CronTrigger.from_crontab(
                str(schedule.get("cron")), timezone=schedule["timezone"]
            )
        except (ValueError, KeyError):
            faults["/cron"] = f"Can not read cron expression {schedule.get('cron')!r}"
        if schedule["concurrencyPolicy"] not in POLICIES:
            faults["/concurrencyPolicy"] = (
                f"'{schedule['concurrencyPolicy']}' is not a valid concurrency policy"
            )
        refuse(faults)
        key = schedule_id or str(schedule["id"])
        if schedule_id is None and job.schedules:
            raise message(409, "A schedule with this id already exists")
        job.schedules[key] = schedule
        job.next_at[key] = trigger.get_next_fire_time(None, datetime.now(UTC))
        return self.schedule_answer(job, key)

    def tick(self) -> None:
        """Start what is due, and launch what waits."""
        with self.lock:
            for job in list(self.jobs.values()):
                for key, schedule in job.schedules.items():
                    if schedule["enabled"] and job.next_at[key] <= datetime.now(UTC):
                        trigger = CronTrigger.from_crontab(
                            schedule["cron"], timezone=schedule["timezone"]
                        )
                        previous = job.next_at[key]
                        job.next_at[key] = trigger.get_next_fire_time(previous, datetime.now(UTC))
                        if schedule["concurrencyPolicy"] == "ALLOW" or not job.runs:
                            self.start(job)
                for run in list(job.runs.values()):
                    if run.task is None and not run.is_stopped:
                        self._launch(job, run)

    def _launch(self, job: Job, run: Run) -> None:
        request = task_request(job.spec["run"])
        if self.cluster.rejections(request):
            return
        run.status = "STARTING"
        task_id = f"{job.spec['id']}_{run.id}.{secrets.token_hex(8)}"
        run.task = self.cluster.launch(
            task_id, request, framework="metronome", on_update=self._on_update
        )
        run.task.notes |= {"job": job, "run": run}

    def _on_update(self, task: Task) -> None:
        with self.lock:
            if "run" not in task.notes:
                return
            job, run = task.notes["job"], task.notes["run"]
            if not task.is_final:
                run.status = "ACTIVE"
            elif task.state == "TASK_FINISHED":
                self._finish(job, run, is_success=True)
            elif not run.is_stopped and job.spec["run"]["restart"]["policy"] == "ON_FAILURE":
                run.task, run.status = None, "STARTING"
            else:
                self._finish(job, run, is_success=False)

    def _finish(self, job: Job, run: Run, *, is_success: bool) -> None:
        run.status, run.completed_at = "SUCCESS" if is_success else "FAILED", timestamp()
        job.runs.pop(run.id, None)
        tasks = [] if run.task is None else [run.task.id]
        ended = {"id": run.id, "createdAt": run.created_at, "finishedAt": run.completed_at}
        (job.succeeded if is_success else job.failed).insert(0, {**ended, "tasks": tasks})

    def run_answer(self, job: Job, run: Run) -> Answer:
        """Return a run as the API shows it."""
        task = run.task
        tasks = [] if task is None else [
            {"id": task.id, "startedAt": task.started_at, "status": task.state}
        ]  # fmt: skip
        return {
            "id": run.id, "jobId": job.spec["id"], "status": run.status,
            "createdAt": run.created_at, "completedAt": run.completed_at, "tasks": tasks,
        }  # fmt: skip

    def schedule_answer(self, job: Job, key: str) -> Answer:
        """Return a schedule as the API shows it."""
        return {**job.schedules[key], "nextRunAt": timestamp(job.next_at[key].astimezone(UTC))}

    def job_answer(self, job: Job, *, embed: list[str]) -> Answer:
        """Return a job as the API shows it."""
        answer = dict(job.spec)
        if "activeRuns" in embed:
            answer["activeRuns"] = [self.run_answer(job, run) for run in job.runs.values()]
        if "schedules" in embed:
            answer["schedules"] = [self.schedule_answer(job, key) for key in job.schedules]
        if "history" in embed:
            answer["history"] = {
                "successCount": len(job.succeeded), "failureCount": len(job.failed),
                "lastSuccessAt": job.succeeded[0]["finishedAt"] if job.succeeded else None,
                "lastFailureAt": job.failed[0]["finishedAt"] if job.failed else None,
                "successfulFinishedRuns": job.succeeded, "failedFinishedRuns": job.failed,
            }  # fmt: skip
        return answer


def refuse(faults: dict[str, str]) -> None:
    """Answer 422 with all faults, if there are any."""
    if faults:
        details = [{"path": path, "errors": [text]} for path, text in faults.items()]
        raise message(422, "Object is not valid", details=details)


def validated(body: Answer) -> Answer:
    """Return a job's definition with defaults, or answer 422."""
    faults, run = {}, body.get("run") or {}
    if not JOB_ID.fullmatch(str(body.get("id", ""))):
        faults["/id"] = f'ECMA 262 regex "^{JOB_ID.pattern}$" does not match input string'
    for key, least in LEAST.items():
        if not isinstance(run.get(key), (int, float)):
            faults[f"/run/{key}"] = f"Property {key} missing."
        elif run[key] < least:
            faults[f"/run/{key}"] = f"{run[key]} is smaller than required minimum value of {least}."
    if not isinstance(run.get("gpus", 0), int):
        faults["/run/gpus"] = "Wrong type. Expected integer, was number."
    unknown = sorted(run.keys() - RUN_KEYS)
    if unknown:
        faults["/run"] = f"Additional properties are not allowed but found {unknown}."
    if run.get("gpus") and run.get("docker"):
        faults["/run/gpus"] = "GPU resources only work with the Mesos containerizer (ucr)"
    if run.get("cmd") and run.get("args"):
        faults["/run/cmd"] = "cmd and args must not both be set"
    policy = run.get("restart", {}).get("policy", "NEVER")
    if policy not in {"NEVER", "ON_FAILURE"}:
        faults["/run/restart/policy"] = f"'{policy}' is not a valid restart policy."
    refuse(faults)
    return {"labels": {}, **body, "run": {"restart": {"policy": "NEVER"}, **run}}


def task_request(run: Answer) -> TaskRequest:
    """Return what a run asks of the agent."""
    docker, ucr = run.get("docker"), run.get("ucr")
    image = docker["image"] if docker else (ucr or {"image": {"id": ""}})["image"]["id"]
    rules = run.get("placement", {}).get("constraints", [])
    return TaskRequest(
        cpus=float(run["cpus"]), mem=float(run["mem"]), gpus=int(run.get("gpus", 0)), image=image,
        containerizer="DOCKER" if docker else "MESOS", shell=run.get("cmd", ""),
        args=run.get("args", []), env=run.get("env", {}),
        constraints=[
            [rule["attribute"], rule["operator"], rule.get("value", "")] for rule in rules
        ],
    )  # fmt: skip


def metronome_app(metronome: Metronome) -> Starlette:  # noqa: C901, PLR0915 - a list of endpoints
    """Return the API."""

    def respond(answer: object, status: int = 200) -> Response:
        return JSONResponse(answer, status)

    async def jobs(request: Request) -> Response:
        embed = request.query_params.getlist("embed")
        body = validated(await body_of(request)) if request.method == "POST" else None
        with metronome.lock:
            if body is None:
                listed = metronome.jobs.values()
                return respond([metronome.job_answer(job, embed=embed) for job in listed])
            if body["id"] in metronome.jobs:
                raise message(409, "Job with this id already exists")
            metronome.jobs[body["id"]] = Job(body)
            return respond(body, 201)

    async def one_job(request: Request) -> Response:
        body = await body_of(request) if request.method == "PUT" else None
        with metronome.lock:
            job = metronome.job(request.path_params["job_id"])
            if body is not None:
                job.spec = validated({**body, "id": job.spec["id"]})
            if request.method == "DELETE":
                if job.runs and not flag(request, "stopCurrentJobRuns"):
                    text = "There are active job runs. Override with stopCurrentJobRuns=true"
                    raise message(409, text)
                for run_id in list(job.runs):
                    metronome.stop(job, run_id)
                del metronome.jobs[job.spec["id"]]
            embed = request.query_params.getlist("embed")
            return respond(metronome.job_answer(job, embed=embed))

    async def runs(request: Request) -> Response:
        with metronome.lock:
            job = metronome.job(request.path_params["job_id"])
            if request.method == "POST":
                return respond(metronome.run_answer(job, metronome.start(job)), 201)
            return respond([metronome.run_answer(job, run) for run in job.runs.values()])

    async def stop(request: Request) -> Response:
        with metronome.lock:
            job = metronome.job(request.path_params["job_id"])
            metronome.stop(job, request.path_params["run_id"])
        return respond({})

    async def schedules(request: Request) -> Response:
        body = await body_of(request) if request.method == "POST" else None
        with metronome.lock:
            job = metronome.job(request.path_params["job_id"])
            if body is not None:
                return respond(metronome.schedule(job, body), 201)
            return respond([metronome.schedule_answer(job, key) for key in job.schedules])

    async def one_schedule(request: Request) -> Response:
        body = await body_of(request) if request.method == "PUT" else None
        with metronome.lock:
            job, key = metronome.job(request.path_params["job_id"]), request.path_params["key"]
            if key not in job.schedules:
                raise HTTPError(404, {"id": key, "message": "Schedule not found"})
            if body is not None:
                return respond(metronome.schedule(job, {**body, "id": key}, key))
            answer = metronome.schedule_answer(job, key)
            if request.method == "DELETE":
                del job.schedules[key], job.next_at[key]
                return Response(status_code=200)
            return respond(answer)

    async def queue(_request: Request) -> Response:
        with metronome.lock:
            waiting = {
                job_id: [{"runId": run.id} for run in job.runs.values() if run.task is None]
                for job_id, job in metronome.jobs.items()
            }
        return respond(
            [{"jobId": job_id, "runs": runs} for job_id, runs in waiting.items() if runs]
        )

    async def info(_request: Request) -> Response:
        return respond({"version": "0.6.48", "libVersion": "1.8.194"})

    async def ping(_request: Request) -> Response:
        return PlainTextResponse("pong")

    job = "/v1/jobs/{job_id}"
    changes = ["GET", "PUT", "DELETE"]
    return application(
        [
            Route("/v1/jobs", jobs, methods=["GET", "POST"]),
            Route(job, one_job, methods=changes),
            Route(f"{job}/runs", runs, methods=["GET", "POST"]),
            Route(f"{job}/runs/{{run_id}}/actions/stop", stop, methods=["POST"]),
            Route(f"{job}/schedules", schedules, methods=["GET", "POST"]),
            Route(f"{job}/schedules/{{key}}", one_schedule, methods=changes),
            Route("/v1/queue", queue),
            Route("/info", info),
            Route("/ping", ping),
        ]
    )
