"""The short forms of a GPU request: what is understood, what is refused, and that it prints back."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import InvalidRequest
from dibs.quantity import Quantity
from dibs.request import ALL, GpuSelector, Request, parse_request
from dibs.request.gpu import model_pattern


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        (True, "1"),
        (2, "2"),
        (2.0, "2"),
        ("2", "2"),
        (" 2 ", "2"),
        ("all", "all"),
        ("ALL", "all"),
        ("H100", "H100:1"),
        ("H100:2", "H100:2"),
        ("2:H100", "H100:2"),
        ("nvidia", "nvidia:1"),
        ("NVIDIA:2", "nvidia:2"),
        ("nvidia:H100,A100:80GB..:2", "nvidia:H100,A100:80GB..:2"),
        ("nvidia:H100, A100 : 80gb.. : 2", "nvidia:H100,A100:80GB..:2"),
        ("80Gi..", "80Gi..:1"),
        ("..24GB:4", "..24GB:4"),
        ("40GB..80GB", "40GB..80GB:1"),
        ("80GB", "80GB:1"),
        ("RTX 4090", "RTX 4090:1"),
        ("A100-80GB:8", "A100-80GB:8"),
        ({"model": "H100", "count": 2}, "H100:2"),
        (
            {"model": ["H100", "A100"], "memory": "80GB..", "vendor": "nvidia", "count": "all"},
            "nvidia:H100,A100:80GB..:all",
        ),
    ],
)
def test_a_spelling_becomes_its_canonical_form_and_reads_back(spelling: Any, canonical: str) -> None:
    request = parse_request({"gpu": spelling})
    assert [str(selector) for selector in request.gpus] == [canonical]
    assert parse_request({"gpu": canonical}) == request


@pytest.mark.parametrize(
    ("spelling", "code"),
    [
        ("0", "GPU_COUNT_INVALID"),
        (0, "GPU_COUNT_INVALID"),
        ("-1", "GPU_COUNT_INVALID"),
        ("1.5", "GPU_COUNT_INVALID"),
        (1.5, "GPU_COUNT_INVALID"),
        (float("nan"), "GPU_COUNT_INVALID"),
        (float("inf"), "GPU_COUNT_INVALID"),
        ("two", "GPU_COUNT_INVALID"),
        ("99999", "GPU_COUNT_INVALID"),
        ("9" * 5000, "GPU_COUNT_INVALID"),
        ("٣", "GPU_MODEL_INVALID"),
        ("", "GPU_INVALID"),
        ("  ", "GPU_INVALID"),
        ("H100\n:2", "GPU_INVALID"),
        (None, "GPU_INVALID"),
        (False, "GPU_INVALID"),
        ([], "GPU_INVALID"),
        (object(), "GPU_INVALID"),
        ("1..8", "GPU_SYNTAX"),
        ("H100::2", "GPU_SYNTAX"),
        ("all:2", "GPU_SYNTAX"),
        ("H100:A100", "GPU_SYNTAX"),
        ("80GB..40GB", "GPU_MEMORY_INVALID"),
        ("0GB", "GPU_MEMORY_INVALID"),
        ("H100/2", "GPU_MODEL_INVALID"),
        ("H100,h100", "GPU_MODEL_INVALID"),
        ("x" * 100, "GPU_MODEL_INVALID"),
        ({"modl": "H100"}, "UNKNOWN_FIELD"),
        ({"vendor": "acme"}, "GPU_VENDOR_UNKNOWN"),
        ({"count": "H100:2"}, "GPU_COUNT_INVALID"),
        ({"model": 5}, "GPU_MODEL_INVALID"),
        ({"memory": "lots"}, "GPU_MEMORY_INVALID"),
    ],
)
def test_what_is_no_request_is_refused_with_a_code_and_a_remedy(spelling: Any, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request({"gpu": spelling})
    problem = caught.value.problems[0]
    assert problem.code == code
    assert problem.field.startswith("gpu")
    assert problem.remedy


def test_zero_is_refused_with_the_hint_to_leave_it_out() -> None:
    with pytest.raises(InvalidRequest, match="leave it out to get no GPU"):
        parse_request({"gpu": 0})


def test_several_selectors_stay_apart() -> None:
    request = parse_request({"gpu": ["H100:2", "L4"]})
    assert request.short() == {"gpu": ["H100:2", "L4:1"]}


@pytest.mark.parametrize(
    ("text", "memory", "fits"),
    [
        ("80GB..", 81559 << 20, True),  # an H100 shows 79.65Gi
        ("80GB..", 81920 << 20, True),  # an A100
        ("80GB", 81559 << 20, True),
        ("80GB", 81920 << 20, True),
        ("80GB", 143771 << 20, False),  # an H200
        ("80Gi..", 81559 << 20, False),
        ("80Gi..", 81920 << 20, True),
        ("16GB..", 15360 << 20, True),  # a T4 with ECC on
        ("24GB", 23034 << 20, True),  # an L4
        ("..24GB", 24564 << 20, True),  # an RTX 4090
        ("24GB..", 16376 << 20, False),
        ("16GB..", 15109 << 20, True),  # a T4 as its driver shows it: 3 % below its name are allowed
        ("100GB..", 97 * 10**9, True),
        ("100GB..", 97 * 10**9 - 1, False),
        ("100GB", 97 * 10**9 - 1, False),
        ("100GB", 100 * 2**30, True),
        ("100GB", 100 * 2**30 + 1, False),
        ("100Gi..", 100 * 2**30, True),
        ("100Gi..", 100 * 2**30 - 1, False),  # who writes Gi means it
    ],
)
def test_gb_is_the_size_on_the_box_and_gi_is_exact(text: str, memory: int, fits: bool) -> None:
    wanted = parse_request({"gpu": text}).gpus[0].memory
    assert wanted is not None
    assert ((wanted.low or 0) <= memory <= (wanted.high or 1 << 60)) is fits


@pytest.mark.parametrize(
    ("model", "product", "fits"),
    [
        ("H100", "nvidia h100 80gb hbm3", True),
        ("A100", "nvidia a100-sxm4-80gb", True),
        ("A100", "nvidia rtx a1000", False),
        ("A100-80GB", "nvidia a100-sxm4-80gb", True),
        ("A100-80GB", "nvidia a100-sxm4-40gb", False),
        ("RTX4090", "nvidia geforce rtx 4090", True),
        ("4090", "nvidia geforce rtx 4090", True),
        ("H100", "nvidia gh1000", False),
        ("MI300X", "amd instinct mi300x", True),
    ],
)
def test_a_model_is_matched_by_whole_words(model: str, product: str, fits: bool) -> None:
    import re

    assert bool(re.search(model_pattern(model), product)) is fits


MODELS = st.text(string.ascii_uppercase, min_size=1, max_size=4).map(lambda word: word + "100")
SIZES = st.integers(1, 999).flatmap(lambda n: st.sampled_from([f"{n}GB", f"{n}Gi", f"{n}MB", f"{n}Ti"]))
SELECTORS = st.builds(
    lambda count, vendor, models, size, shape: ":".join(
        part
        for part in (vendor, ",".join(models), {0: "", 1: size, 2: f"{size}..", 3: f"..{size}"}[shape], str(count))
        if part
    ),
    st.one_of(st.integers(1, 999), st.just(ALL)),
    st.sampled_from(["", "nvidia", "amd", "intel"]),
    st.lists(MODELS, max_size=3, unique=True),
    SIZES,
    st.integers(0, 3),
)


@given(SELECTORS)
def test_every_valid_selector_prints_back_to_itself(text: str) -> None:
    selector = parse_request({"gpu": text}).gpus[0]
    assert parse_request({"gpu": str(selector)}).gpus[0] == selector


@given(st.text(max_size=40) | st.integers() | st.floats() | st.none() | st.booleans() | st.binary())
def test_any_text_is_a_selector_or_a_refusal_and_never_a_crash(value: Any) -> None:
    try:
        request = parse_request({"gpu": value})
    except InvalidRequest as error:
        assert all(problem.reason and problem.code for problem in error.problems)  # noqa: PT017
    else:
        selector = request.gpus[0]
        assert selector.count == ALL or int(selector.count) >= 1


@given(
    st.builds(
        Request,
        gpus=st.lists(st.builds(GpuSelector, st.integers(1, 64)), max_size=3).map(tuple),
        cpu_millis=st.none() | st.integers(1, 10**6),
        memory_bytes=st.none() | st.integers(1 << 20, 1 << 45),
        pids=st.none() | st.integers(1, 1 << 20),
        allow_busy=st.booleans(),
    )
)
def test_every_request_prints_back_to_itself(request: Request) -> None:
    assert parse_request(request.short()) == request


@given(st.integers(-(10**12), 10**15), st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi"]))
def test_a_quantity_prints_back_to_the_same_amount(number: int, suffix: str) -> None:
    try:
        quantity = Quantity.parse(f"{number}{suffix}")
    except ValueError:
        return  # beyond what a quantity can be
    assert Quantity.parse(str(quantity)) == quantity
