"""Annotations: the sentence of an alert, from a template of its rule.

A template is Jinja2 in its sandbox, of which only expressions and `if` are allowed: loops, macros
and calls could take any time and memory of the server. It knows `value`, `value_text`,
`threshold_text`, `severity`, `state`, `rule`, `tenant`, `labels` (the alert's tags) and `links`.
"""

from collections.abc import Mapping
from functools import lru_cache

from jinja2 import Template, TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEMPLATE_LENGTH = 1000
MAX_LENGTH = 2000
_FILTERS = ("abs", "default", "float", "int", "lower", "round", "title", "trim", "upper")
_NODES = (
    nodes.Add,
    nodes.And,
    nodes.Compare,
    nodes.Concat,
    nodes.CondExpr,
    nodes.Const,
    nodes.Div,
    nodes.Filter,
    nodes.Getattr,
    nodes.Getitem,
    nodes.If,
    nodes.Mul,
    nodes.Name,
    nodes.Neg,
    nodes.Not,
    nodes.Operand,
    nodes.Or,
    nodes.Output,
    nodes.Sub,
    nodes.Template,
    nodes.TemplateData,
    nodes.Test,
)
_ENVIRONMENT = ImmutableSandboxedEnvironment()
_ENVIRONMENT.filters = {name: _ENVIRONMENT.filters[name] for name in _FILTERS}
_ENVIRONMENT.globals = {}


def annotation_errors(text: str) -> list[str]:
    """Return why a text is not a template of an annotation."""
    if len(text) > MAX_TEMPLATE_LENGTH:
        return [f"The annotation has {len(text)} characters. Use at most {MAX_TEMPLATE_LENGTH}."]
    try:
        tree = _ENVIRONMENT.parse(text)
        # Before it is compiled, which calculates constants.
        for node in tree.find_all(nodes.Node):
            is_text_product = isinstance(node, nodes.Mul) and not _is_arithmetic(node)
            if not isinstance(node, _NODES) or is_text_product:
                kind = type(node).__name__.lower()
                allowed = "text, {{ expressions }} and {% if %}"
                return [f"The annotation uses {kind!r}, which is not allowed. Use {allowed}."]
        _ENVIRONMENT.from_string(text)
    except TemplateError as error:
        return [f"The annotation is not a valid template: {error}."]
    return []


def render_annotation(text: str, values: Mapping[str, object]) -> str:
    """Return the annotation of an alert; one that fails is its own text with the error."""
    if not text or annotation_errors(text):
        return text
    try:
        return _template(text).render(values)[:MAX_LENGTH].strip()
    except (TemplateError, ArithmeticError, TypeError, ValueError) as error:
        return f"{text} ({type(error).__name__}: {error})"[:MAX_LENGTH]


def _is_arithmetic(node: nodes.Mul) -> bool:
    """Whether a product can't repeat a text: it is of the number `value` and a constant."""
    sides = (node.left, node.right)
    return any(isinstance(one, nodes.Name) and one.name == "value" for one in sides) and any(
        isinstance(one, nodes.Const) and isinstance(one.value, int | float) for one in sides
    )


@lru_cache(maxsize=500)
def _template(text: str) -> Template:
    return _ENVIRONMENT.from_string(text)
