"""Log lines of a gateway: text for people, JSON for machines. On the standard library, because a line is one encode.

A record may carry `extra={"data": {...}}`; those fields stand beside the message. No caller passes headers, bodies or
query strings here, so no secret can be in a line; a test looks for them.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec

from dibs.errors import printable

log = logging.getLogger("dibs.gateway")


def _data(record: logging.LogRecord) -> dict[str, Any]:
    data: dict[str, Any] = getattr(record, "data", {})
    return data


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_data(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextLines(logging.Formatter):
    """Time, level, message, and the fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        fields = "".join(f" {key}={value}" for key, value in _data(record).items())
        text = printable(f"{stamp} {record.levelname.lower():<7} {record.getMessage()}{fields}", keep="\n")
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def set_up(form: str, level: str) -> None:
    """Send the gateway's and the server's lines to stderr in one form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    for name in ("dibs", "uvicorn", "websockets", "litestar"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        # The server's own remarks ("Started server process") say nothing that ours do not.
        logger.setLevel(level.upper() if name == "dibs" else max(logging.WARNING, logging.getLevelName(level.upper())))
