"""Under which name a model is asked for upstream. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class ModelNames:
    """`aliases`: globs of the names that clients say, and what is sent instead; the first match decides. What none
    matches is sent as `default`; None: as the client said it, and whether there is such a model is the upstream's to
    say."""

    default: str | None = None
    aliases: tuple[tuple[str, str], ...] = ()

    def upstream_name(self, client_name: str) -> str | None:
        """None: the client's own name stays."""
        if not self.aliases:  # as a rule
            return self.default
        return next((name for glob, name in self.aliases if fnmatchcase(client_name, glob)), self.default)

    @property
    def upstream_names(self) -> tuple[str, ...]:
        """Names that may be sent upstream, the default first."""
        names = ([] if self.default is None else [self.default]) + [name for _, name in self.aliases]
        return tuple(dict.fromkeys(names))
