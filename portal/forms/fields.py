"""Form fields that read what people write: sizes, durations, command lines, key-value lines."""

import shlex
from collections.abc import Sequence
from typing import Any

from wtforms import Field, StringField, TextAreaField, widgets

from portal.showing.quantities import format_duration, format_size, parse_duration, parse_size


class _ParsedField(StringField):  # type: ignore[misc] # WTForms ships no types
    """A text field whose `data` is the parsed value; what was typed is kept when it is wrong."""

    @staticmethod
    def empty() -> Any:  # noqa: ANN401 - each field has its own value
        """Return the value of an empty box."""
        return None

    def process_formdata(self, valuelist: Sequence[str]) -> None:
        """Parse what was typed."""
        if not valuelist:
            return
        self.data = self.parse(valuelist[0]) if valuelist[0].strip() else self.empty()

    def _value(self) -> str:
        """Return what the box shows: the text as typed, else the value written out."""
        if self.raw_data:
            return str(self.raw_data[0])
        return "" if self.data is None else self.write(self.data)

    def parse(self, text: str) -> Any:  # noqa: ANN401 - each field has its own value
        """Return the value of a text, or raise ValueError with what to write instead."""
        raise NotImplementedError

    def write(self, value: Any) -> str:  # noqa: ANN401 - each field has its own value
        """Return a value as text that `parse` reads back."""
        return str(value)


class SizeField(_ParsedField):
    """Bytes, written like `8 GiB`."""

    empty = staticmethod(int)

    def parse(self, text: str) -> int:
        """Return bytes."""
        return parse_size(text)

    def write(self, value: int) -> str:
        """Return the size with its unit; nothing for none."""
        return format_size(value) if value else ""


class DurationField(_ParsedField):
    """Seconds, written like `5m`."""

    empty = staticmethod(float)

    def parse(self, text: str) -> float:
        """Return seconds."""
        return parse_duration(text)

    def write(self, value: float) -> str:
        """Return the duration with its units; nothing for none."""
        return format_duration(value) if value else "0"


class NumberField(_ParsedField):
    """A number or none; `8 GiB` is taken for fields that count bytes."""

    def parse(self, text: str) -> float:
        """Return the number."""
        try:
            return float(text)
        except ValueError:
            pass
        try:
            return float(parse_size(text))
        except ValueError:
            raise ValueError(f"{text!r} is not a number.") from None

    def write(self, value: float) -> str:
        """Return the number without needless digits."""
        return f"{value:.10g}"


class CommandField(_ParsedField):
    """An argument vector, written as shell words."""

    widget = widgets.TextArea()

    @staticmethod
    def empty() -> list[str]:
        """Return no words."""
        return []

    def parse(self, text: str) -> list[str]:
        """Return the words, quotes taken off as a shell would."""
        try:
            return shlex.split(text)
        except ValueError as error:
            raise ValueError(f"The command can't be split into words: {error}.") from None

    def write(self, value: list[str]) -> str:
        """Return the words quoted where a shell would need it."""
        return shlex.join(value)


class PairsField(TextAreaField):  # type: ignore[misc] # WTForms ships no types
    """Lines of `KEY=VALUE`."""

    def process_formdata(self, valuelist: Sequence[str]) -> None:
        """Parse the lines; empty ones are skipped."""
        if not valuelist:
            return
        pairs: dict[str, str] = {}
        for number, line in enumerate(valuelist[0].splitlines(), start=1):
            if not line.strip():
                continue
            key, equals, value = line.partition("=")
            if not equals or not key.strip():
                raise ValueError(f"Line {number} is {line.strip()!r}; write KEY=VALUE.")
            pairs[key.strip()] = value.strip()
        self.data = pairs

    def _value(self) -> str:
        if self.raw_data:
            return str(self.raw_data[0])
        return "\n".join(f"{key}={value}" for key, value in (self.data or {}).items())


class WordsField(_ParsedField):
    """Names separated by commas or spaces."""

    @staticmethod
    def empty() -> list[str]:
        """Return no words."""
        return []

    def parse(self, text: str) -> list[str]:
        """Return the names, in order and once each."""
        return list(dict.fromkeys(text.replace(",", " ").split()))

    def write(self, value: list[str]) -> str:
        """Return the names with commas."""
        return ", ".join(value)


class CheckboxListField(Field):  # type: ignore[misc] # WTForms ships no types
    """Several of the given choices, each with its own box."""

    widget = widgets.ListWidget(prefix_label=False)

    def __init__(self, label: str, **options: Any) -> None:  # noqa: ANN401 - WTForms' options
        super().__init__(label, **options)
        self.choices: list[tuple[str, str]] = []

    def process_formdata(self, valuelist: Sequence[str]) -> None:
        """Take the ticked values."""
        self.data = list(valuelist)

    def pre_validate(self, form: object) -> None:  # noqa: ARG002 - WTForms calls it so
        """Refuse a value that was not offered."""
        unknown = set(self.data or ()) - {value for value, _ in self.choices}
        if unknown:
            raise ValueError("One of the choices is gone. Choose again.")
