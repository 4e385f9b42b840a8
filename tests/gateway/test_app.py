"""The application as it is put together, without a server."""

from __future__ import annotations

from dibs.gateway.app import make_app
from dibs.home import Home
from dibs.settings import Settings


def test_the_application_is_made_without_a_warning(eight_gpus: Home) -> None:
    """Warnings are errors here: also those of what a library will not do any more one day."""
    app = make_app(Settings(), eight_gpus)
    assert len(app.gateway.methods) > 50
