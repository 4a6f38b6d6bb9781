"""Requests made from the API's description, sent to the app as one of its users.

Every operation gets a few requests, some right and some wrong, and its answers must be what the
description says. The requests are the same in every run.
"""

from collections.abc import Iterator
from typing import Any

import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

EXAMPLES = 8
CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


def fuzz_all(app: Flask, headers: dict[str, str], ids: dict[str, str]) -> int:
    """Send requests to every operation; return how many operations there are.

    Args:
        app: the portal.
        headers: by whom.
        ids: values of path parameters, so that the requests are about objects that are there.

    Raises:
        ExceptionGroup: what answered otherwise than described; it names the operations.
    """
    count = 0
    faults: list[Exception] = []
    for operation in _operations(app):
        count += 1
        for mode in _modes(operation):
            try:
                _fuzz(operation, mode, headers, ids)
            except Exception as error:  # noqa: BLE001 - all are told together
                error.add_note(operation.label)
                faults.append(error)
    if faults:
        raise ExceptionGroup("answers that are not as described", faults)
    return count


def _operations(app: Flask) -> Iterator[Any]:
    generation = GenerationConfig(deterministic=True, with_security_parameters=False)
    config = SchemathesisConfig(
        projects=ProjectsConfig(default=ProjectConfig(generation=generation))
    )
    schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", app, config=config)
    for found in schema.get_all_operations():
        operation: Any = found
        yield operation.ok()


def _modes(operation: Any) -> list[GenerationMode]:  # noqa: ANN401 - schemathesis's
    """Return how to make requests; what takes neither query nor body can't be asked wrongly."""
    takes_input = any(True for _ in operation.query) or any(True for _ in operation.body)
    return list(GenerationMode) if takes_input else [GenerationMode.POSITIVE]


def _fuzz(
    operation: Any,  # noqa: ANN401 - schemathesis's
    mode: GenerationMode,
    headers: dict[str, str],
    ids: dict[str, str],
) -> None:
    @settings(
        max_examples=EXAMPLES,
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
        answer = case.call(headers=headers)
        case.validate_response(answer, checks=CHECKS)

    send()
