"""The catalogue: models are found however people write them, and a near miss is offered."""

from __future__ import annotations

import pytest

from dibs.devices import catalogue


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("H100", "H100"),
        ("h100", "H100"),
        ("rtx 4090", "RTX-4090"),
        ("4090", "RTX-4090"),
        ("RTX4090", "RTX-4090"),
        ("a100_80gb", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("Tesla T4", "T4"),
        ("nvidia H200", "H200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA L4", "L4"),
    ],
)
def test_a_model_is_found_by_each_of_its_spellings(written: str, key: str) -> None:
    model = catalogue.find(written)
    assert model is not None
    assert model.key == key


@pytest.mark.parametrize("written", ["", "H", "A100", "H1000", "V100", "L40"])
def test_a_name_that_fits_no_single_model_finds_none(written: str) -> None:
    assert catalogue.find(written) is None


def test_close_matches_hold_the_models_that_were_meant() -> None:
    assert catalogue.close_matches("A100")[:2] == ("A100-40GB", "A100-80GB")
    assert "H100" in catalogue.close_matches("H10O")
    assert catalogue.close_matches("") == ()
    assert catalogue.close_matches("qqqqqqqq") == ()


def test_an_unknown_product_keeps_its_own_name() -> None:
    assert catalogue.short_name("NVIDIA H100 80GB HBM3") == "H100"
    assert catalogue.short_name("NVIDIA X900") == "NVIDIA X900"


def test_keys_are_unique_and_values_are_plausible() -> None:
    keys = [model.key for model in catalogue.MODELS]
    assert len(keys) == len(set(keys)) >= 25
    for model in catalogue.MODELS:
        assert 0.85 < model.memory / (model.nominal_gb * 1e9) < 1.1, model.key
        assert bool(model.compute) == (model.vendor == "nvidia")
        assert len(model.product.encode()) <= 64  # the limit of a string attribute in DRA
