"""The package's logger: silent in a library, shown by the command line."""

import logging

log = logging.getLogger("sgcl")
log.addHandler(logging.NullHandler())
