"""The version of this package, for its rooms."""

__all__ = ["__version__"]

__version__ = "0.1.0"
