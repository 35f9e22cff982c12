"""The methods, by the name that the command line uses."""

from collections.abc import Callable

from sgcl.errors import InputError
from sgcl.methods.base import Method
from sgcl.methods.sgcl import SGCL

METHODS: dict[str, Callable[..., Method]] = {"sgcl": SGCL}


def method_named(name: str) -> Callable[..., Method]:
    """The class of a method.

    Raises:
        InputError: there is no such method.
    """
    if name not in METHODS:
        raise InputError(f"method: {name!r} is not known; choose one of {', '.join(METHODS)}")
    return METHODS[name]


__all__ = ["METHODS", "SGCL", "Method", "method_named"]
