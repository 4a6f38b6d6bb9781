"""The migrations lead to what the models say, and back, on both databases that we support."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect

from core.db import create_database_engine
from core.migrations import (
    current_revision,
    downgrade_database,
    head_revision,
    schema_differences,
    upgrade_database,
)
from tests.integration.mariadb import mariadb_server


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("mariadb", marks=[pytest.mark.needs_mariadb]),
    ],
    scope="module",
)
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("database")
    if request.param == "sqlite":
        yield from _engine(f"sqlite:///{folder / 'vedette.db'}")
        return
    with mariadb_server(folder) as url:
        yield from _engine(url)


def _engine(url: str) -> Iterator[Engine]:
    engine = create_database_engine(url)
    yield engine
    engine.dispose()


def test_the_migrated_schema_is_what_the_models_say(database: Engine) -> None:
    upgrade_database(database)

    assert current_revision(database) == head_revision()
    assert schema_differences(database) == []


def test_migrating_down_and_up_again_works(database: Engine) -> None:
    upgrade_database(database)

    downgrade_database(database, "base")
    assert inspect(database).get_table_names() == ["alembic_version"]

    upgrade_database(database)
    assert current_revision(database) == head_revision()


def test_migrating_twice_changes_nothing(database: Engine) -> None:
    upgrade_database(database)
    upgrade_database(database)

    assert current_revision(database) == head_revision()


def test_an_older_folder_of_scripts_is_not_the_newest(tmp_path: Path) -> None:
    engine = create_database_engine(f"sqlite:///{tmp_path / 'empty.db'}")

    assert current_revision(engine) is None
    engine.dispose()
