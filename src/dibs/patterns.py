"""Regular expressions that are compiled when they are first needed.

For modules that every command loads: compiling the patterns of all spellings takes longer than reading a request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING


class _Lazy:
    """Stands for a compiled pattern, and becomes one at the first look at any of its methods."""

    def __init__(self, text: str, flags: int) -> None:
        self._said = text, flags

    def __getattr__(self, name: str) -> object:
        found = getattr(re.compile(*self._said), name)
        setattr(self, name, found)  # asked once
        return found


if TYPE_CHECKING:
    lazy_pattern = re.compile
else:

    def lazy_pattern(text: str, flags: int = 0) -> _Lazy:
        return _Lazy(text, int(flags))
