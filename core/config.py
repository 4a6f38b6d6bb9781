"""Configuration: a frozen dataclass, read once from a TOML file and the environment.

All errors are reported together. Unknown keys are errors that suggest the nearest known key.
"""

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from core.errors import ConfigurationError

T = TypeVar("T")


def load_config(cls: type[T], values: Mapping[str, Any], *, source: str) -> T:
    """Return `cls` filled from `values`.

    Args:
        cls: a dataclass; bounds are given as `Annotated[int, msgspec.Meta(ge=1)]`.
        values: key to value; text is converted to numbers, booleans and paths.
        source: where the values come from, for the message ("vedette.toml").

    Raises:
        ConfigurationError: lists every error.
    """
    config, errors = check_config(cls, values)
    if errors or config is None:
        raise ConfigurationError(errors, source=source)
    return config


def check_config(
    cls: type[T], values: Mapping[str, Any], *, prefix: str = "", siblings: Iterable[str] = ()
) -> tuple[T | None, list[str]]:
    """Return the filled dataclass, or None, with all errors; each names its key after `prefix`.

    `siblings` are keys of the same table that are checked elsewhere, for suggestions.
    """
    hints = get_type_hints(cls, include_extras=True)
    known_keys = [*hints, *siblings]
    errors = [_unknown_key(key, known_keys, prefix) for key in values if key not in hints]
    filled: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type] # T is a dataclass by contract
        if field.name in values:
            value = values[field.name]
            try:
                filled[field.name] = msgspec.convert(
                    value, hints[field.name], strict=False, dec_hook=_decode_path
                )
            except (msgspec.ValidationError, ValueError) as error:
                errors.append(f"{prefix}{field.name} = {value!r}: {_plain(error)}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            errors.append(f"{prefix}{field.name} is missing; set it")
    return (None, errors) if errors else (cls(**filled), [])


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        ConfigurationError: the file can't be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError([f"can't be read: {error.strerror}"], source=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"is not TOML: {error}"], source=str(path)) from error


def read_environment(
    environ: Mapping[str, str], *, prefix: str, also: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the settings in the environment by field name.

    Args:
        environ: usually `os.environ`.
        prefix: `VEDETTE_` maps `VEDETTE_PORT` to `port`.
        also: variables without the prefix, such as `DATABASE_URL`, to field names.
    """
    values = {field: environ[name] for name, field in (also or {}).items() if name in environ}
    for name, value in environ.items():
        if name.startswith(prefix):
            values[name.removeprefix(prefix).lower()] = value
    return values


def _unknown_key(key: str, known_keys: list[str], prefix: str) -> str:
    near = difflib.get_close_matches(key, known_keys, n=1)
    hint = (
        f"did you mean {prefix}{near[0]}?"
        if near
        else f"known keys: {', '.join(sorted(known_keys))}"
    )
    return f"{prefix}{key} is not a setting; {hint}"


def _decode_path(kind: type, value: object) -> Path:
    if kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")


def _plain(error: Exception) -> str:
    return str(error).replace("`", "").lower()
