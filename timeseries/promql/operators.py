"""Arithmetic, comparisons and sets of scalars and vectors, and the matching of two vectors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import promql_parser as grammar

from timeseries.promql.syntax import ARITHMETIC, COMPARISONS, EvaluationError
from timeseries.promql.values import (
    NAME_LABEL,
    Flags,
    Floats,
    Labels,
    Vector,
    check_cells,
    group_rows,
    key_of,
    shown,
    without_name,
)

_ARITHMETIC: Mapping[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
}
_COMPARISONS: Mapping[str, Callable[[Floats, Floats], Flags]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}


@dataclass(frozen=True, slots=True)
class Matching:
    """How the series of two vectors find each other.

    Attributes:
        labels: the labels that are compared, or those that are not.
        is_on: whether they are compared.
        many: the side on which several series may match the same one: "left", "right" or "".
        included: labels of the other side that the results get.
        returns_bool: whether a comparison gives 0 or 1 instead of leaving out series.
    """

    labels: tuple[str, ...] = ()
    is_on: bool = False
    many: str = ""
    included: tuple[str, ...] = ()
    returns_bool: bool = False

    @classmethod
    def of(cls, modifier: grammar.BinModifier | None) -> "Matching":
        """Return the matching that an operator has in the text."""
        if modifier is None:
            return cls()
        matching, cardinality = modifier.matching, grammar.VectorMatchCardinality
        sides = ((cardinality.ManyToOne, "left"), (cardinality.OneToMany, "right"))
        return cls(
            labels=tuple(matching.labels) if matching is not None else (),
            is_on=matching is not None and matching.type == grammar.LabelModifierType.Include,
            many=next((side for kind, side in sides if kind == modifier.card), ""),
            included=tuple(modifier.group_labels or ()),
            returns_bool=modifier.return_bool,
        )

    def of_labels(self, labels: Labels) -> Labels:
        """Return the labels that are compared."""
        ignored = {*self.labels, NAME_LABEL}
        return {
            name: text
            for name, text in labels.items()
            if (name in self.labels if self.is_on else name not in ignored)
        }

    def key(self, labels: Labels) -> object:
        """Return what series that match have alike."""
        return key_of(self.of_labels(labels))


def of_scalars(operator: str, left: Floats, right: Floats) -> Floats:
    """Return the result of an operator of two numbers."""
    if operator in ARITHMETIC:
        return _ARITHMETIC[operator](left, right)
    return _COMPARISONS[operator](left, right).astype(np.float64)


def with_scalar(
    operator: str, vector: Vector, number: Floats, *, is_left: bool, returns_bool: bool
) -> Vector:
    """Return the result of an operator of a vector and a number, which is left or right."""
    left, right = (number, vector.values) if is_left else (vector.values, number)
    if operator in ARITHMETIC:
        return vector.unnamed(_ARITHMETIC[operator](left, right))
    holds = _COMPARISONS[operator](left, right)
    if returns_bool:
        return vector.unnamed(holds.astype(np.float64))
    return Vector(vector.labels, vector.values, vector.is_present & holds)


def of_vectors(operator: str, left: Vector, right: Vector, matching: Matching) -> Vector:
    """Return the arithmetic or the comparison of two vectors.

    Raises:
        EvaluationError: series match in another way than the operator says.
    """
    many, other = (right, left) if matching.many == "right" else (left, right)
    others = group_rows(other.labels, matching.key)
    _check_unique(other, others, "right" if many is left else "left")
    pairs = [
        (row, match)
        for row, labels in enumerate(many.labels)
        for match in others.get(matching.key(labels), ())
    ]
    check_cells(len(pairs), left.values.shape[1])
    rows, matches = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    is_present = many.is_present[rows] & other.is_present[matches]
    left_values, right_values = many.values[rows], other.values[matches]
    if many is right:
        left_values, right_values = right_values, left_values
    values, is_present = _computed(operator, left_values, right_values, is_present, matching)
    keeps_name = operator in COMPARISONS and not matching.returns_bool
    labels = [
        _result_labels(many.labels[row], other.labels[match], matching, keeps_name=keeps_name)
        for row, match in pairs
    ]
    return _merged(labels, values, is_present)


def of_sets(operator: str, left: Vector, right: Vector, matching: Matching) -> Vector:
    """Return `and`, `or` or `unless` of two vectors."""
    if operator == "or":
        check_cells(len(left.labels) + len(right.labels), left.values.shape[1])
        is_present = right.is_present & ~_present_by_key(right, left, matching)
        return Vector.merged(
            [*left.labels, *right.labels],
            np.concatenate([left.values, right.values]),
            np.concatenate([left.is_present, is_present]),
        )
    in_right = _present_by_key(left, right, matching)
    is_present = left.is_present & (in_right if operator == "and" else ~in_right)
    return Vector(left.labels, left.values, is_present)


def _computed(
    operator: str, left: Floats, right: Floats, is_present: Flags, matching: Matching
) -> tuple[Floats, Flags]:
    if operator in ARITHMETIC:
        return _ARITHMETIC[operator](left, right), is_present
    holds = _COMPARISONS[operator](left, right)
    if matching.returns_bool:
        return holds.astype(np.float64), is_present
    return left, is_present & holds


def _check_unique(vector: Vector, groups: Mapping[object, Sequence[int]], side: str) -> None:
    for members in groups.values():
        if len(members) > 1 and (vector.is_present[members].sum(axis=0) > 1).any():
            first, second = (shown(vector.labels[row]) for row in members[:2])
            raise EvaluationError(
                f"Several series on the {side} side match the same ones of the other side, such as "
                f"{first} and {second}. Match on more labels, or use group_left or group_right."
            )


def _result_labels(many: Labels, other: Labels, matching: Matching, *, keeps_name: bool) -> Labels:
    labels = many if keeps_name else without_name(many)
    if not matching.many:
        if matching.is_on:
            return {name: text for name, text in labels.items() if name in matching.labels}
        return {name: text for name, text in labels.items() if name not in matching.labels}
    included = {name: other[name] for name in matching.included if other.get(name)}
    others = {name: text for name, text in labels.items() if name not in matching.included}
    return {**others, **included}


def _merged(labels: Sequence[Labels], values: Floats, is_present: Flags) -> Vector:
    try:
        return Vector.merged(labels, values, is_present)
    except EvaluationError as error:
        raise EvaluationError(
            "Several series match the same one of the other side; group_left or group_right says "
            f"that they may. {error.message}"
        ) from None


def _present_by_key(vector: Vector, other: Vector, matching: Matching) -> Flags:
    """Return whether a series of `other` that matches is present, for each one of `vector`."""
    groups = group_rows(other.labels, matching.key)
    keys = {key: at for at, key in enumerate(groups)}
    by_key = np.zeros((len(groups) + 1, vector.values.shape[1]), dtype=bool)
    for at, members in enumerate(groups.values()):
        by_key[at] = other.is_present[members].any(axis=0)
    rows = [keys.get(matching.key(labels), len(groups)) for labels in vector.labels]
    return by_key[np.array(rows, dtype=np.int64)]
