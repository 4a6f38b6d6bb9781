"""Requests of Dash's callbacks: checked before Dash calls a function with what a client sent."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from dash.exceptions import CallbackException
from flask import Flask, request

from core.errors import InvalidInputError
from dash_app.routes import PREFIX

PATH = f"{PREFIX}_dash-update-component"
MAX_TEXT_LENGTH = 8000
"""The length of the longest address that nginx accepts."""
_MAX_PARTS = 1000


class _PartID(msgspec.Struct, forbid_unknown_fields=True):
    tier: str
    part: str
    index: int | str


class _Output(msgspec.Struct, forbid_unknown_fields=True):
    id: str | _PartID
    property: str


class _Value(msgspec.Struct):
    id: str
    property: str
    value: bool | float | str | dict[str, str] | None = None


class _Body(msgspec.Struct):
    output: str
    outputs: _Output | list[_Output | list[_Output]] = []
    inputs: list[_Value] = []
    state: list[_Value] = []
    changedPropIds: list[str] = []  # noqa: N815 - Dash's name


_TYPES: Mapping[str, tuple[type, ...]] = {
    "pathname": (str,),
    "search": (str,),
    "n_intervals": (int, float),
}
# Types of the values of stores, by the end of their name.
_STORE_TYPES: Mapping[str, tuple[type, ...]] = {
    "changed": (int, float),
    "path": (str,),
    "digests": (dict,),
}


def install_callback_checks(server: Flask, callbacks: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse requests that no page of ours sends.

    Args:
        server: runs Dash.
        callbacks: Dash's own list, by output.
    """
    endpoint = next(rule.endpoint for rule in server.url_map.iter_rules() if rule.rule == PATH)
    view: Callable[..., Any] = server.view_functions[endpoint]

    def checked(**arguments: str) -> Any:  # noqa: ANN401 - Dash's answer
        _check_body(request.get_json(), callbacks)
        try:
            return view(**arguments)
        except CallbackException as error:
            # Its subclasses are errors of ours.
            if type(error) is not CallbackException:
                raise
            raise _invalid("the outputs are not those of the callback") from error

    server.view_functions[endpoint] = checked


def _check_body(data: object, callbacks: Mapping[str, Mapping[str, Any]]) -> None:
    try:
        body = msgspec.convert(data, _Body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    callback = callbacks.get(body.output)
    # Some run in the browser only.
    if callback is None or "callback" not in callback:
        raise _invalid("there is no such output")
    for name, values in (("inputs", body.inputs), ("state", body.state)):
        wanted = [(entry["id"], entry["property"]) for entry in callback[name]]
        if [(value.id, value.property) for value in values] != wanted:
            raise _invalid(f"the {name} are not those of the output")
        for value in values:
            _check_value(value)
    _check_outputs(body)


def _check_outputs(body: _Body) -> None:
    """Check that a list of parts stands where the callback has one; Dash compares the names."""
    names = body.output.strip(".").split("...")
    outputs = body.outputs if isinstance(body.outputs, list) else [body.outputs]
    are_lists = [isinstance(output, list) for output in outputs]
    if are_lists != [name.startswith("{") for name in names]:
        raise _invalid("the outputs are not those of the callback")
    if any(isinstance(output, list) and len(output) > _MAX_PARTS for output in outputs):
        raise _invalid(f"an output has more than {_MAX_PARTS} parts")


def _check_value(value: _Value) -> None:
    end = value.id.rpartition("-")[2]
    types = _STORE_TYPES.get(end) if value.property == "data" else _TYPES.get(value.property)
    if value.value is not None and types is not None and not isinstance(value.value, types):
        raise _invalid(f"{value.id}.{value.property} is of another type")
    texts: Sequence[str] = [value.value] if isinstance(value.value, str) else []
    if any(len(text) > MAX_TEXT_LENGTH for text in texts):
        raise _invalid(f"{value.id}.{value.property} is longer than {MAX_TEXT_LENGTH} characters")


def _invalid(problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"This is not a request of a dashboard: {problem}. Reload the page.",
        errors={"body": [problem]},
    )
