"""The query of a list, the pages of it, and the times on the wire."""

from __future__ import annotations

import datetime as dt
from urllib.parse import parse_qsl, quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opensandbox.adapters.sandboxes_adapter import encode_metadata_filter

from dibs.errors import InvalidRequest
from dibs.gateway.opensandbox import expiry, listing, states, types


def test_states_are_an_or_however_they_are_written() -> None:
    query = listing.read_query([("state", "running"), ("state", "PENDING")])
    assert query.states is not None
    assert set(query.states) == {"running", "queued", "creating"}
    assert listing.read_query([]).states is None
    assert listing.read_query([("state", "Allocated")]).states == ()


def test_every_state_of_ours_has_one_of_theirs() -> None:
    from dibs.sandbox import SandboxState

    assert set(states.OF_OURS) == set(SandboxState)
    assert set(states.OF_OURS.values()) <= set(types.STATES)


@given(st.dictionaries(st.text(min_size=1, max_size=6), st.text(max_size=6), max_size=3))
def test_the_metadata_filter_of_the_sdk_is_read_back_whole(metadata: dict[str, str]) -> None:
    on_the_wire = quote(encode_metadata_filter(metadata))  # httpx encodes once more what the SDK has encoded
    pairs = parse_qsl(f"metadata={on_the_wire}", keep_blank_values=True) if metadata else []
    assert listing.read_query(pairs).metadata == metadata


def test_a_filter_of_the_npm_sdk_which_encodes_once_only_is_taken_by_its_letters() -> None:
    assert listing.read_query([("metadata", "a=b+c d&e=1=2&f=100%")]).metadata == {
        "a": "b+c d",
        "e": "1=2",
        "f": "100%",
    }


@pytest.mark.parametrize(
    "pair",
    [("page", "0"), ("page", "x"), ("page", "-1"), ("pageSize", "201"), ("pageSize", "0"), ("metadata", "novalue"),
     ("metadata", "=v"),
     ("metadata", "a=1&" * 60),
     ("metadata", "a=1&a=2"), ("limit", "3"), ("page", "٣")],
)  # fmt: skip
def test_a_wrong_parameter_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        listing.read_query([pair])
    assert caught.value.problems[0].field == pair[0]


@given(st.integers(1, 50), st.integers(1, 200), st.integers(0, 5000))
def test_pages_add_up(page: int, size: int, total: int) -> None:
    found = types.paged(page, size, total)
    assert found.total_pages * size >= total > (found.total_pages - 1) * size or total == 0
    assert found.has_next_page == (page * size < total)


@given(st.floats(1e9, 4e9))
def test_times_keep_their_milliseconds(seconds: float) -> None:
    text = types.moment(seconds)
    assert text.endswith("Z")
    assert abs(dt.datetime.fromisoformat(text).timestamp() - seconds) <= 0.00051


def renewal(text: str) -> float:
    return expiry.read_renewal(types.encode({"expiresAt": text}), now=1_900_000_000.0)


@pytest.mark.parametrize(
    "text",
    ["2031-01-31T12:00:00Z", "2031-01-31T12:00:00.123456789Z", "2031-01-31t13:00:00+01:00", "2031-01-31 12:00:00z"],
)
def test_a_time_of_rfc_3339_is_taken(text: str) -> None:
    assert int(renewal(text)) == 1_927_627_200


@pytest.mark.parametrize(
    "text",
    ["2031-01-31", "2031-01-31T12:00:00", "soon", "", "2031-02-31T12:00:00Z", "2031-W05-5T12:00:00Z",
     "1999-01-01T00:00:00Z", "2400-01-01T00:00:00Z", "2031-01-31T12:00Z"],
)  # fmt: skip
def test_any_other_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        renewal(text)
    assert caught.value.code == "EXPIRY_INVALID"


def test_no_optional_field_is_ever_null() -> None:
    shown = types.Sandbox("sb-1", types.Status("Running"), "2031-01-31T12:00:00Z", [])
    assert types.encode(shown) == (
        b'{"id":"sb-1","status":{"state":"Running"},"createdAt":"2031-01-31T12:00:00Z","entrypoint":[]}'
    )
