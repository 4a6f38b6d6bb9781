"""Jobs are filtered by label on MariaDB as on SQLite."""

import pytest

from core.db import SessionFactory
from jobqueue.queue.service import list_jobs
from tests.cast import Cast, scope_of
from tests.unit.jobqueue.builders import submit

pytestmark = pytest.mark.needs_mariadb


@pytest.mark.parametrize(
    ("label", "names"), [("project", ["b", "a"]), ("project=vision", ["a"]), ("x/y=1", ["b"])]
)
def test_a_label_selects_jobs(
    sessions: SessionFactory, cast: Cast, label: str, names: list[str]
) -> None:
    with sessions() as session:
        submit(session, cast.alice, "a", labels={"project": "vision"})
        submit(session, cast.alice, "b", labels={"project": "speech", "x/y": "1"})
        page = list_jobs(session, scope_of(cast.alice), label=label)
        assert [job.name for job in page.items] == names
