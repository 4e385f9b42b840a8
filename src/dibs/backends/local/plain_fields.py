"""The plain fields that `local` delivers. See `dibs.backends.plain_fields`."""

from __future__ import annotations

import os

from dibs.backends.plain_fields import PlainField, shared_memory
from dibs.errors import Problem

_PAGE = os.sysconf("SC_PAGESIZE")


def _whole_pages(amount: int) -> int:
    return -(-amount // _PAGE) * _PAGE


def _some(amount: int) -> Problem | None:
    if amount > 0:
        return None
    return Problem("INVALID_REQUEST", "shm_size", str(amount), "shared memory must be more than nothing")


FIELDS = (PlainField("shm", "the size of /dev/shm, read back", shared_memory, _whole_pages, check=_some),)
