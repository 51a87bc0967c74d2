"""Empty stand-ins for libraries that a reference imports and what is used of it does not."""

import sys
import types
from collections.abc import Iterable
from importlib.machinery import ModuleSpec


class Nothing(types.ModuleType):
    """A module in which every name is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def stub_libraries(names: Iterable[str]) -> None:
    """Call before the first import of the reference; a package stands before its modules."""
    for name in names:
        module = sys.modules[name] = Nothing(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__path__ = []
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
