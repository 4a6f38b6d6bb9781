"""Chronos' API in both generations: 2.x under `/scheduler`, 3.x under `/v1/scheduler`.

Source: Chronos' `JobManagementResource`, `Iso8601JobResource` and `TaskManagementResource`.
"""

import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import RLock
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.mesos.cluster import Cluster, Task, TaskRequest, timestamp
from tests.mesos.serving import Answer, HTTPError, application, body_of, message, ticking

NAME = re.compile(r"[\w\s.#-]+")
SCHEDULE = re.compile(r"R(\d*)/([^/]*)/P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
SECONDS = (86_400, 3600, 60, 1)
TICK_SECONDS = 0.05
PREFIX = {2: "/scheduler", 3: "/v1/scheduler"}
DEFAULTS: Answer = {
    "command": "", "shell": True, "executor": "", "executorFlags": "", "taskInfoData": "",
    "retries": 2, "owner": "", "ownerName": "", "description": "", "cpus": 0.1, "disk": 256.0,
    "mem": 128.0, "disabled": False, "softError": False, "dataProcessingJobType": False,
    "errorsSinceLastSuccess": 0, "fetch": [], "uris": [], "environmentVariables": [],
    "arguments": [], "highPriority": False, "runAsUser": "root", "concurrent": False,
    "constraints": [], "scheduleTimeZone": "",
}  # fmt: skip


@dataclass(slots=True)
class Job:
    """One job: its definition, and what has become of it."""

    spec: Answer
    remaining: int | None
    next_at: datetime
    interval: timedelta
    success_count: int = 0
    error_count: int = 0
    last_success: str = ""
    last_error: str = ""
    tasks: list[Task] = field(default_factory=list)
    queued: list[int] = field(default_factory=list)

    @property
    def schedule(self) -> str:
        """The schedule that is left: `R0/...` after the last run was started."""
        count = "" if self.remaining is None else str(self.remaining)
        return f"R{count}/{timestamp(self.next_at)}/{self.spec['schedule'].rsplit('/', 1)[1]}"


class Chronos:
    """The state of a Chronos, which a thread brings about."""

    def __init__(self, cluster: Cluster, *, generation: int = 3) -> None:
        self.cluster, self.generation = cluster, generation
        self.jobs: dict[str, Job] = {}
        self.lock = RLock()
        ticking(self.tick, is_over=cluster.closing.is_set, seconds=TICK_SECONDS)

    def put(self, body: Answer) -> None:
        """Create a job, or replace the one with its name."""
        name = str(body.get("name", ""))
        if not NAME.fullmatch(name):
            text = f"the job's name is invalid. Allowed names: '{NAME.pattern}'"
            raise message(400, text)
        match = SCHEDULE.fullmatch(str(body.get("schedule", "")))
        if match is None:
            raise message(400, f"Cannot parse schedule '{body.get('schedule')}' (wtf bro)")
        count, start, *parts = match.groups()
        seconds = sum(int(part or 0) * unit for part, unit in zip(parts, SECONDS, strict=True))
        start_at = datetime.fromisoformat(start) if start else datetime.now(UTC)
        if start_at < datetime.now(UTC) - timedelta(days=365):
            text = f"Scheduled start date '{start}' is more than 1 year in the past!"
            raise message(400, text)
        before = self.jobs.get(name)
        self.jobs[name] = Job(
            {**DEFAULTS, **body}, int(count) if count else None, start_at,
            timedelta(seconds=seconds), tasks=before.tasks if before else [],
        )  # fmt: skip

    def job(self, name: str) -> Job:
        """Return a job; one that is missing is 400, not 404."""
        if name not in self.jobs:
            raise HTTPError(400, f"Job '{name}' not found")
        return self.jobs[name]

    def tick(self) -> None:
        """Queue what is due, and launch what is queued."""
        with self.lock:
            for job in list(self.jobs.values()):
                is_due = job.remaining != 0 and job.next_at <= datetime.now(UTC)
                if is_due and not job.spec["disabled"]:
                    job.queued.append(0)
                    job.next_at += job.interval
                    if job.remaining is not None:
                        job.remaining -= 1
                if job.queued and not job.tasks:
                    self._launch(job, job.queued[0])

    def _launch(self, job: Job, attempt: int) -> None:
        spec, container = job.spec, job.spec.get("container") or {}
        request = TaskRequest(
            cpus=float(spec["cpus"]), mem=float(spec["mem"]), image=container.get("image", ""),
            containerizer=container.get("type", "DOCKER"),
            shell=spec["command"] if spec["shell"] else "",
            args=[] if spec["shell"] else [spec["command"], *spec["arguments"]],
            env={variable["name"]: variable["value"] for variable in spec["environmentVariables"]},
            constraints=spec["constraints"],
        )  # fmt: skip
        if self.cluster.rejections(request):
            return
        job.queued.pop(0)
        task_id = f"ct:{int(time.time() * 1000)}:{attempt}:{spec['name']}:"
        task = self.cluster.launch(task_id, request, framework="chronos", on_update=self._on_update)
        task.notes |= {"job": job, "attempt": attempt}
        job.tasks.append(task)

    def _on_update(self, task: Task) -> None:
        with self.lock:
            if not task.is_final or "job" not in task.notes:
                return
            job: Job = task.notes["job"]
            job.tasks.remove(task)
            if task.state == "TASK_FINISHED":
                job.success_count, job.last_success = job.success_count + 1, timestamp()
                if job.remaining == 0:
                    job.spec["disabled"] = True
            elif task.state == "TASK_FAILED":
                job.error_count, job.last_error = job.error_count + 1, timestamp()
                if task.notes["attempt"] < job.spec["retries"]:
                    job.queued.append(task.notes["attempt"] + 1)

    def answer(self, job: Job) -> Answer:
        """Return a job as the API shows it."""
        shown = {
            **job.spec, "schedule": job.schedule, "successCount": job.success_count,
            "errorCount": job.error_count, "lastSuccess": job.last_success,
            "lastError": job.last_error,
        }  # fmt: skip
        return shown | ({"epsilon": "PT60S", "async": False} if self.generation == 2 else {})

    def graph(self) -> str:
        """Return the states as CSV."""
        lines = []
        for name, job in self.jobs.items():
            ended = "success" if job.last_success >= job.last_error else "failure"
            status = ended if job.last_success or job.last_error else "fresh"
            count = sum(task.state == "TASK_RUNNING" for task in job.tasks)
            waiting = "queued" if job.queued or job.tasks else "idle"
            lines.append(f"node,{name},{status},{f'{count} running' if count else waiting}")
        return "\n".join(lines) + "\n"


def chronos_app(chronos: Chronos) -> Starlette:  # noqa: C901 - a list of endpoints
    """Return the API."""
    prefix = PREFIX[chronos.generation]

    async def iso8601(request: Request) -> Response:
        body: dict[str, Any] = await body_of(request)
        with chronos.lock:
            chronos.put(body)
        return Response(status_code=204)

    async def jobs(request: Request) -> Response:
        name = request.query_params.get("name", "").lower()
        limit = int(request.query_params.get("limit", 10)) if "search" in request.url.path else None
        with chronos.lock:
            answers = [
                chronos.answer(job) for key, job in chronos.jobs.items() if name in key.lower()
            ]
        return JSONResponse(answers[:limit])

    async def job(request: Request) -> Response:
        name = request.path_params["name"]
        with chronos.lock:
            job = chronos.job(name)
            if request.method == "PUT":
                job.queued.append(0)
            else:
                for task in job.tasks:
                    chronos.cluster.kill(task)
                del chronos.jobs[name]
        return Response(status_code=204)

    async def kill(request: Request) -> Response:
        with chronos.lock:
            for task in chronos.job(request.path_params["name"]).tasks:
                chronos.cluster.kill(task)
        return Response(status_code=204)

    async def graph(_request: Request) -> Response:
        with chronos.lock:
            return PlainTextResponse(chronos.graph())

    async def ping(_request: Request) -> Response:
        return PlainTextResponse("pong")

    async def metrics(_request: Request) -> Response:
        return JSONResponse({"version": "3.0.0", "gauges": {}})

    return application(
        [
            Route(f"{prefix}/iso8601", iso8601, methods=["POST", "PUT"]),
            Route(f"{prefix}/jobs", jobs),
            Route(f"{prefix}/jobs/search", jobs),
            Route(f"{prefix}/job/{{name}}", job, methods=["PUT", "DELETE"]),
            Route(f"{prefix}/task/kill/{{name}}", kill, methods=["DELETE"]),
            Route(f"{prefix}/graph/csv", graph),
            Route("/ping", ping),
            Route("/metrics", metrics),
        ]
    )
