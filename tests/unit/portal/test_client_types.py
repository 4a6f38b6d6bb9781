"""The client's types are those of the OpenAPI document."""

from typing import Any, get_type_hints

import pytest

from tests.unit.portal.conftest import Browser
from vedette.jobs import Job, JobFields


@pytest.fixture
def schemas(nobody: Browser) -> dict[str, Any]:
    described: dict[str, Any] = nobody.get("/api/v1/openapi.json").get_json()["components"][
        "schemas"
    ]
    return described


def test_a_job_has_fields_of_the_document_alone(schemas: dict[str, Any]) -> None:
    described = schemas["JobDetail"]["properties"].keys()
    assert set(Job.__struct_fields__) <= described


def test_a_new_job_may_have_every_field_of_the_document(schemas: dict[str, Any]) -> None:
    described = schemas["JobRequest"]["properties"].keys()
    assert get_type_hints(JobFields).keys() | {"image"} == described
