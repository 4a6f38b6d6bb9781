"""PromQL text as a syntax tree, without what is not supported.

The grammar and its types are those of the library; an error of ours names what is refused, and its
column.
"""

import re
from collections.abc import Iterator
from datetime import timedelta

import promql_parser as grammar

from core.errors import InvalidInputError
from timeseries.promql.patterns import check_pattern

MAX_LENGTH = 8_000
MAX_DEPTH = 40
MAX_OPERATORS = 150
"""Among them those of matchers."""
_MS = timedelta(milliseconds=1)
_NAME = r"(?<![\w:]){}(?![\w:])"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|`[^`]*`')
_OPERATOR = re.compile(r"[-+*/%^]|[<>=!~]+|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_QUOTED_NAME = re.compile(r"'([^']+)'")

_AGGREGATIONS = "sum avg min max count group stddev stdvar topk bottomk quantile count_values"
_FUNCTIONS = (
    "abs absent absent_over_time acos acosh asin asinh atan atanh avg_over_time ceil changes clamp "
    "clamp_max clamp_min cos cosh count_over_time day_of_month day_of_week day_of_year "
    "days_in_month deg delta deriv exp floor histogram_quantile hour idelta increase irate "
    "label_join label_replace last_over_time ln log10 log2 max_over_time min_over_time minute "
    "month pi predict_linear present_over_time quantile_over_time rad rate resets round scalar sgn "
    "sin sinh sort sort_desc sqrt stddev_over_time stdvar_over_time sum_over_time tan tanh time "
    "timestamp vector year"
)
AGGREGATIONS = frozenset(_AGGREGATIONS.split())
FUNCTIONS = frozenset(_FUNCTIONS.split())
ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "^", "atan2"})
COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
SETS = frozenset({"and", "or", "unless"})


class PromQLError(InvalidInputError):
    """An expression is invalid, or has something that is not supported."""

    status = 400
    default_code = "invalid_promql"


class EvaluationError(InvalidInputError):
    """An expression can't be evaluated over these samples, or takes too much."""

    default_code = "promql_execution"


def parse(text: str) -> grammar.Expr:
    """Return the syntax tree of an expression.

    Raises:
        PromQLError: it is invalid, too long, or not supported.
    """
    if len(text) > MAX_LENGTH:
        raise PromQLError(f"The expression is longer than {MAX_LENGTH:,} characters.")
    _check_size(_STRING.sub('""', text))
    try:
        tree = grammar.parse(_STRING.sub(_without_backticks, text))
    except ValueError as error:
        raise PromQLError(_syntax_error(text, str(error))) from None
    for node in nodes(tree):
        problem = _problem(node)
        if problem:
            name, reason = problem
            raise PromQLError(f"{reason}{_position(text, name)}.")
    return tree


def nodes(tree: grammar.Expr) -> Iterator[grammar.Expr]:
    """Yield the nodes of a tree, each before those below it."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending += children(node)


def children(node: grammar.Expr) -> list[grammar.Expr]:
    """Return the expressions that a node consists of."""
    match node:
        case grammar.AggregateExpr():
            return [node.expr] if node.param is None else [node.param, node.expr]
        case grammar.BinaryExpr():
            return [node.lhs, node.rhs]
        case grammar.Call():
            return list(node.args)
        case grammar.MatrixSelector():
            return [node.vector_selector]
        case grammar.ParenExpr() | grammar.SubqueryExpr() | grammar.UnaryExpr():
            return [node.expr]
    return []


def milliseconds(duration: timedelta | None) -> int:
    """Return a duration of the grammar; None is 0."""
    return 0 if duration is None else duration // _MS


def on_one_line(text: str) -> str:
    """Return an expression without line breaks and repeated spaces, strings as they are."""
    parts, at = list[str](), 0
    for literal in _STRING.finditer(text):
        parts += [_SPACE.sub(" ", text[at : literal.start()]), literal[0]]
        at = literal.end()
    return "".join([*parts, _SPACE.sub(" ", text[at:])]).strip()


def without_parentheses(node: grammar.Expr) -> grammar.Expr:
    """Return what is inside of any parentheses."""
    while isinstance(node, grammar.ParenExpr):
        node = node.expr
    return node


def _check_size(text: str) -> None:
    """Check a text without strings: the library takes long for large trees, and so do we."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise PromQLError(f"The expression nests more than {MAX_DEPTH} parentheses.")
    if sum(1 for _ in _OPERATOR.finditer(text)) > MAX_OPERATORS:
        raise PromQLError(f"The expression has more than {MAX_OPERATORS} operators.")


def _problem(node: grammar.Expr) -> tuple[str, str] | None:
    """Return what of a node is not supported: the word to look for, and the reason."""
    match node:
        case grammar.Call() if node.func.name not in FUNCTIONS:
            return node.func.name, f"The function {node.func.name} is not supported"
        case grammar.AggregateExpr() if str(node.op) not in AGGREGATIONS:
            return str(node.op), f"The aggregation {node.op} is not supported"
        case grammar.BinaryExpr():
            return _operator_problem(node)
        case grammar.VectorSelector():
            return _selector_problem(node)
        case grammar.SubqueryExpr() if node.at is not None:
            return "@", "The modifier @ is not supported"
    return None


def _operator_problem(node: grammar.BinaryExpr) -> tuple[str, str] | None:
    operator = str(node.op)
    if operator not in ARITHMETIC | COMPARISONS | SETS:
        return operator, f"The operator {operator} is not supported"
    fill = node.modifier.fill_values if node.modifier is not None else None
    if fill is not None and (fill.lhs is not None or fill.rhs is not None):
        return "fill", "The modifier fill is not supported"
    return None


def _selector_problem(node: grammar.VectorSelector) -> tuple[str, str] | None:
    if node.at is not None:
        return "@", "The modifier @ is not supported"
    if node.matchers.or_matchers:
        return "or", "The alternative of matchers by or is not supported"
    for matcher in node.matchers.matchers:
        if "~" in operator_of(matcher):
            check_pattern(matcher.value)
    return None


_OPERATORS = ("=", "!=", "=~", "!~")
_MATCH_OPS = (
    grammar.MatchOp.Equal,
    grammar.MatchOp.NotEqual,
    grammar.MatchOp.Re,
    grammar.MatchOp.NotRe,
)


def operator_of(matcher: grammar.Matcher) -> str:
    """Return the operator of a matcher: `=`, `!=`, `=~` or `!~`."""
    return _OPERATORS[_MATCH_OPS.index(matcher.op)]


def _without_backticks(literal: re.Match[str]) -> str:
    """Return a string literal, a raw one with escapes: the library has none of them."""
    text = literal[0]
    if not text.startswith("`"):
        return text
    escaped = text[1:-1].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _syntax_error(text: str, reason: str) -> str:
    """Return the error of the library as a sentence, with the column of what it names."""
    names = _QUOTED_NAME.findall(reason)
    position = _position(text, names[0]) if names else ""
    return f"The expression is not valid PromQL: {reason}{position}."


def _position(text: str, name: str) -> str:
    """Return where a word or sign is in the text."""
    pattern = _NAME.format(re.escape(name)) if name[:1].isalpha() else re.escape(name)
    match = re.search(pattern, text)
    return f" (column {match.start() + 1})" if match else ""
