"""How transformers learns of Trellis's models: once it is imported, before or after Trellis, and never because of it.

It has no list of extensions to read. So the import of its table of configurations is watched, and the configurations
of all kinds of Trellis models are added to it. The models themselves, for which PyTorch must be imported, are added
when the first of these configurations is made.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

TABLE = "transformers.models.auto.configuration_auto"  # the module that says which model_type has which configuration


class _Watching(MetaPathFinder):
    """Finds nothing itself; but when the table is looked for, makes its loader register Trellis's kinds as well."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The table as the other finders find it, with a loader that does one thing more."""
        if fullname != TABLE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                _register()

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]  # of this module's loader alone
        return spec


def watch() -> None:
    """Register at once if transformers has its table already, else as soon as it does."""
    if TABLE in sys.modules:
        _register()
    elif not any(isinstance(finder, _Watching) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watching())


def _register() -> None:
    """Add the configurations; whatever is wrong must not keep transformers from being imported."""
    try:
        from trellis.hf.configuration import register_configurations

        register_configurations()
    except Exception as error:  # another version of the library may lack anything
        warnings.warn(
            f"transformers cannot be told of Trellis's models ({error}): install transformers 5 or newer.", stacklevel=2
        )
