"""The data of the release before works with this version, and so does its agent's code."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import requests

from core.clock import utc_now
from core.db import create_database_engine
from core.migrations import schema_differences
from tests.deployment import ALICE, OLIVIA, Deployment, agent_of, api_token, serving
from tests.fixtures.mariadb import MariaDB
from tests.fixtures.polling import eventually
from tests.fixtures.release_data import (
    AGENT,
    JOB,
    RECEIVER,
    RELEASED_ON,
    RULE,
    exported_rows,
    restore,
)
from tests.servers import free_port

# The data is as old as the release.
LONG_AGO_DAYS = 36_500
KEEPING = {"VEDETTE_SAMPLE_RETENTION_DAYS": str(LONG_AGO_DAYS)}
OLD_AGENT = f"{AGENT}buffer_max_age_seconds = {LONG_AGO_DAYS * 86_400}\n"
SOME_BYTES = 4_000


@dataclass(frozen=True)
class Upgraded:
    """A server of this version on the data of the release."""

    deployment: Deployment
    home: Path
    agent_code: Path

    def old_agent(self, server: Deployment) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return agent_of(server, home=self.home, toml=OLD_AGENT, code=self.agent_code)

    def get(self, path: str, email: str = ALICE) -> requests.Response:
        headers = {"Authorization": f"Bearer {api_token(self.deployment, email)}"}
        return requests.get(f"{self.deployment.url}{path}", headers=headers, timeout=60)

    def names(self, collection: str) -> set[str]:
        answer = self.get(f"/api/v1/{collection}?page_size=200")
        assert answer.status_code == 200, answer.text
        return {item["name"] for item in answer.json()["items"]}


@pytest.fixture(
    scope="module",
    params=[
        "sqlite",
        pytest.param("mariadb", marks=[pytest.mark.needs_mariadb, pytest.mark.nightly]),
    ],
)
def upgraded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upgraded]:
    folder, url = tmp_path_factory.mktemp("release"), ""
    if request.param == "mariadb":
        mariadb: MariaDB = request.getfixturevalue("mariadb")
        url = mariadb.new_database()
    deployment = restore(folder, database_url=url)
    with serving(deployment, environ=KEEPING):
        yield Upgraded(deployment, folder / "agent", folder / "agent_code")


def test_the_schema_is_that_of_this_version(upgraded: Upgraded) -> None:
    engine = create_database_engine(upgraded.deployment.settings.resolved_database_url)
    assert schema_differences(engine) == []
    engine.dispose()


def test_users_sign_in_and_find_what_they_made(upgraded: Upgraded) -> None:
    assert str(JOB["name"]) in upgraded.names("jobs")
    assert str(RULE["name"]) in upgraded.names("rules")
    assert RECEIVER["name"] in upgraded.names("receivers")
    assert upgraded.get("/console", OLIVIA).status_code == 200


def test_samples_and_those_that_the_agent_has_not_delivered_are_there(upgraded: Upgraded) -> None:
    headers = {"Authorization": f"Bearer {api_token(upgraded.deployment, ALICE)}"}
    day_at = datetime.fromisoformat(RELEASED_ON.read_text().strip())
    day = {"since": day_at.isoformat(), "until": (day_at + timedelta(days=1)).isoformat()}
    assert exported_rows(upgraded.deployment, headers, **day) >= 10

    buffer = upgraded.home / "buffer"
    shutil.rmtree(buffer)  # all in it was delivered
    nobody = replace(upgraded.deployment, port=free_port())
    began_at = utc_now()
    with upgraded.old_agent(nobody) as process:
        environment = Path(f"/proc/{process.pid}/environ")
        eventually(
            lambda: str(upgraded.agent_code).encode() in environment.read_bytes(),
            within_seconds=10,
            what="the released agent's environment",
        )
        eventually(
            lambda: any(path.stat().st_size > SOME_BYTES for path in buffer.glob("*.seg")),
            what="samples that nobody takes",
        )
    offline = {"since": began_at.isoformat(), "until": utc_now().isoformat()}
    assert exported_rows(upgraded.deployment, headers, **offline) == 0

    with upgraded.old_agent(upgraded.deployment):
        eventually(
            lambda: exported_rows(upgraded.deployment, headers, **offline) > 0,
            what="the undelivered samples",
        )
        eventually(
            lambda: (
                requests.get(
                    f"{upgraded.deployment.url}/api/v1/appliances", headers=headers, timeout=60
                ).json()["items"][0]["state"]
                == "online"
            ),
            what="the appliance to be online",
        )
