"""Responses match the OpenAPI document, for every role.

Operations get generated requests, valid and invalid ones, the same in every run: one of an admin,
or of an operator where the admin may not, and many of every role each night. Each night they are
sent to every operation; else to each sixth, and the reads among the others are asked for acme's.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.config import (
    AnalysisConfig,
    ChecksConfig,
    ConstantsConfig,
    GenerationConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
)
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sqlalchemy import update
from sqlalchemy.orm import Session

from core.db import SessionFactory
from portal.api.streams import PATHS as STREAMS
from tenants.models import Membership, Role
from tenants.users.tokens import TokenLimits, create_api_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.portal.routes import HARMLESS
from tests.unit.portal.world import World

pytestmark = pytest.mark.timeout(900)

MANY, FEW = 8, 1
ALL, SIXTH = 1, 6
ROLES = ("admin", "operator", "member", "viewer", "billing", "scoped token")
CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


def make_token(session: Session, cast: Cast, role: str, *, now: datetime) -> str:
    """Return the secret of an API token of a role."""
    user = {"admin": cast.alice, "scoped token": cast.alice, "operator": cast.olivia}.get(
        role, cast.bob
    )
    if role in {Role.VIEWER, Role.BILLING}:
        session.execute(
            update(Membership).where(Membership.user_id == user.id).values(role=Role(role))
        )
    limits = TokenLimits(("jobs", "alerts")) if role == "scoped token" else TokenLimits()
    return create_api_token(session, scope_of(user), name="fuzz", limits=limits, now=now)[1]


@pytest.mark.parametrize(
    ("roles", "examples", "nth"),
    [
        (("admin", "operator"), FEW, SIXTH),
        *(pytest.param((role,), MANY, ALL, marks=pytest.mark.nightly) for role in ROLES),
    ],
)
def test_every_response_matches_the_openapi_document(
    *,
    app: Flask,
    cast: Cast,
    world: World,
    sessions: SessionFactory,
    clock: FrozenClock,
    roles: tuple[str, ...],
    examples: int,
    nth: int,
) -> None:
    with sessions.begin() as session:
        secrets = [make_token(session, cast, role, now=clock.now) for role in roles]
    count = 0
    errors: list[Exception] = []
    for count, operation in enumerate(_operations(app), start=1):
        try:
            if count % nth == 0:
                for mode in _modes(operation):
                    _fuzz(operation, mode, examples=examples, secrets=secrets, ids=world.ids)
            elif operation.method.upper() == "GET":
                _read(operation, secrets=secrets, ids=world.ids)
        except Exception as error:  # noqa: BLE001 - reported together
            error.add_note(operation.label)
            errors.append(error)
    if errors:
        raise ExceptionGroup("responses that don't match the OpenAPI document", errors)
    assert count > 80


def _operations(app: Flask) -> Iterator[Any]:
    generation = GenerationConfig(deterministic=True, with_security_parameters=False)
    # Words of the project's source are no better than others, and to collect them takes seconds.
    analysis = AnalysisConfig(constants=ConstantsConfig(enabled=False))
    checks = ChecksConfig()
    # A generated If-Match names no version: that is answered before the body is checked.
    rejection = checks.negative_data_rejection
    rejection.expected_statuses = [*rejection.expected_statuses, "412"]
    project = ProjectConfig(generation=generation, analysis=analysis, checks=checks)
    config = SchemathesisConfig(projects=ProjectsConfig(default=project))
    schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", app, config=config)
    for result in schema.get_all_operations():
        operation: Any = result
        ready = operation.ok()
        if ready.path not in STREAMS:  # not served by this application
            yield ready


def _modes(operation: Any) -> list[GenerationMode]:  # noqa: ANN401 - schemathesis's
    """Return how to generate requests: without query and body there are only valid ones."""
    takes_input = any(True for _ in operation.query) or any(True for _ in operation.body)
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    return modes if takes_input else modes[:1]


def _fuzz(
    operation: Any,  # noqa: ANN401 - schemathesis's
    mode: GenerationMode,
    *,
    examples: int,
    secrets: Sequence[str],
    ids: dict[str, str],
) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:  # noqa: ANN401 - schemathesis's
        for name in case.path_parameters or {}:
            if name in ids:
                case.path_parameters[name] = ids[name]
        _send(case, secrets)

    send()


def _read(
    operation: Any,  # noqa: ANN401 - schemathesis's
    *,
    secrets: Sequence[str],
    ids: dict[str, str],
) -> None:
    """Send a read without a query, or with a generated one if it needs one."""
    if any(parameter.is_required for parameter in operation.query):
        _fuzz(operation, GenerationMode.POSITIVE, examples=1, secrets=secrets, ids=ids)
    else:
        values = HARMLESS | ids
        names = [parameter.name for parameter in operation.path_parameters]
        _send(operation.Case(path_parameters={name: values[name] for name in names}), secrets)


def _send(case: Any, secrets: Sequence[str]) -> None:  # noqa: ANN401 - schemathesis's
    """Send a request with the tokens in turn, until one of them may do it."""
    for secret in secrets:
        answer = case.call(headers={"Authorization": f"Bearer {secret}"})
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code != HTTPStatus.FORBIDDEN:
            break
