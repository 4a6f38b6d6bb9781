"""JSON Schemas of files that users write, from the schemas of the API."""

from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from marshmallow import Schema


def file_schema(schema: type[Schema] | Schema, *, title: str, description: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a file, so that editors complete and check it."""
    spec = APISpec(title, "1", "3.1.0", plugins=[MarshmallowPlugin()])
    spec.components.schema("File", schema=schema)
    definitions = _with_local_references(spec.to_dict()["components"]["schemas"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": description,
        **definitions.pop("File"),
        "$defs": definitions,
    }


def _with_local_references(node: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(node, dict):
        return {
            key: value.replace("#/components/schemas/", "#/$defs/")
            if key == "$ref"
            else _with_local_references(value)
            for key, value in node.items()
        }
    return [_with_local_references(item) for item in node] if isinstance(node, list) else node
