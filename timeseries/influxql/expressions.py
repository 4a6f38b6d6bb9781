"""The parser of expressions: columns of a SELECT, and conditions."""

from collections.abc import Callable
from typing import TypeVar

from timeseries.influxql.syntax import (
    Binary,
    Call,
    Duration,
    Expression,
    InfluxQLError,
    Logical,
    Name,
    Number,
    Regex,
    Text,
    Wildcard,
)
from timeseries.influxql.tokens import Token, duration_ns, tokens_of

MAX_DEPTH = 40
MAX_OPERATORS = 100
_COMPARISONS = frozenset({"=", "!=", "<>", "=~", "!~", "<", "<=", ">", ">="})
_DIGITS = 40

Result = TypeVar("Result")


class ExpressionParser:
    """Reads words from left to right; each method reads what it is named after."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens_of(text)
        self._at = 0
        self._depth = 0
        self._operators = 0

    @property
    def token(self) -> Token:
        """The next word."""
        return self._tokens[self._at]

    def next(self) -> Token:
        """Read the next word."""
        token = self.token
        self._at += token.kind != "end"
        return token

    def accept(self, *words: str) -> bool:
        """Read some keywords or signs if they come next."""
        following = self._tokens[self._at : self._at + len(words)]
        if [token.keyword for token in following] != list(words):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Read some keywords or signs, which must come next."""
        if not self.accept(*words):
            self.fail(" ".join(words).upper())

    def fail(self, wanted: str) -> None:
        """Raise the error that something else must come next."""
        raise InfluxQLError(
            f"Found {self.token.shown} at column {self.token.column}, not {wanted}."
        )

    def identifier(self) -> str:
        """Read a name, in double quotes or not."""
        if self.token.kind not in {"word", "quoted"}:
            self.fail("a name")
        return self.next().text

    def integer(self) -> int:
        """Read a whole number."""
        if self.token.kind != "number" or not self.token.text[:_DIGITS].isdecimal():
            self.fail("a whole number")
        return int(self.next().text[:_DIGITS])

    def condition(self) -> Expression:
        """Read a condition."""
        self._operators = 0
        return self._logical("or", lambda: self._logical("and", self._comparison))

    def arithmetic(self) -> Expression:
        """Read a column of a SELECT."""
        self._operators = 0
        return self._sum()

    def _logical(self, operator: str, operand: Callable[[], Expression]) -> Expression:
        operands = [operand()]
        while self.accept(operator):
            operands.append(operand())
        return operands[0] if len(operands) == 1 else Logical(operator, tuple(operands))

    def _comparison(self) -> Expression:
        left = self._sum()
        if self.token.keyword not in _COMPARISONS:
            return left
        operator = self.next().keyword.replace("<>", "!=")
        return Binary(operator, left, self._sum())

    def _sum(self) -> Expression:
        return self._binary(("+", "-"), self._product)

    def _product(self) -> Expression:
        return self._binary(("*", "/", "%"), self._operand)

    def _binary(self, signs: tuple[str, ...], operand: Callable[[], Expression]) -> Expression:
        left = operand()
        while self.token.keyword in signs:
            self._operators += 1
            if self._operators > MAX_OPERATORS:
                raise InfluxQLError(f"An expression has more than {MAX_OPERATORS} operators.")
            operator = self.next().keyword
            left = Binary(operator, left, operand())
        return left

    def _operand(self) -> Expression:
        token = self.next()
        if token.keyword == "-":
            return Binary("*", Number(-1.0), self._operand_within())
        if token.keyword == "(":
            inner = self._within(
                lambda: self._logical("or", lambda: self._logical("and", self._comparison))
            )
            self.expect(")")
            return inner
        if token.keyword == "*":
            return Wildcard()
        if token.kind in {"number", "duration", "text", "regex"}:
            return _literal(token)
        if token.kind not in {"word", "quoted"}:
            self._at -= token.kind != "end"
            self.fail("an expression")
        if token.kind == "word" and self.accept("("):
            return Call(token.text.lower(), self._within(self._arguments))
        kind = self.identifier().lower() if self.accept("::") else ""
        return Name(token.text, kind if kind in {"tag", "field"} else "")

    def _operand_within(self) -> Expression:
        return self._within(self._operand)

    def _arguments(self) -> tuple[Expression, ...]:
        if self.accept(")"):
            return ()
        arguments = [self._sum()]
        while self.accept(","):
            arguments.append(self._sum())
        self.expect(")")
        return tuple(arguments)

    def _within(self, read: Callable[[], Result]) -> Result:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InfluxQLError(f"The query is nested more than {MAX_DEPTH} deep.")
        result = read()
        self._depth -= 1
        return result


def _literal(token: Token) -> Expression:
    if token.kind == "number":
        if len(token.text) > _DIGITS:
            raise InfluxQLError(f"The number at column {token.column} has too many digits.")
        # Nanoseconds since the epoch are more digits than a float has.
        return Number(int(token.text) if token.text.isdecimal() else float(token.text))
    if token.kind == "duration":
        return Duration(duration_ns(token.text))
    return Text(token.text) if token.kind == "text" else Regex(token.text)
