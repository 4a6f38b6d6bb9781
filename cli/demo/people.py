"""The demo's people: they make a few alert rules and keep the simulated fleet at work, over REST.

Each tenant has one person at work, who submits a job whenever too many simulated GPUs are idle.
"""

import logging
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import requests

from cli.client import Credentials, PortalClient, PortalError, call_portal
from core.errors import VedetteError

log = logging.getLogger(__name__)

PAUSE_SECONDS = 4.0
BUSY_RATIO = 0.65
MOST_WAITING = 2
GIB = 1024**3

RULES: tuple[Mapping[str, Any], ...] = (
    {
        "name": "GPU is hot", "measurement": "gpu", "field": "temperature_celsius",
        "aggregate": "avg", "window_seconds": 30, "group_by": ["appliance", "gpu"],
        "comparison": ">", "warning_threshold": 75, "critical_threshold": 85,
        "warning_reset": 70, "critical_reset": 82, "for_seconds": 20,
    },
    {
        "name": "Disk is nearly full", "measurement": "disk", "field": "used_percent",
        "aggregate": "last", "window_seconds": 120, "group_by": ["appliance", "mount"],
        "comparison": ">", "warning_threshold": 90, "critical_threshold": 97,
    },
    {
        "name": "GPU is throttled", "measurement": "gpu", "field": "throttled",
        "aggregate": "avg", "window_seconds": 180, "group_by": ["appliance", "gpu"],
        "comparison": ">", "warning_threshold": 0.3, "warning_reset": 0.1, "for_seconds": 30,
    },
    {
        "name": "GPU is not healthy", "measurement": "gpu_health", "field": "state",
        "aggregate": "max", "window_seconds": 120, "group_by": ["appliance"],
        "comparison": ">", "warning_threshold": 0.5, "critical_threshold": 1.5,
    },
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """A kind of job that the people run; the simulated executor reads SIM_SECONDS."""

    name: str
    image: str
    command: tuple[str, ...]
    gpus: tuple[int, ...]
    seconds: tuple[int, int]
    exit_code: int = 0


WORKS = (
    Work("llama-finetune", "acme/train-llm:2.4", ("torchrun", "finetune.py"), (4, 8), (420, 900)),
    Work("resnet-sweep", "acme/vision:1.9", ("python", "sweep.py"), (1, 2), (150, 420)),
    Work("embeddings", "acme/embed:0.7", ("python", "embed.py"), (1,), (120, 300)),
    Work("diffusion-eval", "acme/diffusion:3.1", ("python", "eval.py"), (2, 4), (180, 480)),
    Work("protein-fold", "acme/fold:1.2", ("python", "fold.py"), (1, 2, 4), (200, 600)),
    Work("broken-checkpoint", "acme/train-llm:2.4", ("torchrun", "resume.py"), (1,), (40, 90), 1),
)  # fmt: skip


class Person:
    """Somebody of a tenant who signs in once and keeps the simulated appliances busy."""

    def __init__(self, portal_url: str, *, email: str, password: str, seed: int) -> None:
        self._url = portal_url
        self._login = (email, password)
        self._random = random.Random(seed)  # noqa: S311 - which job comes next is no secret
        self._client: PortalClient | None = None

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; a portal that is away for a while is waited for."""
        has_rules = False
        while not stop.wait(PAUSE_SECONDS):
            try:
                client = self._signed_in()
                if not has_rules:
                    make_rules(client)
                    has_rules = True
                self._submit_when_idle(client)
            except VedetteError as error:
                log.warning("%s: %s", self._login[0], error.message)
        if self._client is not None:
            self._client.close()

    def _signed_in(self) -> PortalClient:
        if self._client is None:
            with requests.Session() as session:
                session.auth = self._login
                # Every start of the demo takes the place of the one before.
                body = {"name": "demo at work", "is_replacing": True}
                token = call_portal(session, "POST", f"{self._url}/api/v1/tokens", json=body)
            self._client = PortalClient(Credentials(self._url, token["secret"]))
        return self._client

    def _submit_when_idle(self, client: PortalClient) -> None:
        online = client.get("/appliances", state="online", page_size=100)["items"]
        appliances = simulated(online)
        total = sum(len(appliance["inventory"]["gpus"]) for appliance in appliances)
        running = client.get("/jobs", state="running", page_size=100)["items"]
        waiting = client.get("/jobs", state="queued", page_size=100)["items"]
        busy = sum(job["gpus"] for job in running)
        if total and busy < BUSY_RATIO * total and len(waiting) < MOST_WAITING:
            request = self._next_job()
            if has_real_gpus(online):
                # The demo's images exist in simulation only: keep them off real GPUs.
                request["appliance_id"] = self._random.choice(appliances)["id"]
            client.post("/jobs", request)

    def _next_job(self) -> dict[str, Any]:
        work = self._random.choice(WORKS)
        gpus = self._random.choice(work.gpus)
        seconds = self._random.randint(*work.seconds)
        return {
            "name": f"{work.name}-{self._random.randint(100, 999)}",
            "kind": "batch",
            "image": work.image,
            "command": list(work.command),
            "env": {"SIM_SECONDS": str(seconds), "SIM_EXIT_CODE": str(work.exit_code)},
            "gpus": gpus,
            "cpus": 4.0 * gpus,
            "memory_bytes": 24 * gpus * GIB,
        }


def simulated(appliances: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the appliances that only pretend to have GPUs."""
    return [item for item in appliances if is_simulated(item)]


def has_real_gpus(appliances: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a job could land on an appliance whose GPUs are real."""
    return any(item["inventory"].get("gpus") for item in appliances if not is_simulated(item))


def is_simulated(appliance: Mapping[str, Any]) -> bool:
    """Whether an appliance says of itself that it is simulated."""
    return str(appliance["inventory"].get("os", "")).endswith("(simulated)")


def make_rules(client: PortalClient) -> None:
    """Create the demo's rules; one that exists since an earlier start stays as it is."""
    present = {rule["name"] for rule in client.get("/rules", page_size=500)["items"]}
    for rule in RULES:
        if rule["name"] not in present:
            try:
                client.post("/rules", rule)
            except PortalError as error:
                log.warning("rule %r: %s %s", rule["name"], error.message, error.errors)
