"""What a key looks like, and what becomes of a typo in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.key_format import ALPHABET, PATTERN, digest_of, is_well_formed, new_key

CHARACTERS = st.sampled_from(ALPHABET)


def test_a_key_is_recognised_by_its_form() -> None:
    keys = {new_key() for _ in range(200)}
    assert len(keys) == 200
    for key in keys:
        assert is_well_formed(key)
        found = PATTERN.search(f'API_KEY="{key}"\n')
        assert found is not None
        assert found[0] == key


@given(place=st.integers(3, 44), other=CHARACTERS)
def test_one_wrong_character_is_found_without_asking_anybody(place: int, other: str) -> None:
    key = new_key()
    wrong = key[:place] + other + key[place + 1 :]
    assert is_well_formed(wrong) is (wrong == key)


@given(text=st.text(max_size=60))
def test_what_is_no_key_is_none(text: str) -> None:
    assert not is_well_formed(text)
    assert not is_well_formed("nh_" + text)


def test_two_neighbours_that_changed_places_are_found() -> None:
    key = next(key for key in iter(new_key, None) if key[10] != key[11])
    assert not is_well_formed(key[:10] + key[11] + key[10] + key[12:])
    assert not is_well_formed(key + "\n")
    assert not is_well_formed(key[:-1])


def test_the_digest_is_that_of_the_configuration() -> None:
    """`printf %s sk-test | sha256sum`."""
    assert digest_of("sk-test") == "f3abf2a6cc4f00987743db5f544ba345b4899ae31f326d8ee9c4816de153c9e0"
