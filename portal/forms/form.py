"""The base form, and fields for sizes, durations, commands and key-value pairs."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import yaml
from flask import Response, after_this_request
from flask_wtf import FlaskForm
from wtforms import Field, StringField, TextAreaField, ValidationError, widgets

from core.errors import (
    ConflictError,
    InvalidInputError,
    OverloadedError,
    UnavailableError,
    VedetteError,
)
from core.quantities import format_duration, format_size, parse_duration, parse_size
from core.untrusted_yaml import UntrustedYAMLError, load_untrusted_yaml

# Errors whose message adds to the field errors.
CODES_ON_TOP = frozenset({"exceeds_every_appliance"})
# Errors that the user can fix by changing the form or submitting it again.
SHOWN = (InvalidInputError, ConflictError, OverloadedError, UnavailableError)


class Form(FlaskForm):  # type: ignore[misc] # Flask-WTF ships no types
    """A form with a CSRF token; `status` is the HTTP status to render it with."""

    status = 200

    def validate(self, extra_validators: Any = None) -> bool:  # noqa: ANN401 - WTForms' type
        """Validate all fields."""
        is_valid: bool = super().validate(extra_validators)
        self.status = 200 if is_valid else 422
        return is_valid

    @contextmanager
    def showing_errors(self, *, renamed: Mapping[str, str] | None = None) -> Iterator[None]:
        """Catch errors of a service and add them to the form.

        Args:
            renamed: form field by service field, where the names differ.
        """
        try:
            yield
        except SHOWN as error:
            self.show_error(error, renamed=renamed)

    def show_error(self, error: VedetteError, *, renamed: Mapping[str, str] | None = None) -> None:
        """Add a service's errors to the fields that they name, others to the form."""
        self.status = error.status
        if error.retry_after_seconds:
            after_this_request(partial(_ask_to_retry, error))
        names = renamed or {}
        has_field = False
        for name, messages in error.errors.items():
            field = self._fields.get(names.get(name, name.partition(".")[0]))
            if field is not None:
                # WTForms stores a tuple before validation and a list after it.
                field.errors = [*field.errors, *messages]
                has_field = True
        if not has_field or error.code in CODES_ON_TOP:
            self.form_errors.append(error.message)


def _ask_to_retry(error: VedetteError, response: Response) -> Response:
    response.headers["Retry-After"] = f"{error.retry_after_seconds:.0f}"
    return response


class _ParsedField(StringField):  # type: ignore[misc] # WTForms ships no types
    """A text field whose `data` is the parsed value; invalid input is shown again as typed."""

    @staticmethod
    def empty() -> Any:  # noqa: ANN401 - depends on the field
        """Return the value of an empty field."""
        return None

    def process_formdata(self, valuelist: Sequence[str]) -> None:
        """Parse the input."""
        if not valuelist:
            return
        self.data = self.parse(valuelist[0]) if valuelist[0].strip() else self.empty()

    def _value(self) -> str:
        if self.raw_data:
            return str(self.raw_data[0])
        return "" if self.data is None else self.format(self.data)

    def parse(self, text: str) -> Any:  # noqa: ANN401 - depends on the field
        """Return the value of a text, or raise ValueError with the expected format."""
        raise NotImplementedError

    def format(self, value: Any) -> str:  # noqa: ANN401 - depends on the field
        """Return a value as text that `parse` accepts."""
        return str(value)


class SizeField(_ParsedField):
    """Bytes, written like `8 GiB`."""

    empty = staticmethod(int)

    def parse(self, text: str) -> int:
        """Return bytes."""
        return parse_size(text)

    def format(self, value: int) -> str:
        """Return the size with its unit; empty for 0."""
        return format_size(value, exact=True) if value else ""


class OptionalSizeField(SizeField):
    """Bytes, written like `8 GiB`; None if empty."""

    empty = staticmethod(lambda: None)  # type: ignore[assignment] # None, unlike its base

    def format(self, value: int) -> str:
        """Return the size with its unit."""
        return super().format(value) or "0"


class DurationField(_ParsedField):
    """Seconds, written like `5m`."""

    empty = staticmethod(float)

    def parse(self, text: str) -> float:
        """Return seconds."""
        return parse_duration(text)

    def format(self, value: float) -> str:
        """Return the duration with its units."""
        return format_duration(value, exact=True)


def parse_number(text: str) -> float:
    """Return the number of `85` or `8 GiB`."""
    for parse in (float, parse_size):
        try:
            return float(parse(text))
        except ValueError:
            continue
    raise ValueError(f"{text!r} is not a number.")


class NumberField(_ParsedField):
    """A number or None; accepts sizes such as `8 GiB` for metrics in bytes."""

    def parse(self, text: str) -> float:
        """Return the number."""
        return parse_number(text)

    def format(self, value: float) -> str:
        """Return the number without trailing zeros."""
        return f"{value:.10g}"


class CommandField(_ParsedField):
    """An argument vector, quoted as in a shell."""

    widget = widgets.TextArea()
    empty = staticmethod(list[str])

    def parse(self, text: str) -> list[str]:
        """Return the arguments."""
        try:
            return shlex.split(text)
        except ValueError as error:
            raise ValueError(f"Invalid command: {error}.") from None

    def format(self, value: list[str]) -> str:
        """Return the arguments quoted as needed."""
        return shlex.join(value)


class TagsField(_ParsedField):
    """Names separated by commas or spaces."""

    empty = staticmethod(list[str])

    def parse(self, text: str) -> list[str]:
        """Return the distinct names in order."""
        return list(dict.fromkeys(text.replace(",", " ").split()))

    def format(self, value: list[str]) -> str:
        """Return the names separated by commas."""
        return ", ".join(value)


class NotationField(_ParsedField):
    """A value in a notation of its own."""

    def __init__(
        self,
        label: str,
        *,
        parse: Callable[[str], Any],
        format: Callable[[Any], str],  # noqa: A002 - as the fields above
        **options: Any,  # noqa: ANN401 - WTForms' options
    ) -> None:
        super().__init__(label, **options)
        self.parse, self.format = parse, format  # type: ignore[assignment, method-assign]


class PairsField(TextAreaField):  # type: ignore[misc] # WTForms ships no types
    """Lines of `KEY=VALUE`."""

    data: Any

    def process_formdata(self, valuelist: Sequence[str]) -> None:
        """Parse the lines, skipping empty ones."""
        if not valuelist:
            return
        pairs: dict[str, str] = {}
        for number, line in enumerate(valuelist[0].splitlines(), start=1):
            if not line.strip():
                continue
            key, equals, value = line.partition("=")
            if not equals or not key.strip():
                raise ValueError(f"Line {number}: expected KEY=VALUE, got {line.strip()!r}.")
            pairs[key.strip()] = value.strip()
        self.data = pairs

    def _value(self) -> str:
        if self.raw_data:
            return str(self.raw_data[0])
        return "\n".join(f"{key}={value}" for key, value in (self.data or {}).items())


class FiltersField(PairsField):
    """Lines of `TAG=VALUE, VALUE`; `data` has the values of each tag."""

    def process_formdata(self, valuelist: Sequence[str]) -> None:
        """Parse the lines, and split their values."""
        super().process_formdata(valuelist)
        if valuelist:
            self.data = {
                tag: [value.strip() for value in values.split(",") if value.strip()]
                for tag, values in self.data.items()
            }

    def _value(self) -> str:
        if self.raw_data:
            return str(self.raw_data[0])
        return "\n".join(f"{tag}={', '.join(values)}" for tag, values in (self.data or {}).items())


class LinesField(TextAreaField):  # type: ignore[misc] # WTForms ships no types
    """Values in a notation of their own, one a line."""

    def __init__(
        self,
        label: str,
        *,
        parse: Callable[[str], Any],
        format: Callable[[Any], str],  # noqa: A002 - as the fields above
        **options: Any,  # noqa: ANN401 - WTForms' options
    ) -> None:
        super().__init__(label, default=list, **options)
        self._parse, self._format = parse, format

    def process_formdata(self, valuelist: Sequence[str]) -> None:
        """Parse the lines, skipping empty ones."""
        if valuelist:
            lines = [line for line in valuelist[0].splitlines() if line.strip()]
            self.data = [self._parse(line) for line in lines]

    def _value(self) -> str:
        if self.raw_data:
            return str(self.raw_data[0])
        return "\n".join(map(self._format, self.data or []))


class YAMLField(_ParsedField):
    """Lists and mappings as YAML; the default's type is that of an empty field."""

    widget = widgets.TextArea()
    data: Any

    def process_formdata(self, valuelist: Sequence[str]) -> None:
        """Parse the input."""
        if valuelist:
            self.data = self.parse(valuelist[0])

    def parse(self, text: str) -> Any:  # noqa: ANN401 - any YAML
        """Return the document."""
        try:
            return load_untrusted_yaml(text) or self.default()
        except UntrustedYAMLError as error:
            raise ValueError(f"The YAML can't be read: {error}.") from None

    def format(self, value: Any) -> str:  # noqa: ANN401 - any YAML
        """Return YAML with lists of texts in one line."""
        return (
            yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=100)
            if value
            else ""
        )


class SecretPairsField(PairsField):
    """Lines of `KEY=VALUE` that are never shown again, neither in the form nor in its errors."""

    def process_formdata(self, valuelist: Sequence[str]) -> None:
        """Parse the lines; an error names the number of the line only."""
        try:
            super().process_formdata(valuelist)
        except ValueError as error:
            raise ValueError(f"{str(error).partition(',')[0]}. Enter all lines again.") from None

    def _value(self) -> str:
        return ""


class CheckboxListField(Field):  # type: ignore[misc] # WTForms ships no types
    """One checkbox for each choice."""

    widget = widgets.ListWidget(prefix_label=False)

    def __init__(self, label: str, **options: Any) -> None:  # noqa: ANN401 - WTForms' options
        super().__init__(label, **options)
        self.choices: list[tuple[str, str]] = []

    def process_formdata(self, valuelist: Sequence[str]) -> None:
        """Store the checked values."""
        self.data = list(valuelist)

    def pre_validate(self, form: object) -> None:  # noqa: ARG002 - WTForms' signature
        """Reject values that are not among the choices."""
        if set(self.data or ()) - {value for value, _ in self.choices}:
            raise ValidationError("A selected choice no longer exists. Select again.")
