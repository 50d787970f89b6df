"""Under which name a model is asked for upstream. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class ModelNames:
    """`mapped`: globs of the names that clients say, and what is sent instead; the first match decides. What none
    matches is sent as `default`; None: as the client said it, and whether there is such a model is the upstream's to
    say."""

    default: str | None = None
    mapped: tuple[tuple[str, str], ...] = ()

    def sent_for(self, asked: str) -> str | None:
        """None: the client's own name stays."""
        if not self.mapped:  # as a rule
            return self.default
        return next((name for glob, name in self.mapped if fnmatchcase(asked, glob)), self.default)

    @property
    def known(self) -> tuple[str, ...]:
        """Names that may be sent upstream, the default first."""
        names = ([] if self.default is None else [self.default]) + [name for _, name in self.mapped]
        return tuple(dict.fromkeys(names))
