"""Regular expressions: RE2's syntax and answers, in linear time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs import cel
from dibs.cel.regex import Regex, compile_regex


@pytest.mark.parametrize(
    ("pattern", "text", "span"),
    [
        ("b+", "abbb", (1, 4)),
        ("b+?", "abbb", (1, 2)),
        ("a|ab", "ab", (0, 1)),
        ("ab|a", "ab", (0, 2)),
        ("(a|ab)(c|bcd)", "abcd", (0, 4)),
        ("^b", "ab", None),
        ("(?m)^b$", "a\nb\nc", (2, 3)),
        ("b$", "ab", (1, 2)),
        (r"\bfoo\b", "a foo b", (2, 5)),
        (r"\Boo", "foo", (1, 3)),
        ("(?i)ABC", "xaBcx", (1, 4)),
        ("(?i:a)b", "Ab", (0, 2)),
        ("(?s)a.b", "a\nb", (0, 3)),
        ("a.b", "a\nb", None),
        ("[^a-c]+", "abcxyz", (3, 6)),
        ("[]a]+", "x]a", (1, 3)),
        ("[a-]+", "b-a", (1, 3)),
        ("[[:digit:][:^alpha:]]+", "ab12_", (2, 5)),
        (r"[\d\s]+", "ab 12", (2, 5)),
        (r"\pL+", "12äö3", (2, 4)),
        (r"\p{Lu}\P{Lu}", "aBc", (1, 3)),
        (r"\x41\x{1F600}\101", "A😀A", (0, 3)),
        (r"\Qa.b\E+", "a.bbb", (0, 5)),
        ("a{2,3}", "aaaa", (0, 3)),
        ("a{2}", "aaaa", (0, 2)),
        ("a{,3}", "a{,3}", (0, 5)),
        ("(?P<n>a)(?<m>b)", "ab", (0, 2)),
        ("(?U)a+", "aaa", (0, 1)),
        ("x*", "aaa", (0, 0)),
        ("", "aaa", (0, 0)),
        ("$^", "", (0, 0)),
        ("(a*)*", "b", (0, 0)),
        ("(a*)+$", "aab", (3, 3)),
        ("é", "caf\u00e9", (3, 4)),
    ],
)
def test_the_leftmost_match_is_found(pattern: str, text: str, span: tuple[int, int] | None) -> None:
    regex = Regex(pattern)
    assert regex.find(text) == span
    assert regex.search(text) is (span is not None)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?>a)", "a++", "a**", "(?P=n)", "(?#c)", r"\C", r"\Z",
        r"\G", "(", ")", "[", "[b-a]", "[[:nope:]]", "*", "+a", "a{1001}", "a{3,2}", r"\8", r"\p{Nope}", "(?i",
        "(?P<>a)", "\\", "((((a{100}){100}){100}){100})", "(" * 200 + ")" * 200, r"\x{110000}", r"\x4",
    ],
)  # fmt: skip
def test_what_re2_does_not_have_is_refused(pattern: str) -> None:
    with pytest.raises(cel.CelRuntimeError, match="error parsing regexp"):
        Regex(pattern)


def test_all_matches_do_not_overlap() -> None:
    assert Regex("[0-9]+").find_all("a1b22c333") == ["1", "22", "333"]
    assert Regex("[0-9]+").find_all("a1b22c333", 2) == ["1", "22"]
    assert Regex("[0-9]+").find_all("a1b22c333", 0) == []
    assert Regex("a*").find_all("baac") == ["", "aa", ""]
    assert Regex("").find_all("ab") == ["", "", ""]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(a|a)*b", "(.*a){12}b", "(a?){50}a{50}b", "([a-z]+)*1"])
def test_patterns_that_ruin_a_backtracking_matcher_are_answered(pattern: str) -> None:
    text = "a" * 2_000 + "!"
    assert Regex(pattern).search(text) is False
    assert Regex(pattern).find(text) is None


def test_the_cache_does_not_grow_without_end() -> None:
    from dibs.cel import regex

    for number in range(1_000):
        compile_regex(f"a{number}")
    assert len(regex._cache) <= 256


_ATOMS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\d", "^", "$", r"\b", "(?:)", "é"])


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?", "+?", "??"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    )


# An empty loop body is where Python and RE2 legitimately differ, so bodies of loops are kept to one character.
_LOOPLESS = st.recursive(_ATOMS, lambda inner: st.lists(inner, min_size=1, max_size=3).map("".join), max_leaves=4)
_PATTERNS = st.one_of(
    st.recursive(st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"[\w]", r"\d", "é"]), _combined, max_leaves=6),
    _LOOPLESS,
)


@given(_PATTERNS, st.text("abc1é \n", max_size=12))
def test_the_answers_are_those_of_pythons_matcher_where_both_have_the_syntax(pattern: str, text: str) -> None:
    # In Python `$` also matches before a last line feed; RE2's is \Z.
    found = re.search(pattern.replace("$", r"\Z"), text, re.ASCII)
    regex = Regex(pattern)
    assert regex.search(text) is (found is not None)
    assert regex.search(text) is (found is not None), "the second answer comes from remembered states"
    span = regex.find(text)
    assert (span is None) == (found is None)
    if found is not None and span is not None and "(?:(?:" not in pattern:
        assert span == found.span()
