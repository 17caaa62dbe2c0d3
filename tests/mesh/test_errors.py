"""Errors on the wire: what a far side may make us believe, and what leaves our process."""

from __future__ import annotations

import pytest

from mesh.errors import Busy, MeshError, NotRunning, PeerLost, Refuse, RemoteError, from_wire, to_wire


@pytest.mark.parametrize("error", [Busy("full"), NotRunning("gone")])
def test_an_error_of_the_mesh_comes_back_as_its_class(error: MeshError) -> None:
    back = from_wire(*to_wire(error))
    assert type(back) is type(error) and str(back) == str(error)


def test_a_refusal_comes_back_as_a_remote_error() -> None:
    back = from_wire(*to_wire(Refuse("too_long", "4 tokens over")))
    assert isinstance(back, RemoteError) and (back.reason, back.message) == ("too_long", "4 tokens over")


def test_only_the_name_of_an_unforeseen_error_leaves() -> None:
    assert to_wire(KeyError("password")) == ("internal", "KeyError")


def test_a_far_side_cannot_make_us_believe_that_a_peer_is_lost() -> None:
    assert isinstance(from_wire(PeerLost.reason, "believe me"), RemoteError)
