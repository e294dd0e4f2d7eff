"""A client who asks for much does not slow one who asks for little, in modelled time and step by step."""

from collections.abc import Callable
from statistics import mean

import pytest

from legato.core.request import Request
from legato.scheduler.scheduler import Scheduler
from tests.scheduler.driver import Driver, expected_output, make_request, make_scheduler
from tests.scheduler.timed import Client, Market


def serve(*others: Client, is_fair: bool = True, until: float = 3000.0) -> tuple[Client, Market]:
    """A light client who asks 30 tokens for 32 now and then, beside others, on default settings."""
    light = Client("light", num_open=1, prompt_len=30, max_tokens=32, pause=40.0, starts_at=400.0)
    scheduler = make_scheduler(
        max_num_seqs=64,
        max_step_tokens=512,
        mixed_prefill_tokens=128,
        num_pages=4096,
        page_size=16,
        is_fair=is_fair,
    )
    market = Market(scheduler, [light, *others])
    market.run(until)
    return light, market


def greedy_crowd() -> Client:
    return Client("greedy", num_open=200, prompt_len=100, max_tokens=200)


def flood_of_long_prompts() -> Client:
    return Client("flood", num_open=20, prompt_len=2000, max_tokens=50)


@pytest.mark.parametrize("greedy", [greedy_crowd, flood_of_long_prompts])
def test_light_client_is_slowed_less_than_half_as_much_again_as_by_its_like(
    greedy: Callable[[], Client],
) -> None:
    equal = Client("equal", num_open=1, prompt_len=30, max_tokens=32, pause=40.0, starts_at=400.0)
    beside_equal, _ = serve(equal)
    beside_greedy, market = serve(greedy())

    longest_step = 1 + 128 + 64  # prompts beside decodes
    assert beside_greedy.ttfts[0] <= 2 * longest_step  # it was not expected: one runs, and one is planned
    assert len(beside_greedy.totals) >= 10
    assert mean(beside_greedy.ttfts[1:]) <= 1.5 * mean(beside_equal.ttfts[1:])
    assert mean(beside_greedy.totals[1:]) <= 1.5 * mean(beside_equal.totals[1:])
    assert max(beside_greedy.totals[1:]) <= 1.5 * max(beside_equal.totals[1:])
    assert market.num_tokens >= 0.75 * market.now  # of all that the device could do


@pytest.mark.parametrize("greedy", [greedy_crowd, flood_of_long_prompts])
def test_without_fair_sharing_it_waits_for_the_whole_queue(greedy: Callable[[], Client]) -> None:
    light, _ = serve(greedy(), is_fair=False)
    assert light.totals == []


def add(scheduler: Scheduler, tenant: str, *sizes: tuple[int, int], **fields: object) -> list[Request]:
    """Requests of (prompt_len, max_tokens), named like greedy0, greedy1."""
    requests = [
        make_request(f"{tenant}{i}", size[0], size[1], tenant=tenant, **fields)
        for i, size in enumerate(sizes)
    ]
    for request in requests:
        scheduler.add(request)
    return requests


def run_alone(driver: Driver, num_steps: int) -> None:
    for _ in range(num_steps):
        driver.step()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_greedy_tenant_yields_a_row_and_its_answer_is_the_same(lookahead: int) -> None:
    driver = Driver(make_scheduler(max_num_seqs=2, max_step_tokens=16), lookahead)
    greedy = add(driver.scheduler, "greedy", (4, 20), (4, 20), (4, 20))
    run_alone(driver, 3)
    [light] = add(driver.scheduler, "light", (4, 2))

    assert driver.step()["light0"] == 4
    assert [each.num_yields for each in greedy] == [0, 1, 0]
    driver.run()
    assert driver.tokens == {each.request_id: expected_output(each) for each in [*greedy, light]}


def test_tenants_end_up_with_the_same_number_of_rows_and_no_more_is_taken() -> None:
    driver = Driver(make_scheduler(max_num_seqs=4, max_step_tokens=16, num_pages=200))
    add(driver.scheduler, "greedy", *[(4, 60)] * 8)
    run_alone(driver, 3)
    add(driver.scheduler, "light", *[(4, 60)] * 8)
    driver.step()

    rows = [request.tenant for request in driver.scheduler.running.values()]
    assert sorted(rows) == ["greedy", "greedy", "light", "light"]


def test_greedy_tenant_yields_pages() -> None:
    driver = Driver(make_scheduler(num_pages=16, page_size=4, max_step_tokens=16))
    greedy = add(driver.scheduler, "greedy", *[(14, 4)] * 4)
    run_alone(driver, 3)
    add(driver.scheduler, "light", (8, 2))

    assert driver.step()["light0"] == 8
    assert sum(each.num_yields for each in greedy) == 1
    driver.run()


def test_a_request_yields_so_often_and_once_more_for_each_page_of_its_answer() -> None:
    driver = Driver(make_scheduler(max_num_seqs=2, max_preemptions=1, page_size=4, max_step_tokens=16))
    long, _ = add(driver.scheduler, "greedy", (4, 200), (4, 200), (4, 200))[1:]
    run_alone(driver, 2)
    for number in range(20):
        driver.scheduler.add(make_request(f"light{number}", 2, 1, tenant="light"))
        run_alone(driver, 2)
        assert all(each.num_yields <= 1 + each.output_len // 4 for each in driver.scheduler.requests)
    assert long.num_yields > 1


def test_prompt_of_a_light_tenant_passes_half_computed_ones() -> None:
    driver = Driver(make_scheduler(max_step_tokens=16, num_pages=400))
    add(driver.scheduler, "greedy", *[(400, 4)] * 3)
    run_alone(driver, 3)
    add(driver.scheduler, "light", (14, 4))

    assert driver.step() == {"light0": 14, "greedy0": 2}
    assert driver.step() == {"light0": 1, "greedy0": 2}


def test_steps_are_short_while_who_asked_for_little_may_ask_again() -> None:
    driver = Driver(make_scheduler(max_num_seqs=16, max_step_tokens=32, num_pages=400))
    add(driver.scheduler, "light", (2, 1))
    add(driver.scheduler, "greedy", *[(20, 40)] * 8)
    run_alone(driver, 20)

    assert sum(driver.step().values()) == 4
    driver.run()
    add(driver.scheduler, "later", *[(20, 40)] * 8)  # all is forgotten when nobody asks any more
    assert sum(driver.step().values()) == 32


def test_steps_are_whole_again_when_who_asked_for_little_stays_away() -> None:
    driver = Driver(make_scheduler(max_num_seqs=16, max_step_tokens=32, num_pages=400))
    add(driver.scheduler, "light", (2, 1))
    add(driver.scheduler, "greedy", *[(20, 40)] * 12)
    served = []
    while driver.scheduler.has_requests:
        served.append(sum(driver.step().values()))
    short = served[served.index(4) :]
    num_short = next(i for i, num_tokens in enumerate(short) if num_tokens > 4)
    assert 20 < num_short <= 4 * 2 * 32 // 4  # four credits of two full steps
    assert short[num_short] == 32


def test_decodes_of_a_greedy_tenant_take_turns_in_its_part_of_a_step() -> None:
    driver = Driver(make_scheduler(max_step_tokens=32, max_num_seqs=8, num_pages=400))
    add(driver.scheduler, "greedy", *[(4, 100)] * 6)
    run_alone(driver, 10)
    add(driver.scheduler, "light", (4, 100))
    driver.step()

    shares = [driver.step() for _ in range(9)]
    assert all(share["light0"] == 1 and len(share) == 3 for share in shares)
    moved = [name for share in shares for name in share if name != "light0"]
    assert {name: moved.count(name) for name in moved} == {f"greedy{i}": 3 for i in range(6)}


def test_more_urgent_request_goes_first_whoever_has_been_served_less() -> None:
    driver = Driver(make_scheduler(max_num_seqs=1, max_step_tokens=16))
    add(driver.scheduler, "greedy", *[(4, 4)] * 12)
    run_alone(driver, 20)
    add(driver.scheduler, "light", (4, 1), priority=1)
    add(driver.scheduler, "urgent", (4, 1), priority=-1)
    driver.run()
    order = list(driver.finished)
    assert order.index("urgent0") < order.index("greedy11") < order.index("light0")


def test_tenants_who_both_ask_without_end_are_served_alike() -> None:
    scheduler = make_scheduler(max_num_seqs=8, max_step_tokens=64, num_pages=1000, page_size=16)
    many = Client("many", num_open=60, prompt_len=10, max_tokens=20)
    few = Client("few", num_open=15, prompt_len=300, max_tokens=5, starts_at=500.0)
    market = Market(scheduler, [many, few])
    market.run(2000.0)
    service = scheduler.tenants.service
    for until in range(2500, 6000, 500):
        market.run(float(until))
        assert abs(service["many"] - service["few"]) <= 2 * 64 + 305  # the credit, and a request


def test_who_comes_back_has_saved_up_no_more_than_a_credit() -> None:
    driver = Driver(make_scheduler(max_step_tokens=16, num_pages=400))
    add(driver.scheduler, "light", (2, 1))
    add(driver.scheduler, "greedy", *[(100, 50)] * 4)
    run_alone(driver, 20)
    add(driver.scheduler, "light", (2, 1))
    service = driver.scheduler.tenants.service
    assert service["light"] == service["greedy"] - 2 * 16


def test_requests_without_a_key_share_nothing_out() -> None:
    driver = Driver(make_scheduler(max_num_seqs=2, max_step_tokens=16))
    add(driver.scheduler, "", *[(4, 4)] * 5)
    driver.run()
    assert driver.scheduler.tenants.service == {}
    assert driver.scheduler.num_preemptions == 0
