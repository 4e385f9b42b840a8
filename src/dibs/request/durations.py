"""Lengths of time as people write them: `90s`, `10m`, `1h30m`, `2d`, or a plain number of seconds."""

from __future__ import annotations

import re

from dibs.patterns import lazy_pattern

_PART = lazy_pattern(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 366 * 86400.0


def parse_duration(value: object) -> float:
    """Seconds. Raises ValueError with the reason; there is no default."""
    if isinstance(value, bool) or value is None:
        raise ValueError("not a length of time")
    if isinstance(value, int | float):
        seconds = float(value)
    else:
        text = str(value).strip().lower()
        if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", text, re.ASCII):
            seconds = float(text)
        elif text and "".join(m.group(0) for m in _PART.finditer(text)) == text:
            seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
        else:
            raise ValueError("not a length of time")
    if not 0 <= seconds <= _LONGEST:
        raise ValueError("must be between 0 and 366 days")
    return seconds


def show_duration(seconds: float) -> str:
    """For a person: 4s, 12m, 3h05m, 2d04h."""
    whole = int(max(seconds, 0))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole < 600 else f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
