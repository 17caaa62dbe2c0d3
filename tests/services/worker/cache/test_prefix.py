"""Names of texts, and the pages found by them."""

from __future__ import annotations

import random

import pytest

from services.worker.cache.keys import Keys
from services.worker.cache.prefix import PrefixCache

SECRET = b"s" * 32


def names(text: list[int], salt: str = "", page_tokens: int = 4, secret: bytes = SECRET) -> list[bytes]:
    keys = Keys(page_tokens, secret)
    found = [keys.root(salt)]
    keys.extend(found, text, len(text) // page_tokens)
    return found[1:]


def filled(cache: PrefixCache, text: list[int]) -> list[int]:
    """Pages computed for a text and let go of."""
    keys = names(text)
    taken = cache.pages.take(len(keys))
    assert taken is not None
    for key, page in zip(keys, taken, strict=True):
        cache.enter(key, page)
    cache.pages.release(taken)
    return taken


def test_a_key_stands_for_all_tokens_from_the_beginning() -> None:
    text = list(range(12))
    assert names(text)[:2] == names([*text[:8], 99, 99, 99, 99])[:2]
    assert names(text)[2] != names([*text[:8], 99, 99, 99, 99])[2]
    # The same page behind another beginning is another text.
    assert names(text)[1:] != names([5, *text[1:]])[1:]


def test_tenants_with_different_salts_have_no_key_in_common() -> None:
    salts = ["", "a", "b", "ab", "\0", "\ud800"]
    keys = [key for salt in salts for key in names([1] * 400, salt)]
    assert len(set(keys)) == len(keys)


def test_keys_are_secret_to_a_process() -> None:
    assert not set(names([1] * 40)) & set(names([1] * 40, secret=b"t" * 32))


def test_keys_are_extended_as_the_text_grows() -> None:
    keys = Keys(4, SECRET)
    grown = [keys.root("")]
    for length in range(0, 40):
        keys.extend(grown, list(range(length)), length // 4)
    assert grown[1:] == names(list(range(39)))


def test_released_pages_are_found_up_to_the_first_unknown_one() -> None:
    cache = PrefixCache(8)
    pages = filled(cache, list(range(12)))
    assert (cache.pages.in_use, cache.pages.cached, cache.pages.free) == (0, 3, 5)
    assert cache.find(names(list(range(16)))) == pages
    assert cache.find(names([*range(8), 0, 0, 0, 0])) == pages[:2]
    assert cache.find(names([9] * 12)) == []


def test_the_least_recently_used_is_evicted_first_and_a_texts_end_before_its_beginning() -> None:
    cache = PrefixCache(6)
    old, new = list(range(12)), list(range(100, 112))
    filled(cache, old)
    filled(cache, new)
    # Used again: the second text is now the one longest unused.
    found = cache.find(names(old))
    cache.pages.share(found)
    cache.pages.release(found)
    taken = cache.pages.take(2)
    assert taken is not None and cache.evictions == 2
    assert len(cache.find(names(old))) == 3 and len(cache.find(names(new))) == 1
    cache.check()


def test_free_pages_are_taken_before_any_is_evicted() -> None:
    cache = PrefixCache(6)
    filled(cache, list(range(12)))
    assert cache.pages.take(3) is not None and cache.evictions == 0
    assert cache.pages.available == 3 and cache.pages.take(4) is None


def test_a_page_that_is_held_is_never_given_away() -> None:
    cache = PrefixCache(4)
    filled(cache, list(range(16)))
    found = cache.find(names(list(range(8))))
    cache.pages.share(found)
    taken = cache.pages.take(2)
    assert taken is not None and not set(taken) & set(found)
    assert cache.pages.take(1) is None
    assert cache.find(names(list(range(8)))) == found


def test_of_two_pages_with_the_same_text_one_can_be_found() -> None:
    cache = PrefixCache(4)
    filled(cache, [1, 2, 3, 4])
    filled(cache, [1, 2, 3, 4])
    assert (cache.pages.cached, cache.pages.free) == (1, 3)
    cache.check()


def test_invalid_pages_cannot_be_found_and_keep_their_holders() -> None:
    cache = PrefixCache(4)
    filled(cache, list(range(8)))
    found = cache.find(names(list(range(8))))
    cache.pages.share(found[:1])
    cache.clear()
    assert cache.find(names(list(range(8)))) == []
    assert (cache.pages.in_use, cache.pages.cached, cache.pages.free) == (1, 0, 3)
    cache.pages.release(found[:1])
    assert cache.pages.free == 4
    cache.check()


def test_switched_off_it_keeps_nothing() -> None:
    cache = PrefixCache(4, enabled=False)
    filled(cache, list(range(8)))
    assert cache.pages.free == 4 and cache.find(names(list(range(8)))) == []


@pytest.mark.parametrize("seed", range(5))
def test_no_page_is_lost_or_found_under_a_wrong_name_at_random(seed: int) -> None:
    chance, cache = random.Random(seed), PrefixCache(20)
    texts = [[chance.randrange(3) for _ in range(24)] for _ in range(6)]
    content: dict[int, bytes] = {}
    held: list[list[int]] = []
    for _ in range(2000):
        if held and chance.random() < 0.5:
            cache.pages.release(held.pop(chance.randrange(len(held))))
        else:
            keys = names(chance.choice(texts)[: chance.randrange(25)])
            found = cache.find(keys)
            assert [content[page] for page in found] == keys[: len(found)]
            cache.pages.share(found)
            taken = cache.pages.take(len(keys) - len(found))
            if taken is None:
                cache.pages.release(found)
            else:
                for key, page in zip(keys[len(found) :], taken, strict=True):
                    content[page] = key
                    if chance.random() < 0.8:
                        cache.enter(key, page)
                held.append(found + taken)
        cache.check()
        assert cache.pages.in_use == len({page for pages in held for page in pages})
        assert cache.pages.in_use + cache.pages.cached + cache.pages.free == 20
    assert cache.evictions > 20
