"""Posteriors for every Galactic binary in LISA's data.

``read``, ``load_model`` and the classes of what they return are those of :mod:`slotflow.api`;
they are imported when they are first used.

Example:
    >>> import slotflow
    >>> result = slotflow.load_model().posterior(slotflow.read("input.h5"), fmin=1.9e-3)
    >>> result.table()
"""

from importlib import import_module

__version__ = "0.1.0"

_API = ("Model", "Models", "Posterior", "Source", "load_model", "read")
__all__ = ["Model", "Models", "Posterior", "Source", "__version__", "load_model", "read"]


def __getattr__(name: str) -> object:
    if name in _API:
        return getattr(import_module("slotflow.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_API})
