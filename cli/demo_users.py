"""Demo users: they keep the simulated fleet busy, through the REST API.

One user of each tenant submits jobs whenever too many simulated GPUs are idle, and further ones for
slices of the GPUs that are shared.
"""

import logging
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import requests

from cli.demo_slices import SHARING_LABEL, SliceJob
from core.errors import VedetteError
from vedette.client import Client
from vedette.connection import call_portal

log = logging.getLogger(__name__)

PAUSE_SECONDS = 4.0
MIN_BUSY_RATIO = 0.65
MAX_QUEUED = 2
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """A kind of job that the users submit; the simulated executor reads SIM_SECONDS."""

    name: str
    image: str
    command: tuple[str, ...]
    gpus: tuple[int, ...]
    seconds: tuple[int, int]
    exit_code: int = 0


JOBS = (
    JobTemplate(
        "llama-finetune", "acme/train-llm:2.4", ("torchrun", "finetune.py"), (4, 8), (420, 900)
    ),
    JobTemplate("resnet-sweep", "acme/vision:1.9", ("python", "sweep.py"), (1, 2), (150, 420)),
    JobTemplate("embeddings", "acme/embed:0.7", ("python", "embed.py"), (1,), (120, 300)),
    JobTemplate("diffusion-eval", "acme/diffusion:3.1", ("python", "eval.py"), (2, 4), (180, 480)),
    JobTemplate("protein-fold", "acme/fold:1.2", ("python", "fold.py"), (1, 2, 4), (200, 600)),
    JobTemplate(
        "broken-checkpoint", "acme/train-llm:2.4", ("torchrun", "resume.py"), (1,), (40, 90), 1
    ),
)


# A service that scales with the use of its GPUs.
SERVICE: dict[str, Any] = {
    "name": "chat",
    "kind": "service",
    "image": "acme/serve-llm:1.2",
    "command": ["vllm", "serve", "--port", "8000"],
    "ports": [{"name": "web", "container_port": 8000}],
    "gpus": 1,
    "cpus": 4.0,
    "memory_bytes": 24 * GIB,
    "env": {"SIM_LINE_SECONDS": "10"},
    "autoscaling": {
        "min_instances": 1,
        "max_instances": 3,
        "metric": "gpu_utilization",
        "target": 60.0,
        "down_seconds": 120,
    },
}


class DemoUser:
    """A user who keeps the simulated appliances of a tenant busy."""

    def __init__(
        self,
        portal_url: str,
        *,
        email: str,
        password: str,
        seed: int,
        slice_jobs: Sequence[SliceJob] = (),
        has_service: bool = False,
    ) -> None:
        self._url = portal_url
        self._login = (email, password)
        self._slice_jobs = slice_jobs
        self._has_service = has_service
        self._random = random.Random(seed)  # noqa: S311 - not for security
        self._client: Client | None = None
        self._simulated: dict[str, bool] = {}

    def run(self, stop: threading.Event) -> None:
        """Submit jobs until `stop` is set; retry while the portal is unavailable."""
        while not stop.wait(PAUSE_SECONDS):
            try:
                self.submit(self._signed_in_client())
            except VedetteError as error:
                log.warning("%s: %s", self._login[0], error.message)
        if self._client is not None:
            self._client.close()

    def _signed_in_client(self) -> Client:
        if self._client is None:
            with requests.Session() as session:
                session.auth = self._login
                # Replaces the token of the previous start.
                body = {"name": "demo", "is_replacing": True}
                token = call_portal(session, "POST", f"{self._url}/api/v1/tokens", json=body)
            self._client = Client(self._url, token["secret"])
        return self._client

    def submit(self, client: Client) -> None:
        """Submit what keeps the appliances busy."""
        running, starting, queued = (
            client.get("/jobs", state=state, page_size=100)["items"]
            for state in ("running", "starting", "queued")
        )
        self._submit_when_idle(client, running + starting, queued)
        names = [job["name"] for job in running + starting + queued]
        if self._has_service and SERVICE["name"] not in names:
            client.post("/jobs", SERVICE)
        if wanted := next((job for job in self._slice_jobs if job.is_missing(names)), None):
            client.post("/jobs", wanted.request(self._random))

    def _submit_when_idle(
        self, client: Client, active: list[dict[str, Any]], queued: list[dict[str, Any]]
    ) -> None:
        online = client.get("/appliances", state="online", page_size=100)["items"]
        appliances = [item for item in online if self._is_simulated(client, item["id"])]
        whole = [item for item in appliances if SHARING_LABEL not in item["labels"]]
        total = sum(appliance["gpu_count"] for appliance in whole)
        waiting = [job for job in queued if job["gpus"]]
        busy = sum(job["gpus"] for job in active + waiting)
        # One at a time: jobs that load their data together would show in every chart.
        if busy < MIN_BUSY_RATIO * total and len(waiting) < MAX_QUEUED:
            request = self._next_job()
            if any(item["gpu_count"] for item in online if item not in appliances):
                # The images don't exist: keep the jobs off real GPUs.
                request["appliance_id"] = self._random.choice(whole)["id"]
            client.post("/jobs", request)

    def _is_simulated(self, client: Client, appliance_id: str) -> bool:
        """Return whether an appliance is simulated, by the OS name that it reports."""
        if appliance_id not in self._simulated:
            os_name = client.get(f"/appliances/{appliance_id}")["inventory"]["os"]
            self._simulated[appliance_id] = os_name.endswith("(simulated)")
        return self._simulated[appliance_id]

    def _next_job(self) -> dict[str, Any]:
        template = self._random.choice(JOBS)
        gpus = self._random.choice(template.gpus)
        seconds = self._random.randint(*template.seconds)
        return {
            "name": f"{template.name}-{self._random.randint(100, 999)}",
            "kind": "batch",
            "image": template.image,
            "command": list(template.command),
            "env": {
                "SIM_SECONDS": str(seconds),
                "SIM_EXIT_CODE": str(template.exit_code),
                # Receiving one each second would cost the idle server half as much again.
                "SIM_LINE_SECONDS": "10",
            },
            "gpus": gpus,
            "cpus": 4.0 * gpus,
            "memory_bytes": 24 * gpus * GIB,
        }
