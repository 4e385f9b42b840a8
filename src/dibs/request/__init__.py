"""The request: what is asked for, in every spelling, as one canonical form.

Lenient in, canonical out. `parse_request` takes a mapping (from YAML, JSON, the command line or Python) and gives a
`Request`, or raises InvalidRequest with all problems at once. Pure: no device is looked at here.
"""

from dibs.request.model import ALL, GpuSelector, MemoryRange, Request
from dibs.request.parse import parse_request
from dibs.request.spec import SandboxSpec, parse_spec

__all__ = ["ALL", "GpuSelector", "MemoryRange", "Request", "SandboxSpec", "parse_request", "parse_spec"]
