"""CEL: evaluating and compiling device selectors, against cel-expr-python (Google's C++ engine), in turns.

Run alone with ``python -m bench.cel``, or by name from ``python -m bench``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from bench.golang import ask, reference
from bench.measure import title
from dibs.cel.dra import DeviceView, compile_selector
from dibs.cel.kubernetes import Quantity

DRIVER = "gpu.example.com"
SELECTOR = (
    f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].model == "H100" && '
    f'device.capacity["{DRIVER}"].memory.compareTo(quantity("10Gi")) >= 0'
)
DRIVER_ONLY = f'device.driver == "{DRIVER}"'
LOOP = f'["A100", "H100", "H200"].exists(m, m == device.attributes["{DRIVER}"].model)'
PATTERN = f'device.attributes["{DRIVER}"].model.matches("^[AH][0-9]+$")'
MISSING = f'device.attributes["{DRIVER}"].nothing == 1 || device.driver == "{DRIVER}"'

_Call = Callable[[], object]


def _attributes() -> dict[str, Any]:
    return {"model": "H100", **{f"attribute{number}": f"value-{number}" for number in range(11)}}


def _view() -> DeviceView:
    return DeviceView(DRIVER, _attributes(), {"memory": "80Gi"})


def _oracle() -> Any:
    """An environment of the other engine with the same names, or None. A quantity is carried as an int there."""
    try:
        from cel_expr_python import cel
    except ImportError as error:
        print(f"  cel-expr-python is not there ({error}): its columns are left out")
        return None
    kinds = cel.Type
    functions = [
        cel.FunctionDecl(
            "quantity",
            [
                cel.Overload(
                    "quantity_string",
                    return_type=kinds.INT,
                    parameters=[kinds.STRING],
                    is_member=False,
                    impl=lambda text: Quantity.parse(text).as_integer(),
                )
            ],
        ),
        cel.FunctionDecl(
            "compareTo",
            [
                cel.Overload(
                    "int_compare_to",
                    return_type=kinds.INT,
                    parameters=[kinds.INT, kinds.INT],
                    is_member=True,
                    impl=lambda one, other: (one > other) - (one < other),
                )
            ],
        ),
    ]
    return cel.NewEnv(variables={"device": kinds.Map(kinds.STRING, kinds.DYN)}, functions=functions)


def _oracle_data() -> dict[str, Any]:
    return {
        "device": {
            "driver": DRIVER,
            "attributes": {DRIVER: _attributes()},
            "capacity": {DRIVER: {"memory": Quantity.parse("80Gi").as_integer()}},
        }
    }


def _microseconds(calls: dict[str, _Call], rounds: int = 15, seconds: float = 0.02) -> dict[str, float]:
    """The median time of each call, all of them measured in turns."""
    counts: dict[str, int] = {}
    for name, call in calls.items():
        call()
        count, taken = 1, 0.0
        while taken < seconds:
            start = time.perf_counter()
            for _ in range(count):
                call()
            taken = time.perf_counter() - start
            counts[name], count = count, count * 2
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            times[name].append((time.perf_counter() - start) / counts[name] * 1e6)
    return {name: statistics.median(taken) for name, taken in times.items()}


def _evaluation() -> None:
    title("CEL: one selector on a device with 12 attributes, µs")
    print(f"  {'':34}{'dibs':>9}{'cel-expr-python':>17}{'ratio':>8}{'Kubernetes (Go)':>18}{'ratio':>8}")
    environment = _oracle()
    command = reference()
    if isinstance(command, str):
        print(f"  Kubernetes' DeviceMatches is not measured: {command}")
    view = _view()
    for name, text in (
        ("driver, model and memory", SELECTOR),
        ("driver only", DRIVER_ONLY),
        ("a loop over three models", LOOP),
        ("a regular expression", PATTERN),
        ("an absorbed error", MISSING),
    ):
        matches = compile_selector(text).matches
        assert matches(view) is True
        calls: dict[str, _Call] = {"dibs": lambda matches=matches: matches(view)}  # type: ignore[misc]
        if environment is not None:
            program = environment.compile(text)
            activation = environment.Activation(data=_oracle_data())
            assert program.eval(activation).value() is True
            calls["other"] = lambda program=program, activation=activation: program.eval(activation)  # type: ignore[misc]
        times = _microseconds(calls)
        other = times.get("other")
        ratio = f"{times['dibs'] / other:7.2f}×" if other is not None else "-"
        goal = "  goals ≤ 0.50×" if text is SELECTOR else ""
        there = ask(command, _described(text), 300) if isinstance(command, list) else None
        beside = f"{there:18.2f}{times['dibs'] / there:7.2f}×" if there is not None else f"{'-':>18}{'-':>8}"
        print(f"  {name:34}{times['dibs']:9.2f}{other or float('nan'):17.2f}{ratio:>8}{beside}{goal}")


def _described(text: str) -> dict[str, Any]:
    """The same device as a slice, for the reference."""
    attributes = {name: {"string": value} for name, value in _attributes().items()}
    device = {"name": "gpu-0", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}
    return {"slices": [{"spec": {"driver": DRIVER, "devices": [device]}}], "expression": text}


def _preparation() -> None:
    data = _attributes()
    times = _microseconds({"view": lambda: DeviceView(DRIVER, data, {"memory": "80Gi"})})
    print(f"preparing a device with 12 attributes: {times['view']:.1f} µs")


def _compilation() -> None:
    print("compiling, µs; growth with the size of the expression")
    print(f"  {'':34}{'dibs':>9}{'cel-expr-python':>17}{'ratio':>8}{'µs/byte':>10}")
    environment = _oracle()
    for terms in (1, 4, 16, 48):
        text = " || ".join(f"({SELECTOR})".replace("H100", f"H{number}") for number in range(terms))
        calls: dict[str, _Call] = {"dibs": lambda text=text: compile_selector(text)}  # type: ignore[misc]
        if environment is not None:
            calls["other"] = lambda text=text: environment.compile(text)  # type: ignore[misc]
        times = _microseconds(calls, rounds=7)
        other = times.get("other")
        ratio = f"{times['dibs'] / other:7.2f}×" if other is not None else "-"
        name = f"{terms} selectors, {len(text)} bytes"
        print(
            f"  {name:34}{times['dibs']:9.0f}{other or float('nan'):17.0f}{ratio:>8}{times['dibs'] / len(text):10.2f}"
        )


def cel() -> None:
    """All of it."""
    _evaluation()
    _preparation()
    _compilation()


if __name__ == "__main__":
    cel()
