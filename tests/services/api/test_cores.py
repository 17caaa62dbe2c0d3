"""The setting `cores`."""

from __future__ import annotations

import pytest

from services.api.cores import cores_of


def test_cores_are_read_for_each_role() -> None:
    setting = "worker=0-3, 6; streamer=7;tokenizer = 4-5"
    assert cores_of("worker", setting) == {0, 1, 2, 3, 6}
    assert cores_of("streamer", setting) == {7}
    assert cores_of("tokenizer", setting) == {4, 5}
    assert cores_of("proposer", setting) == set() == cores_of("worker", "")


@pytest.mark.parametrize("setting", ["worker", "worker=", "worker=a-b", "worker=1-", "worker=-1", "worker=0;x=1,,2"])
def test_what_names_no_cores_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="cores"):
        cores_of("worker", setting)
