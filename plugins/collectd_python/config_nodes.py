"""From a TOML table to the `Config` objects that collectd's configuration would give.

A key with a value is a line, a key with a list is a line for each item (and an item that is a list
is a line with several words), a table is a block, and a list of tables is a block for each. The
words behind a block's name stand in its key `_values`.
"""

from collections.abc import Iterator, Mapping

from plugins.collectd_python.objects import Config

BLOCK_WORDS = "_values"


def module_node(name: str, table: Mapping[str, object]) -> Config:
    """Return the block `<Module NAME>` of a module's table."""
    return _block("Module", {**table, BLOCK_WORDS: [name]}, None)


def _block(key: str, table: Mapping[str, object], parent: Config | None) -> Config:
    node = Config(key, parent, _words(table.get(BLOCK_WORDS, ())))
    children: list[Config] = []
    for child_key, value in table.items():
        if child_key != BLOCK_WORDS:
            children += _nodes(child_key, value, node)
    node.children = tuple(children)
    return node


def _nodes(key: str, value: object, parent: Config) -> Iterator[Config]:
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, Mapping):
            yield _block(key, item, parent)
        else:
            yield Config(key, parent, _words(item))


def _words(value: object) -> tuple[object, ...]:
    items = value if isinstance(value, list | tuple) else (value,)
    return tuple(_word(item) for item in items)


def _word(value: object) -> object:
    """Return a value of the three kinds that collectd's configuration has."""
    if isinstance(value, bool | str):
        return value
    return float(value) if isinstance(value, int | float) else str(value)
