"""Names of pages: equal for equal beginnings alone, and different with every key."""

from legato.observability.recording.page_names import PageNames


def test_a_name_stands_for_all_tokens_up_to_the_pages_end() -> None:
    names = PageNames(page_size=2)
    first = names.chain("").extend([1, 2, 3, 4, 5])
    assert len(first) == 2
    assert names.chain("").extend([1, 2, 3, 4]) == first
    assert names.chain("").extend([1, 2, 3, 9])[0] == first[0]
    assert names.chain("").extend([1, 2, 3, 9])[1] != first[1]
    assert names.chain("").extend([3, 4])[0] != first[1]


def test_list_may_be_given_in_parts_and_go_on_in_two_ways() -> None:
    chain = PageNames(page_size=2)
    part = chain.chain("salt")
    known = part.extend([1, 2])
    fork = part.fork()
    assert known + part.extend([3, 4]) == chain.chain("salt").extend([1, 2, 3, 4])
    assert known + fork.extend([5, 6]) == chain.chain("salt").extend([1, 2, 5, 6])


def test_salts_part_what_is_equal() -> None:
    names = PageNames(page_size=1)
    assert (
        len({*names.chain("").extend([7]), *names.chain("a").extend([7]), *names.chain("b").extend([7])}) == 3
    )


def test_every_engine_has_a_key_of_its_own() -> None:
    assert PageNames(page_size=1).chain("").extend([7]) != PageNames(page_size=1).chain("").extend([7])
