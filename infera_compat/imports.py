"""Run something right after a module was imported, without importing it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

log = logging.getLogger("vllm.infera_compat")

Then = Callable[[ModuleType], None]


class _Watcher(MetaPathFinder):
    """A finder that finds nothing itself: it adds a step to what the other finders find."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Then]] = {}
        # Modules that were half-imported when they were asked for: looked at again at every later
        # import, since nothing tells when such a one is done.
        self.unfinished: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for name in [name for name in self.unfinished if _is_imported(name)]:
            self.unfinished.discard(name)
            self.run(sys.modules[name])
        if fullname not in self.waiting:
            return None
        for finder in sys.meta_path:
            # importlib itself passes over finders of the old kind.
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._add_step(spec)
                return spec
        return None

    def _add_step(self, spec: ModuleSpec) -> None:
        """Shadow the loader's exec_module for this one import; the loader itself stays stock's."""
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module") or not hasattr(loader, "__dict__"):
            log.warning("infera-compat: can't follow the import of %s by %r", spec.name, loader)
            return

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            loader.exec_module(module)
            self.run(module)

        vars(loader)["exec_module"] = exec_module

    def run(self, module: ModuleType) -> None:
        """Run all that waits for `module`, then forget it; where one raises, all wait again.

        An error here fails the import, so that the next try imports the module anew.
        """
        with ExitStack() as every:
            for then in reversed(self.waiting.get(module.__name__, ())):
                every.callback(then, module)
        self.waiting.pop(module.__name__, None)


_watcher = _Watcher()


def when_imported(name: str, then: Then) -> None:
    """Call `then(module)` once `name` is imported: now, if it already is.

    An exception from `then` goes to whoever imports the module.
    """
    if _is_imported(name):
        then(sys.modules[name])
        return
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)
    _watcher.waiting.setdefault(name, []).append(then)
    if name in sys.modules:
        _watcher.unfinished.add(name)


def _is_imported(name: str) -> bool:
    """Whether a module is there, and its code has run to its end."""
    if name not in sys.modules:
        return False
    spec = sys.modules[name].__spec__
    # importlib marks a spec while its module's code runs.
    return spec is None or not vars(spec).get("_initializing", False)
