"""Map the model names of clients to the names that an upstream knows. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class ModelNames:
    """`ModelNames` maps client names to upstream names.

    `aliases` are pairs of a glob and an upstream name; the first match wins. Other names are sent as `default`. If that
    is None, the client's name is sent, and the upstream decides whether such a model exists.
    """

    default: str | None = None
    aliases: tuple[tuple[str, str], ...] = ()

    def upstream_name(self, client_name: str) -> str | None:
        """Return the upstream name, or None to send the client's name."""
        if not self.aliases:  # the common case
            return self.default
        return next((name for glob, name in self.aliases if fnmatchcase(client_name, glob)), self.default)

    @property
    def exact(self) -> dict[str, str]:
        """The client names without a wildcard, each with its upstream name. They hold for calls that pass through, too:
        a glob may be meant for chats, and match the name of another kind of model."""
        return {name: upstream for name, upstream in reversed(self.aliases) if not set("*?[") & set(name)}

    @property
    def upstream_names(self) -> tuple[str, ...]:
        """The names that may be sent upstream, the default first."""
        names = ([] if self.default is None else [self.default]) + [name for _, name in self.aliases]
        return tuple(dict.fromkeys(names))
