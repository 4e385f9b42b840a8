"""The suite of `dibs.testing`, with its fixtures."""

from dibs.testing.plugin import *  # noqa: F403
