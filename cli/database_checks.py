"""The checks of the server's database: reachable, usable, with the keys and an operator."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, make_url, select
from sqlalchemy.exc import SQLAlchemyError

from cli.keys import check_keys
from core.clock import utc_now
from core.database_checks import Problem, database_problems, rights_problems, server_version
from core.db import create_database_engine, create_session_factory
from core.errors import ConfigurationError, VedetteError
from core.revisions import current_revision, head_revision
from core.schema_check import require_schema
from core.settings import ServerSettings
from tenants.models import User

MAX_REASON_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of a check: what was found, and what is wrong."""

    name: str
    detail: str
    problems: tuple[Problem, ...] = ()


def check_database(settings: ServerSettings) -> Check:
    """Check the database server, the revision of the schema, and the keys of its secrets."""

    def examine(engine: Engine) -> Check:
        problems = database_problems(engine, now=utc_now())
        revision, detail = current_revision(engine), server_version(engine)
        if revision is None:
            detail += ", empty"
        elif revision != head_revision():
            detail += f", revision {revision}: the next start upgrades it to {head_revision()}"
        else:
            detail += f", revision {revision}"
            check_keys(create_session_factory(engine), settings)
            require_schema(engine)
        return Check("database", detail, tuple(problems))

    return on_database(settings, "database", examine)


def check_rights(settings: ServerSettings) -> Check:
    """Check that the database's user can do what migrations do."""

    def examine(engine: Engine) -> Check:
        problems = rights_problems(engine)
        return Check("database rights", "tables can be made and changed", tuple(problems))

    return on_database(settings, "database rights", examine)


def check_operators(settings: ServerSettings) -> Check:
    """Check that somebody can manage the portal."""

    def examine(engine: Engine) -> Check:
        if current_revision(engine) != head_revision():
            return Check("operators", "not checked: the schema is not the newest")
        with create_session_factory(engine)() as session:
            emails = session.scalars(
                select(User.email).where(User.is_operator, User.is_active).order_by(User.email)
            ).all()
        if emails:
            return Check("operators", ", ".join(emails[:3]))
        problem = Problem("Nobody is an operator.", "Run: vedette server init", is_fatal=False)
        return Check("operators", "none", (problem,))

    return on_database(settings, "operators", examine)


def on_database(settings: ServerSettings, name: str, examine: Callable[[Engine], Check]) -> Check:
    """Return the outcome of a check on the database, or why it can't be made."""
    try:
        url = make_url(settings.resolved_database_url)
        if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
            return Check(name, f"{url.database} does not exist yet")
        engine = create_database_engine(settings.resolved_database_url)
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        problem = Problem(
            f"DATABASE_URL is invalid: {error}.",
            "Use the form mysql+pymysql://user:password@host/name.",
        )
        return Check(name, "", (problem,))
    try:
        return examine(engine)
    except ConfigurationError as error:
        return Check(name, "", tuple(Problem(f"{text}.", "") for text in error.problems))
    except (SQLAlchemyError, VedetteError) as error:
        reason = _reason(error)
        place = url.render_as_string(hide_password=True)
        problem = Problem(f"{place} can't be used: {reason}.", _database_remedy(reason, place))
        return Check(name, "", (problem,))
    finally:
        engine.dispose()


def _reason(error: Exception) -> str:
    """Return what a driver says, without its number."""
    cause = getattr(error, "orig", None) or error
    return str(cause.args[-1] if cause.args else cause)[:MAX_REASON_CHARACTERS]


def _database_remedy(reason: str, place: str) -> str:
    name = place.rpartition("/")[2].partition("?")[0]
    if "Unknown database" in reason:
        return f"Create it: CREATE DATABASE `{name}` CHARACTER SET utf8mb4;"
    if "Access denied" in reason or "denied to user" in reason:
        return f"Correct the password, or grant rights: GRANT ALL ON `{name}`.* TO the user;"
    return "Start the database server, or correct DATABASE_URL."
