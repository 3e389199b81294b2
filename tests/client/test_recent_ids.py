from __future__ import annotations

from mqinfer.recent_ids import RecentIds


def test_the_oldest_are_forgotten() -> None:
    """Adding reports what is new, and renews what is not; what is discarded is gone."""
    ids = RecentIds(2)
    assert [ids.add(each) for each in "aba"] == [True, True, False]
    assert ids.add("c")
    assert [each in ids for each in "abc"] == [True, False, True]
    assert (ids.discard("a"), ids.discard("a"), "a" in ids) == (True, False, False)
