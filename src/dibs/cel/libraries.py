"""The libraries to switch on in an Environment, by name. Each is made when asked for."""

from dibs.cel.declarations import Library
from dibs.cel.macros import BINDINGS, BLOCKS, TWO_VARIABLES


def strings(version: int = 3) -> Library:
    """charAt, indexOf, lastIndexOf, join, replace, split, substring, trim, reverse, format, quote, ASCII case.

    Version 2 is that of Kubernetes: without reverse, and with a format that prints numbers in the English way.
    """
    from dibs.cel.library.strings import strings as make

    return make(version)


def lists() -> Library:
    """sum, min, max, indexOf, lastIndexOf, isSorted, slice, flatten, sort, sortBy, distinct, reverse, lists.range."""
    from dibs.cel.library.lists import lists as make

    return make()


def includes() -> Library:
    """includes: whether a list has a value, or a single value is it."""
    from dibs.cel.library.lists import includes_library as make

    return make()


def sets() -> Library:
    """sets.contains, sets.equivalent, sets.intersects."""
    from dibs.cel.library.sets import sets as make

    return make()


def regex() -> Library:
    """find, findAll."""
    from dibs.cel.library.regexes import regexes as make

    return make()


def math() -> Library:
    """math.greatest, math.least, rounding, signs, bits."""
    from dibs.cel.library.mathematics import mathematics as make

    return make()


def optionals() -> Library:
    """optional.of, .none, .ofNonZeroValue, hasValue, value, or, orValue, optMap, optFlatMap, and the `?` syntax."""
    from dibs.cel.library.optionals import optionals as make

    return make()


def encoders() -> Library:
    """base64.encode, base64.decode."""
    from dibs.cel.library.encoders import encoders as make

    return make()


def times() -> Library:
    """duration, timestamp and their parts."""
    from dibs.cel.library.times import times as make

    return make()


def network() -> Library:
    """Kubernetes' ip, cidr and their tests."""
    from dibs.cel.library.network import network as make

    return make()


def urls() -> Library:
    """Kubernetes' url, isURL and the parts of a URL."""
    from dibs.cel.library.urls import urls as make

    return make()


def formats() -> Library:
    """Kubernetes' format.named, format.dns1123Label and the others, and validate."""
    from dibs.cel.library.formats import formats as make

    return make()


def bindings() -> Library:
    """cel.bind."""
    return Library("bindings", macros=BINDINGS)


def blocks() -> Library:
    """cel.block, cel.index, cel.iterVar: what optimisers write."""
    return Library("blocks", macros=BLOCKS)


def two_variables() -> Library:
    """all, exists, existsOne, transformList, transformMap, transformMapEntry with two variables."""
    return Library("two_variables", macros=TWO_VARIABLES)
