"""Commands go on over a restart of the portal, and submit nothing twice."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from tests.deployment import BOB, Deployment, agent_of, api_token, make_deployment, serving
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import QUICK, Portal, enroll
from vedette import Client

pytestmark = pytest.mark.nightly

CHUNK_BYTES = 65536


class Command:
    """A command in a process of its own, with its output in files."""

    def __init__(self, deployment: Deployment, token: str, *arguments: str) -> None:
        self._paths = [
            deployment.data_dir / f"{'-'.join(arguments[:2])}.{n}" for n in ("out", "err")
        ]
        environ = {"VEDETTE_URL": deployment.url, "VEDETTE_TOKEN": token}
        with self._paths[0].open("wb") as out, self._paths[1].open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", *arguments],
                env=deployment.environ(environ), stdout=out, stderr=err,
            )  # fmt: skip

    @property
    def out(self) -> str:
        return self._paths[0].read_text()

    @property
    def err(self) -> str:
        return self._paths[1].read_text()

    def end(self) -> int:
        return self._process.wait(timeout=120)


def _is_trying(command: Command) -> bool:
    return "Trying again" in command.err


@pytest.mark.timeout(400)
def test_commands_wait_for_a_portal_that_was_killed(tmp_path: Path) -> None:
    deployment, home = make_deployment(tmp_path), tmp_path / "agent"
    with serving(deployment) as server:
        enroll(deployment, home, "dgx-test")
        token = api_token(deployment, BOB)
        with agent_of(deployment, home=home, toml=f'{QUICK}executor = "simulated"\n'):
            portal = Portal(deployment)
            portal.wait_for_appliance("simulated")
            image = ("--image", "acme/train:1", "--env")
            followed = Command(
                deployment, token, "job", "run", "--follow", *image, "SIM_SECONDS=25"
            )
            eventually(lambda: "epoch" in followed.out, within_seconds=60)
            job_id = followed.out.split()[0]
            waiting = Command(deployment, token, "job", "wait", job_id)
            portal.wait_for_state(job_id, "running")
            server.kill()
            server.wait()

            commands = [
                Command(deployment, token, "job", "ls"),
                Command(deployment, token, "job", "logs", "-f", job_id),
                Command(deployment, token, "job", "clone", job_id, "--name", "late"),
            ]
            for command in (*commands, waiting):
                eventually(partial(_is_trying, command), within_seconds=60)
            with serving(deployment):
                for command in (*commands, waiting, followed):
                    assert command.end() == 0, command.err
                    assert "Traceback" not in command.err
                for command in commands:
                    assert "answers again" in command.err
                assert "acme/train" not in commands[0].err
                assert "train" in commands[0].out
                lines = followed.out.splitlines()[1:]
                assert len(lines) == len(set(lines))
                assert commands[1].out.splitlines() == lines
                names = [item["name"] for item in portal.get("/jobs").json()["items"]]
                assert sorted(names) == ["late", "train"]


@contextmanager
def losing_answers(port: int) -> Iterator[str]:
    """A way to the portal that loses the first answer to each address that is posted to."""
    listener = socket.create_server(("127.0.0.1", 0))
    lost: set[bytes] = set()

    def pass_on(client: socket.socket) -> None:
        line = b""

        def send() -> None:
            nonlocal line
            with suppress(OSError):  # the answer was lost
                while part := client.recv(CHUNK_BYTES):
                    if part.startswith((b"GET ", b"POST ", b"DELETE ")):
                        line = part.partition(b"\r\n")[0]
                    portal.sendall(part)
                portal.shutdown(socket.SHUT_WR)

        with client, socket.create_connection(("127.0.0.1", port)) as portal:
            sender = Thread(target=send, daemon=True)
            sender.start()
            while part := portal.recv(CHUNK_BYTES):
                if line.startswith(b"POST") and line not in lost:
                    lost.add(line)
                    client.shutdown(socket.SHUT_RDWR)
                    break
                client.sendall(part)
            sender.join()

    def accept() -> None:
        with suppress(OSError):  # it is closed
            while True:
                Thread(target=pass_on, args=(listener.accept()[0],), daemon=True).start()

    Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.timeout(200)
def test_what_was_submitted_although_the_answer_was_lost_is_not_submitted_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = make_deployment(tmp_path)
    with serving(deployment), losing_answers(deployment.port) as url:
        token = api_token(deployment, BOB)
        schedule = {"name": "nightly", "schedule": "@daily", "job": {"name": "run", "image": "a"}}
        with Client(url, token) as client:
            job = client.submit("acme/one")
            client.apply([{"name": "two", "image": "acme/two"}])
            saved = client.post("/job-schedules", schedule)
            client.post(f"/job-schedules/{saved['id']}/run")
            assert client.stop(job.id).state == "stopped"
            assert sorted(listed_job.name for listed_job in client.jobs()) == ["one", "run", "two"]
            assert len(client.get(f"/job-schedules/{saved['id']}/runs")["items"]) == 1
    assert caplog.messages.count("The portal answers again.") == 5
