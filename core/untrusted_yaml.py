"""YAML from users: read in one pass, with bounds on its size, depth and numbers.

PyYAML's own loaders recurse with the depth of a document, and fail with any error on scalars such
as `!!int x`. Here scalars are null, booleans, numbers or texts, whatever their tag. Anchors,
aliases and merge keys work; what aliases stand for counts toward the size each time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_LENGTH = 512 * 1024
# Read in under 100 ms.
MAX_NODES = 10_000
MAX_DEPTH = 30
# Long texts count more than once, because aliases can repeat them.
_NODE_LENGTH = 200
_MAX_NUMBER_LENGTH = 100
_MERGE = "<<"
_TEXT_TAG = "tag:yaml.org,2002:str"
# That of libyaml is a hundred times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER = yaml.resolver.Resolver()
_TYPES = {
    f"tag:yaml.org,2002:{name}": name for name in ("null", "bool", "int", "float", "str", "merge")
}


class UntrustedYAMLError(ValueError):
    """The text is not YAML, or too large; the message says where."""


def load_untrusted_yaml(text: str) -> Any:  # noqa: ANN401 - any YAML
    """Return the document of a text; None for an empty one.

    Raises:
        UntrustedYAMLError: it is not valid, or too large.
    """
    if len(text) > MAX_LENGTH:
        raise UntrustedYAMLError(f"it has over {MAX_LENGTH // 1024} KiB. Split it")
    reader = _Reader()
    try:
        for event in _events(text):
            reader.read(event)
    except yaml.YAMLError as error:
        raise UntrustedYAMLError(str(error)) from None
    return reader.document


def _events(text: str) -> Iterator[yaml.Event]:
    loader = _LOADER(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


@dataclass(slots=True)
class _Collection:
    """A list or mapping that is being read."""

    value: list[Any] | dict[Any, Any]
    anchor: str | None
    size: int = 1
    key: Any = None
    has_key: bool = False
    bases: list[Mapping[Any, Any]] = field(default_factory=list)


class _Reader:
    """Builds the document of parser events."""

    def __init__(self) -> None:
        self.document: Any = None
        self._document_count = 0
        self._opened: list[_Collection] = []
        self._anchors: dict[str, tuple[Any, int]] = {}

    def read(self, event: yaml.Event) -> None:
        """Add what an event stands for."""
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
            self._add(event, value, size=1 + len(event.value) // _NODE_LENGTH, anchor=event.anchor)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(self._opened) == MAX_DEPTH:
                raise _error(event, f"it is nested more than {MAX_DEPTH} levels deep")
            is_list = isinstance(event, yaml.SequenceStartEvent)
            self._opened.append(_Collection([] if is_list else {}, event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close(event, self._opened.pop())
        elif isinstance(event, yaml.AliasEvent):
            name = event.anchor or ""
            if name not in self._anchors:
                raise _error(event, f"there is no anchor {name[:50]!r} before it")
            value, size = self._anchors[name]
            self._add(event, value, size=size)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._document_count += 1
            if self._document_count > 1:
                raise _error(event, "there is a second document")

    def _close(self, event: yaml.Event, done: _Collection) -> None:
        if isinstance(done.value, dict):
            for base in done.bases:
                done.value = {**base, **done.value}
        self._add(event, done.value, size=done.size, anchor=done.anchor)

    def _add(self, event: yaml.Event, value: Any, *, size: int, anchor: str | None = None) -> None:  # noqa: ANN401 - any YAML
        if anchor:
            self._anchors[anchor] = value, size
        if not self._opened:
            self.document = value
            return
        parent = self._opened[-1]
        parent.size += size
        if parent.size > MAX_NODES:
            raise _error(event, f"it has more than {MAX_NODES} values. Split it")
        if isinstance(parent.value, list):
            parent.value.append(value)
        elif not parent.has_key:
            if isinstance(value, list | dict):
                raise _error(event, "a key is a list or a mapping")
            parent.key, parent.has_key = value, True
        else:
            parent.has_key = False
            if parent.key is not _MERGE_KEY:
                parent.value[parent.key] = value
                return
            bases = value if isinstance(value, list) else [value]
            if not all(isinstance(base, dict) for base in bases):
                raise _error(event, f"{_MERGE!r} needs a mapping, or a list of mappings")
            parent.bases += bases


class _MergeKey:
    """Stands for a key whose value is merged into its mapping."""


_MERGE_KEY = _MergeKey()


def _scalar(event: yaml.ScalarEvent) -> Any:  # noqa: ANN401 - any YAML
    text: str = event.value
    if event.style in {"'", '"', "|", ">"} or event.tag == _TEXT_TAG:
        return text
    tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    kind = _TYPES.get(tag)
    if kind in {"int", "float"}:
        if len(text) > _MAX_NUMBER_LENGTH:
            raise _error(event, f"a number has {len(text)} characters")
        return _number(text)
    if kind == "bool":
        return yaml.SafeLoader.bool_values[text.lower()]
    if kind == "merge":
        return _MERGE_KEY
    return None if kind == "null" else text


def _number(text: str) -> Any:  # noqa: ANN401 - a number, or the text
    """Return a number in any notation of YAML but base 60, which times such as `12:30` have."""
    digits = text.replace("_", "").lower()
    if ":" in digits:
        return text
    if digits.lstrip("+-") in {".inf", ".nan"}:
        return float(digits.replace(".", "", 1))
    if digits.lstrip("+-").startswith(("0x", "0b")):
        return int(digits, 0)
    if "." in digits or "e" in digits:
        return float(digits)
    is_octal = digits.lstrip("+-").startswith("0")
    return int(digits, 8 if is_octal else 10)


def _error(event: yaml.Event, problem: str) -> UntrustedYAMLError:
    mark = event.start_mark
    place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return UntrustedYAMLError(problem + place)
