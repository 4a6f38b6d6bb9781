"""What is known of GPU models, and of versions with weaknesses: two data files."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from protocol.inventory import Inventory

DRIVER, KERNEL = "driver", "kernel"
_MAX_PARTS = 4
# Such as 5.15.0-113-generic: the number of its fixes is the distribution's.
_DISTRIBUTION_KERNEL = re.compile(r"\d+\.\d+\.0-")


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU model; see `known_models.toml` for the fields."""

    title: str
    names: tuple[str, ...]
    except_names: tuple[str, ...] = ()
    pci_devices: tuple[str, ...]
    memory_gib: float
    processors: int
    cores: int
    compute: str
    clock_megahertz: tuple[int, int]
    watts: tuple[int, int]
    nvlinks: int
    bandwidth_gigabytes: float


class Weakness(msgspec.Struct, frozen=True, kw_only=True):
    """A weakness of a component; see `weaknesses.toml` for the fields."""

    id: str
    component: str
    fixed: tuple[str, ...]
    is_blocking: bool
    text: str
    source: str


class _Models(msgspec.Struct, frozen=True):
    model: tuple[KnownModel, ...]


class _Weaknesses(msgspec.Struct, frozen=True):
    weakness: tuple[Weakness, ...]


@cache
def known_models() -> tuple[KnownModel, ...]:
    """Return all known models."""
    return msgspec.convert(_read("known_models.toml"), _Models).model


@cache
def weaknesses() -> tuple[Weakness, ...]:
    """Return all known weaknesses."""
    return msgspec.convert(_read("weaknesses.toml"), _Weaknesses).weakness


def model_of(name: str) -> KnownModel | None:
    """Return the model with a driver's name; None if it is not known."""
    for model in known_models():
        is_other = any(part in name for part in model.except_names)
        if not is_other and any(part in name for part in model.names):
            return model
    return None


def weak_components(inventory: Inventory) -> list[tuple[Weakness, str]]:
    """Return the weaknesses of an appliance, each with its version."""
    versions: Mapping[str, str] = {
        **inventory.components,
        DRIVER: inventory.driver_version,
        KERNEL: "" if _DISTRIBUTION_KERNEL.match(inventory.kernel) else inventory.kernel,
    }
    return [
        (weakness, versions[weakness.component])
        for weakness in weaknesses()
        if is_weak(versions.get(weakness.component, ""), weakness.fixed)
    ]


def is_weak(version: str, fixed: tuple[str, ...]) -> bool:
    """Return whether a version lacks a fix, by the first fixed version of each branch.

    A version is compared with the fix of its branch, which is all but the last number; one of a
    branch without a fix lacks it if it is older than the newest fix. Unknown ones are not weak.
    """
    own = _numbers(version)
    fixes = sorted(map(_numbers, fixed))
    if not own:
        return False
    for fix in fixes:
        if own[: _branch_length(fix)] == fix[: _branch_length(fix)]:
            return own < fix
    return own < fixes[-1]


def _branch_length(fix: tuple[int, ...]) -> int:
    """Return how many numbers name the branch: drivers have one, such as 535, others two."""
    return 1 if fix[0] >= 100 else 2  # noqa: PLR2004 - drivers' branches have three digits


def _numbers(version: str) -> tuple[int, ...]:
    start = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    return tuple(map(int, start[0].split(".")[:_MAX_PARTS])) if start else ()


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))
