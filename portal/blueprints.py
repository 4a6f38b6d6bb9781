"""The blueprints of a package, which its modules define and nobody lists by hand."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TypeVar

from flask import Blueprint

AnyBlueprint = TypeVar("AnyBlueprint", bound=Blueprint)


def blueprints_of(package: ModuleType, kind: type[AnyBlueprint]) -> list[AnyBlueprint]:
    """Return the blueprints of a kind that the modules of a package define, by name."""
    blueprints = {
        value.name: value
        for module in iter_modules(package.__path__, f"{package.__name__}.")
        for value in vars(import_module(module.name)).values()
        if isinstance(value, kind)
    }
    return [blueprint for _, blueprint in sorted(blueprints.items())]
