"""Attempts on a Kubernetes cluster, and what tests ask about them."""

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from core.ids import new_id
from jobqueue.executors.kubernetes.executor import KubernetesExecutor
from jobqueue.executors.kubernetes.manifests import job_name
from jobqueue.executors.recorded import ExecutorSite
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.exec import TerminalSize
from protocol.logs import log_lines
from tests.fixtures.kubernetes_site import KubernetesSite
from tests.fixtures.polling import eventually

STARTING, RUNNING = ObservedState.STARTING, ObservedState.RUNNING


class World:
    """A cluster with one connector."""

    def __init__(self, site: KubernetesSite, folder: Path) -> None:
        self.site, self.cluster, self.gateway = site, site.cluster, site.gateway
        self.owner, self.folder = new_id(), folder
        self.opened: list[KubernetesExecutor] = []
        self.executor = self.open()

    def open(self, **changes: object) -> KubernetesExecutor:
        """Open the executor as the next agent process would."""
        for executor in self.opened:
            executor.close()
        own = ExecutorSite(owner=self.owner, state_dir=self.folder, stop_grace_seconds=1)
        self.executor = KubernetesExecutor(self.site.with_settings(**changes), own)
        self.opened.append(self.executor)
        return self.executor

    def spec(self, script: str = "echo hello", **changes: object) -> AttemptSpec:
        fields: dict[str, object] = {
            "attempt_id": new_id(),
            "job_id": new_id(),
            "name": "hello",
            "image": "hello:1",
            "command": ["/bin/sh", "-c", script],
            "memory_bytes": 2**26,
        }
        return AttemptSpec(**{**fields, **changes})  # type: ignore[arg-type] # the caller's names

    def start(self, script: str = "echo hello", **changes: object) -> AttemptSpec:
        spec = self.spec(script, **changes)
        self.executor.start(spec)
        return spec

    def seen(self, spec: AttemptSpec) -> AttemptObservation | None:
        observed = self.executor.observe()
        return next((seen for seen in observed if seen.attempt_id == spec.attempt_id), None)

    def until(self, spec: AttemptSpec, *wanted: ObservedState) -> AttemptObservation:
        def probe() -> AttemptObservation | None:
            seen = self.seen(spec)
            return seen if seen is not None and seen.state in wanted else None

        seen = eventually(probe, within_seconds=30)
        assert seen is not None
        return seen

    def ended(self, spec: AttemptSpec) -> AttemptObservation:
        return self.until(spec, *(state for state in ObservedState if state.is_final))

    def message(self, spec: AttemptSpec, part: str) -> AttemptObservation:
        def probe() -> AttemptObservation | None:
            seen = self.seen(spec)
            return seen if seen is not None and part in seen.message else None

        seen = eventually(probe, within_seconds=30)
        assert seen is not None
        return seen

    def output(self, spec: AttemptSpec) -> bytes:
        return self.executor.read_log(spec.attempt_id, offset=0, limit=10_000_000)

    def texts(self, spec: AttemptSpec) -> list[str]:
        return [line.text for line in log_lines(self.output(spec))]

    def job(self, spec: AttemptSpec) -> dict[str, object] | None:
        return self.cluster.get("jobs", job_name(spec.attempt_id))

    def pod(self, spec: AttemptSpec) -> str:
        pod = eventually(lambda: self.cluster.pod_of(job_name(spec.attempt_id)))
        assert pod is not None
        return str(pod["metadata"]["name"])


@pytest.fixture
def world(kubernetes_site: KubernetesSite, tmp_path: Path) -> Iterator[World]:
    opened = World(kubernetes_site, tmp_path / "attempts")
    yield opened
    for executor in opened.opened:
        executor.close()


class Session:
    """A user's command."""

    term = "xterm"

    def __init__(self, *command: str, typed: bytes = b"", size: TerminalSize | None = None) -> None:
        self.command: Sequence[str] = command
        self.size, self._typed = size, typed
        self.written: list[tuple[bool, bytes]] = []

    async def inputs(self) -> AsyncIterator[bytes | TerminalSize]:
        yield self._typed

    async def output(self, data: bytes, *, is_error: bool) -> None:
        self.written.append((is_error, data))
