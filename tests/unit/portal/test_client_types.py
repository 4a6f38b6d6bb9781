"""The client's types are those of the OpenAPI document."""

from typing import Any

import pytest

from tests.unit.portal.conftest import Browser
from vedette.jobs import Job


@pytest.fixture
def schemas(nobody: Browser) -> dict[str, Any]:
    described: dict[str, Any] = nobody.get("/api/v1/openapi.json").get_json()["components"][
        "schemas"
    ]
    return described


def test_a_job_has_fields_of_the_document_alone(schemas: dict[str, Any]) -> None:
    described = schemas["JobDetail"]["properties"].keys()
    assert set(Job.__struct_fields__) <= described
