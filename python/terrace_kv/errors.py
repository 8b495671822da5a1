"""What can go wrong, as exceptions with the library's own text."""

from __future__ import annotations


class TerraceError(Exception):
    """An error of the world: a configuration, a disk, memory, a peer.

    Attributes:
        code: what to do about it, in a word of ``terrace/result.h``: "invalid argument", "not found",
            "permission denied", "resource exhausted", "incompatible", "corrupt", "unavailable", "cancelled".
    """

    def __init__(self, message: str, code: str = "unavailable") -> None:
        super().__init__(message)
        self.code = code


class ConfigError(TerraceError, ValueError):
    """The caller or a configuration is wrong: every fault on a line of its own. Trying again is useless."""

    def __init__(self, message: str, code: str = "invalid argument") -> None:
        super().__init__(message, code)


class ChunkGone(TerraceError, LookupError):
    """What was named is not there, or not any more."""


def make_error(code: str, message: str) -> TerraceError:
    """The exception of an error of the library."""
    kinds = {"invalid argument": ConfigError, "not found": ChunkGone}
    return kinds.get(code, TerraceError)(message, code)
