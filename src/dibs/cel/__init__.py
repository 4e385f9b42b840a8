"""The Common Expression Language (CEL): parsed, statically checked, bounded in cost, compiled to Python functions.

It stands alone: nothing of dibs and nothing third-party is imported.

    >>> from dibs import cel
    >>> environment = cel.Environment({"name": cel.STRING, "ports": cel.list_of(cel.INT)})
    >>> program = environment.compile('name.startsWith("web") && ports.all(p, p < 1024)')
    >>> str(program.type)
    'bool'
    >>> program.evaluate({"name": "web-1", "ports": [80, 443]})
    True

Names and types are checked when compiling; the error says where:

    >>> environment.compile("name + 1")
    Traceback (most recent call last):
    dibs.cel.errors.CelTypeError: ERROR: <input>:1:6: found no matching overload for '_+_' applied to '(string, int)'
     | name + 1
     | .....^

Functions beyond the standard ones come in libraries (``libraries.strings()``, ``libraries.optionals()``, ...), and own
ones are declared with their types, a Python function and, if it is not constant, a cost:

    >>> shout = cel.Function("shout", cel.method([cel.STRING], cel.STRING, str.upper, cost=cel.linear(0.1)))
    >>> louder = cel.Environment({"name": cel.STRING}, [cel.Library("loud", [shout])])
    >>> louder.compile("name.shout() == 'WEB'").evaluate({"name": "web"})
    True

``opaque`` declares a type that only functions look into, ``object_type`` one with fields, and ``DefaultMap`` is a map
whose missing keys have a value. ``dibs.cel.kubernetes`` has Kubernetes' quantities and versions, ``dibs.cel.dra`` the
environment of DRA device selectors.

Input may be hostile. Text is limited in length and depth, regular expressions run in linear time, and an evaluation
has a budget (``cost_limit``, ``step_limit``, ``cancelled``). Where the static bound ``Program.cost`` is below the
limit, the generated code keeps no account. Every failure is a ``CelError``; the tree is drawn in ``errors``.

What is not there: protobuf messages and enums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.cel import libraries
    from dibs.cel.declarations import Cost, Function, Library, Overload, linear, method
    from dibs.cel.environment import Environment, Program
    from dibs.cel.errors import (
        CelCancelledError,
        CelCompileError,
        CelCostError,
        CelError,
        CelRuntimeError,
        CelSyntaxError,
        CelTypeError,
    )
    from dibs.cel.types import (
        ANY,
        BOOL,
        BYTES,
        DOUBLE,
        DYN,
        INT,
        NULL,
        STRING,
        UINT,
        Type,
        list_of,
        map_of,
        object_type,
        opaque,
        optional_of,
        parameter,
    )
    from dibs.cel.values import NONE, BoolKey, DefaultMap, Optional, TypeValue, Uint, equals, to_python

# Loaded on first use: code that needs only the errors or quantities does not pay for the compiler.
_HOME = {
    name: module
    for module, names in {
        "declarations": "Cost Function Library Overload linear method",
        "environment": "Environment Program",
        "errors": "CelCancelledError CelCompileError CelCostError CelError CelRuntimeError CelSyntaxError CelTypeError",
        "types": (
            "ANY BOOL BYTES DOUBLE DYN INT NULL STRING UINT "
            "Type list_of map_of object_type opaque optional_of parameter"
        ),
        "values": "NONE BoolKey DefaultMap Optional TypeValue Uint equals to_python",
    }.items()
    for name in names.split()
}

__all__ = [
    "ANY",
    "BOOL",
    "BYTES",
    "DOUBLE",
    "DYN",
    "INT",
    "NONE",
    "NULL",
    "STRING",
    "UINT",
    "BoolKey",
    "CelCancelledError",
    "CelCompileError",
    "CelCostError",
    "CelError",
    "CelRuntimeError",
    "CelSyntaxError",
    "CelTypeError",
    "Cost",
    "DefaultMap",
    "Environment",
    "Function",
    "Library",
    "Optional",
    "Overload",
    "Program",
    "Type",
    "TypeValue",
    "Uint",
    "equals",
    "libraries",
    "linear",
    "list_of",
    "map_of",
    "method",
    "object_type",
    "opaque",
    "optional_of",
    "parameter",
    "to_python",
]


if not TYPE_CHECKING:  # else a checker would believe every name

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name == "libraries":
            return import_module(f"{__name__}.libraries")
        module = _HOME.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{module}"), name)
