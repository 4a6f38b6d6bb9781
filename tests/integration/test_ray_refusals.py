"""What a Ray cluster that can't be used says, to the executor and to `vedette agent check`."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from collector.checks.connections import Verdict
from collector.checks.schedulers import check_schedulers
from collector.config import AgentConfig
from core.ids import new_id
from jobqueue.executors.base import ExecutorUnavailableError
from jobqueue.executors.ray.client import last_words
from jobqueue.executors.ray.executor import RayExecutor
from jobqueue.executors.ray.jobs import observe_job
from jobqueue.executors.recorded import ExecutorSite
from jobqueue.executors.settings import RaySettings
from protocol.attempts import AttemptSpec, ObservedState
from tests.fixtures.polling import eventually
from tests.fixtures.ray_head import RayCluster, ray_cluster

TOKEN = "0123456789abcdef0123456789abcdef"


def executor_of(settings: RaySettings, folder: Path) -> RayExecutor:
    return RayExecutor(settings, ExecutorSite(owner=new_id(), state_dir=folder))


@contextmanager
def answering(document: object) -> Iterator[str]:
    """Answer each request with a document; give the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_cluster_that_is_too_old_takes_no_jobs_and_says_why(tmp_path: Path) -> None:
    with answering({"version": "4", "ray_version": "2.8.1", "ray_commit": ""}) as url:
        executor = executor_of(RaySettings(url=url), tmp_path)
        with pytest.raises(ExecutorUnavailableError, match=r"2\.8\.1, which is too old"):
            executor.observe()
        assert "2.9 or newer is needed" in executor.cluster().problem
        (result,) = check_schedulers(AgentConfig(executor="ray", ray=RaySettings(url=url)))
        executor.close()
    assert result.verdict is Verdict.FAIL
    assert "too old" in result.message


@pytest.mark.needs_ray
def test_agent_check_shows_the_version_and_the_number_of_nodes(ray_head: RayCluster) -> None:
    settings = RaySettings(url=ray_head.url)
    (result,) = check_schedulers(AgentConfig(executor="ray", ray=settings))
    assert result.verdict is Verdict.OK
    assert "answers, version 2." in result.message


@pytest.mark.needs_ray
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_cluster_with_tokens_is_used_with_the_right_one(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(f"{TOKEN}\n")
    wrong.write_text("wrong")
    environ = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    with ray_cluster(environ) as cluster:
        cluster.start({"Authorization": f"Bearer {TOKEN}"})
        refused = executor_of(RaySettings(url=cluster.url, token_file=wrong), tmp_path / "a")
        with pytest.raises(ExecutorUnavailableError, match="refuses the credentials"):
            refused.observe()
        wrong.write_text(TOKEN)  # an admin corrects it
        assert refused.observe() == []
        refused.close()
        executor = executor_of(RaySettings(url=cluster.url, token_file=right), tmp_path / "b")
        spec = AttemptSpec(
            attempt_id=new_id(),
            job_id=new_id(),
            name="hello",
            image="",
            command=["sh", "-c", "echo hello; sleep 20"],
            memory_bytes=2**26,
        )
        executor.start(spec)
        eventually(
            lambda: [
                executor.observe(),
                b"hello\n" in executor.read_log(spec.attempt_id, offset=0, limit=1000),
            ][1],
            every_seconds=0.5,
        )
        executor.close()


def test_of_a_traceback_only_the_last_line_is_shown() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: it is bad.\n.\n'
    assert last_words(text) == "it is bad."
    text = "Failed to start supervisor actor a: 'b is not valid.'. Full traceback:\nTraceback"
    assert last_words(text) == "Failed to start supervisor actor a: 'b is not valid.'"


def test_a_job_that_ray_gave_up_to_start_is_queued_again() -> None:
    message = "Job supervisor actor failed to start within 900 seconds. This timeout can be"
    seen = observe_job("a", {"status": "FAILED", "message": message, "end_time": 1000})
    assert (seen.state, seen.reason) == (ObservedState.FAILED, "preempted_by_cluster")
    assert "900 seconds" in seen.message
    assert seen.finished_at_ns == 10**9
