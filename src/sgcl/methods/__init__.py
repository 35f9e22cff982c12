"""The methods, by the name that the command line uses."""

from sgcl.errors import InputError
from sgcl.methods.base import Method
from sgcl.methods.duo import Duo
from sgcl.methods.sgcl import SGCL

METHODS: dict[str, type[SGCL]] = {"duo": Duo, "sgcl": SGCL}


def method_named(name: str) -> type[SGCL]:
    """The class of a method.

    Raises:
        InputError: there is no such method.
    """
    if name not in METHODS:
        raise InputError(f"method: {name!r} is not known; choose one of {', '.join(METHODS)}")
    return METHODS[name]


__all__ = ["METHODS", "SGCL", "Duo", "Method", "method_named"]
