"""Run something right after a module was imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Then = Callable[[ModuleType], None]


class _Watcher(MetaPathFinder):
    """A finder that finds nothing itself: it adds a step to what the other finders find."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Then]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._add_step(spec)
                return spec
        return None

    def _add_step(self, spec: ModuleSpec) -> None:
        """Shadow the loader's exec_module for this one import; the loader itself stays stock's."""
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return

        def exec_module(module: ModuleType) -> None:
            del vars(loader)["exec_module"]
            loader.exec_module(module)
            for then in self.waiting.pop(spec.name, ()):
                then(module)

        vars(loader)["exec_module"] = exec_module


_watcher = _Watcher()


def when_imported(name: str, then: Then) -> None:
    """Call `then(module)` once `name` is imported: now, if it already is.

    An exception from `then` goes to whoever imports the module.
    """
    if name in sys.modules:
        then(sys.modules[name])
        return
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)
    _watcher.waiting.setdefault(name, []).append(then)
