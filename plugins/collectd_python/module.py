"""The module `collectd` that modules written for collectd import.

Source: collectd-python(5); names, arguments and errors are those of collectd 5.12.
"""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from plugins.collectd.types_db import SourceKind
from plugins.collectd.values import Severity
from plugins.collectd_python import daemon as of_daemon
from plugins.collectd_python.daemon import NAME_PREFIX, NO_DATA, Callback, Daemon
from plugins.collectd_python.dispatched import text_of
from plugins.collectd_python.objects import CollectdError, Config, Signed, Unsigned

MODULE_NAME = "collectd"

Function = Callable[..., Any]


def build_module(daemon: Daemon) -> ModuleType:
    """Return a module `collectd` for this daemon."""
    module = ModuleType(MODULE_NAME, "The python interface to collectd")
    vars(module).update(
        Config=Config,
        Values=daemon.values_class,
        Notification=daemon.notification_class,
        Signed=Signed,
        Unsigned=Unsigned,
        CollectdError=CollectdError,
        **_constants(),
        **_log_functions(daemon),
        **_register_functions(daemon),
        **_unregister_functions(daemon),
        **_other_functions(daemon),
    )
    return module


@contextlib.contextmanager
def installed(module: ModuleType) -> Iterator[None]:
    """Make `import collectd` find this module within the block."""
    before = sys.modules.get(MODULE_NAME)
    sys.modules[MODULE_NAME] = module
    try:
        yield
    finally:
        if before is None:
            sys.modules.pop(MODULE_NAME, None)
        else:
            sys.modules[MODULE_NAME] = before


def callback_name(function: Function, name: object = None) -> str:
    """Return the identifier of a callback: `python.` and its name, or its module's."""
    own = getattr(function, "__module__", None) if name is None else text_of(name)
    return f"{NAME_PREFIX}{own or hex(id(function))}"


def _constants() -> dict[str, object]:
    return {
        **{f"DS_TYPE_{kind.name}": kind.value for kind in SourceKind},
        **{f"NOTIF_{severity.name}": int(severity) for severity in Severity},
        "LOG_ERROR": of_daemon.LOG_ERROR,
        "LOG_WARNING": of_daemon.LOG_WARNING,
        "LOG_NOTICE": of_daemon.LOG_NOTICE,
        "LOG_INFO": of_daemon.LOG_INFO,
        "LOG_DEBUG": of_daemon.LOG_DEBUG,
    }


def _log_functions(daemon: Daemon) -> dict[str, Function]:
    def logger(severity: int) -> Function:
        def log_message(message: object, /) -> None:
            daemon.log(severity, text_of(message))

        return log_message

    names = ("error", "warning", "notice", "info", "debug")
    return {name: logger(getattr(of_daemon, f"LOG_{name.upper()}")) for name in names}


def _register_functions(daemon: Daemon) -> dict[str, Function]:
    callbacks = daemon.callbacks

    def once(registered: list[Callback]) -> Function:
        def register(callback: Function, data: object = NO_DATA, name: object = None) -> str:
            added = _callback(callback, data, name)
            registered.insert(0, added)
            return added.name

        return register

    def often(registered: dict[str, Callback]) -> Function:
        def register(callback: Function, data: object = NO_DATA, name: object = None) -> str:
            added = _callback(callback, data, name)
            registered[added.name] = added
            return added.name

        return register

    def register_read(
        callback: Function, interval: float = 0, data: object = NO_DATA, name: object = None
    ) -> str:
        added = _callback(callback, data, name)
        if added.name in callbacks.read:
            daemon.log(
                of_daemon.LOG_WARNING,
                f'The read function "{added.name}" is already registered: give it a name',
            )
        else:
            seconds = float(interval)
            callbacks.read[added.name] = (added, seconds if seconds > 0 else 0.0)
        return added.name

    return {
        "register_config": once(callbacks.config),
        "register_init": once(callbacks.init),
        "register_shutdown": once(callbacks.shutdown),
        "register_read": register_read,
        "register_write": often(callbacks.write),
        "register_flush": often(callbacks.flush),
        "register_log": often(callbacks.log),
        "register_notification": often(callbacks.notification),
    }


def _callback(function: Function, data: object, name: object) -> Callback:
    if not callable(function):
        raise TypeError("callback needs a be a callable object.")
    return Callback(callback_name(function, name), function, data)


def _unregister_functions(daemon: Daemon) -> dict[str, Function]:
    callbacks = daemon.callbacks
    kinds = ("config", "init", "shutdown", "read", "write", "flush", "log", "notification")

    def unregister_of(kind: str) -> Function:
        def unregister(identifier: Function | str | bytes, /) -> None:
            name = _identifier(identifier)
            registered = getattr(callbacks, kind)
            callback = (
                registered.pop(name, None)
                if isinstance(registered, dict)
                else next((candidate for candidate in registered if candidate.name == name), None)
            )
            if callback is None:
                raise RuntimeError(f"Unable to unregister {kind} callback '{name}'.")
            if isinstance(registered, list):
                registered.remove(callback)

        return unregister

    return {f"unregister_{kind}": unregister_of(kind) for kind in kinds}


def _identifier(identifier: object) -> str:
    if isinstance(identifier, str | bytes):
        return text_of(identifier)
    if not callable(identifier):
        raise TypeError("This function needs a string or a callable object as its only parameter.")
    return callback_name(identifier)


def _other_functions(daemon: Daemon) -> dict[str, Function]:
    def get_dataset(name: object, /) -> list[tuple[str, str, float | None, float | None]]:
        data_set = daemon.types.get(text_of(name))
        if data_set is None:
            raise TypeError(f"Dataset {text_of(name)} not found")
        return [
            (source.name, source.kind.value, source.minimum, source.maximum) for source in data_set
        ]

    def flush(plugin: object = None, timeout: int = -1, identifier: object = None) -> None:
        daemon.flush(
            None if plugin is None else text_of(plugin),
            int(timeout),
            None if identifier is None else text_of(identifier),
        )

    return {"get_dataset": get_dataset, "flush": flush}


@contextlib.contextmanager
def importable(names: Collection[str], *, folders: Collection[Path]) -> Iterator[None]:
    """Search directories for modules first, and unload the imported modules after the block.

    Args:
        names: modules to unload with their submodules, wherever they were found.
    """
    path_before, modules_before = list(sys.path), set(sys.modules)
    sys.path[:0] = [str(folder) for folder in folders]
    try:
        yield
    finally:
        sys.path[:] = path_before
        for name in sys.modules.keys() - modules_before:
            file = Path(getattr(sys.modules[name], "__file__", None) or "/")
            is_own = any(file.is_relative_to(folder) for folder in folders)
            if name.partition(".")[0] in names or is_own:
                del sys.modules[name]


BLOCK_WORDS = "_values"


def module_node(name: str, table: Mapping[str, object]) -> Config:
    """Return the block `<Module NAME>` of a module's TOML table.

    A key with a value is a line. A key with a list is a line for each item; an item that is a list
    is a line with several values. A table is a block, a list of tables several blocks. The values
    of a block are in its key `_values`.
    """
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
    """Return a value as one of the three types of collectd's configuration."""
    if isinstance(value, bool | str):
        return value
    return float(value) if isinstance(value, int | float) else str(value)
