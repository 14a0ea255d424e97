"""An inference engine under load: closed forms of queues, steps counted by hand, a plain reference, broken files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.errors import InvalidInputError, NotFoundError
from replay.serving import (
    EngineLimits,
    EngineStepTimes,
    Requests,
    Served,
    TimeCurve,
    load_table,
    read_requests,
    saturation_rate,
    simulate,
    with_rate,
)

CONVERSATIONS = Path(__file__).parents[2] / "shared" / "data" / "lengths" / "llm_conversation_tokens.csv"
AMPLE = 1 << 40


def curve(*points: tuple[float, float]) -> TimeCurve:
    size, time_ns = zip(*points, strict=True)
    return TimeCurve(np.array(size, float), np.array(time_ns, float))


ZERO = curve((1, 0))
#: A second a token, 0.1 s a pair of query and key, 0.01 s a cached token.
BY_TOKEN = EngineStepTimes(curve((1, 1e9), (2, 2e9)), curve((0, 0), (1, 1e8)), curve((0, 0), (1, 1e7)))


def flat(step_s: float) -> EngineStepTimes:
    """Return steps of one duration."""
    return EngineStepTimes(curve((1, 1e9 * step_s)), ZERO, ZERO)


def requests(*rows: tuple[float, int, int]) -> Requests:
    """Return requests of (arrival, prompt, output)."""
    arrival, prompt, output = zip(*rows, strict=True)
    return Requests(np.array(arrival, float), np.array(prompt), np.array(output))


def mean_wait_error(sample: Requests, times: EngineStepTimes, utilization: float) -> float:
    """Return the error of the mean wait for the only slot of an engine, relative to Pollaczek and Khinchine's."""
    limits = EngineLimits(1, 1 << 20, AMPLE)
    decode_s = 1e-9 * times.step_ns(1, 0, 0)
    prefill_s = 1e-9 * np.array([times.step_ns(size, 0, 0) for size in range(1, int(sample.prompt_tokens.max()) + 1)])
    service_s = prefill_s[sample.prompt_tokens - 1] + decode_s * (sample.output_tokens - 1)
    rate = utilization / service_s.mean()
    arrived = with_rate(sample, rate, seed=3)
    wait_s = simulate(arrived, times, limits).admitted_s - arrived.observed_arrival_s
    return float(wait_s.mean() / (rate * (service_s**2).mean() / (2 * (1 - utilization))) - 1)


@pytest.mark.parametrize("utilization", [0.3, 0.6, 0.8])
def test_the_wait_for_one_slot_is_that_of_a_queue_with_equal_service(utilization: float) -> None:
    n = 1_000_000
    assert abs(mean_wait_error(Requests(None, np.ones(n, int), np.ones(n, int)), flat(0.1), utilization)) < 0.02


@pytest.mark.parametrize("utilization", [0.3, 0.6, 0.8])
def test_the_wait_for_one_slot_is_that_of_a_queue_with_any_service(utilization: float) -> None:
    draw = np.random.default_rng(1)
    sample = Requests(None, draw.choice([10, 500], 1_000_000, p=[0.7, 0.3]), draw.geometric(0.1, 1_000_000))
    times = EngineStepTimes(curve((1, 1e7), (1000, 1e9)), ZERO, ZERO)
    assert abs(mean_wait_error(sample, times, utilization)) < 0.02


def test_a_batch_that_arrives_at_once_takes_the_sum_of_its_steps() -> None:
    n, prompt, output = 8, 20, 6
    served = simulate(requests(*[(0, prompt, output)] * n), BY_TOKEN, EngineLimits(n, n * prompt, AMPLE))
    steps = [1e-9 * BY_TOKEN.step_ns(n * prompt, n * prompt * (prompt + 1) / 2, 0)]
    steps += [1e-9 * BY_TOKEN.step_ns(n, 0, n * (prompt + k)) for k in range(1, output)]
    assert served.first_token_s == pytest.approx(np.full(n, steps[0]), rel=1e-12)
    assert served.finished_s == pytest.approx(np.full(n, sum(steps)), rel=1e-12)
    assert served.tpot_s == pytest.approx(np.full(n, sum(steps[1:]) / (output - 1)), rel=1e-12)
    assert (served.steps, served.busy_share) == (output, pytest.approx(1))
    assert served.tokens_per_s == pytest.approx(n * output / sum(steps))
    assert served.requests_per_s == pytest.approx(n / sum(steps))


def rows_of(served: Served) -> list[tuple[float, ...]]:
    columns = (served.admitted_s, served.first_token_s, served.finished_s)
    return [tuple(round(float(value), 9) for value in row) for row in zip(*columns, strict=True)]


def test_prompts_in_chunks_by_hand() -> None:
    # Two slots, four tokens a step. Tokens, pairs and cached tokens of each step, and its duration:
    #   0.00: A 4 of 6             4, 10,        0: 5.00 s
    #   5.00: A 2, B 2 of 3        4, 11 + 3,    0: 5.40 s, first token of A
    #  10.40: A decodes, B 1       2, 3,         7: 2.37 s, A ends, first token of B
    #  12.77: B decodes, C 1       2, 1,         4: 2.14 s, C ends with its first token
    #  14.91: B decodes            1, 0,         5: 1.05 s, B ends
    served = simulate(requests((0, 6, 2), (0, 3, 3), (3, 1, 1)), BY_TOKEN, EngineLimits(2, 4, 20))
    assert rows_of(served) == [(0, 10.4, 12.77), (5, 12.77, 15.96), (12.77, 14.91, 14.91)]
    assert (served.steps, served.peak_kv_tokens) == (5, 14)
    assert served.busy_s == pytest.approx(15.96)
    assert np.isnan(served.tpot_s).tolist() == [False, False, True]


def test_a_request_without_room_in_the_cache_lets_none_pass() -> None:
    # The cache has 10 tokens. B needs 8 of them, which A holds until 4 s; C would fit, and waits behind B.
    served = simulate(requests((0, 4, 4), (0, 6, 2), (0, 1, 1)), flat(1), EngineLimits(8, 16, 10))
    assert rows_of(served) == [(0, 1, 4), (4, 5, 6), (4, 5, 5)]
    assert served.peak_kv_tokens == 10


def test_the_clock_jumps_to_the_next_arrival() -> None:
    served = simulate(requests((2, 4, 2), (10, 4, 1)), flat(1), EngineLimits(8, 16, 100))
    assert rows_of(served) == [(2, 3, 4), (10, 11, 11)]
    assert (served.busy_s, served.busy_share, served.span_s) == (3, 3 / 9, 9)


def test_a_full_engine_serves_as_many_requests_as_its_slots_allow() -> None:
    draw = np.random.default_rng(2)
    sample = Requests(None, np.ones(50_000, int), draw.integers(1, 100, 50_000))
    expected = 16 / (0.02 * sample.output_tokens.mean())
    assert saturation_rate(sample, flat(0.02), EngineLimits(16, 32, AMPLE)) == pytest.approx(expected, rel=0.02)
    equal = Requests(None, np.ones(7, int), np.full(7, 50))
    assert saturation_rate(equal, flat(0.02), EngineLimits(64, 64, AMPLE)) == pytest.approx(64, rel=0.01)


def test_a_full_cache_bounds_the_engine_instead() -> None:
    equal = Requests(None, np.full(1000, 6), np.full(1000, 4))
    # Five requests of ten tokens fit, and each takes four steps.
    assert saturation_rate(equal, flat(1), EngineLimits(100, 100, 59)) == pytest.approx(5 / 4, rel=1e-9)


def test_prompts_alone_saturate_at_the_rate_of_their_tokens() -> None:
    equal = Requests(None, np.full(1000, 300), np.ones(1000, int))
    times = EngineStepTimes(curve((1, 1e6), (2, 2e6)), ZERO, ZERO)
    assert saturation_rate(equal, times, EngineLimits(8, 512, AMPLE)) == pytest.approx(1 / 0.3, rel=1e-9)


@pytest.mark.parametrize(("share", "growth"), [(0.9, 1.5), (1.2, None)])
def test_a_queue_grows_above_the_saturation_rate_only(share: float, growth: float | None) -> None:
    draw = np.random.default_rng(4)
    sample = Requests(None, draw.integers(1, 400, 40_000), draw.geometric(0.02, 40_000))
    times = EngineStepTimes(curve((1, 5e6), (256, 6e6), (512, 1e7)), ZERO, curve((0, 0), (1e5, 5e6)))
    limits = EngineLimits(32, 512, 20_000)
    rate = share * saturation_rate(sample, times, limits)
    served = simulate(with_rate(sample, rate, seed=5), times, limits)
    quarters = [float(quarter.mean()) for quarter in np.split(served.ttft_s, 4)]
    if growth is not None:
        assert quarters[3] < growth * quarters[1]
    else:
        # Of every 1.2 requests, 1 is served: the wait grows by a sixth of the time since the start.
        backlog_s = np.array([0.125, 0.375, 0.625, 0.875]) * 40_000 / rate * (share - 1)
        assert quarters == pytest.approx(backlog_s.tolist(), rel=0.05)


def plain(sample: Requests, times: EngineStepTimes, limits: EngineLimits) -> list[tuple[float, float, float]]:
    """Return (admitted, first token, end) of each request as a scheduler with lists has them, token by token."""
    arrival, prompt, output = sample.observed_arrival_s, sample.prompt_tokens.tolist(), sample.output_tokens.tolist()
    now, waiting, running = 0.0, list(range(len(sample))), list[int]()
    cached, made = [0] * len(sample), [0] * len(sample)
    log = [[0.0, 0.0, 0.0] for _ in prompt]
    while waiting or running:
        if not running:
            now = max(now, float(arrival[waiting[0]]))
        chunks = {i: 1 for i in running if made[i]}
        room = limits.most_tokens - len(chunks)
        for i in [i for i in running if not made[i]]:
            chunks[i] = min(room, prompt[i] - cached[i])
            room -= chunks[i]
        while waiting and room and arrival[waiting[0]] <= now and len(running) < limits.most_requests:
            i = waiting[0]
            if sum(prompt[j] + output[j] for j in [*running, i]) > limits.kv_tokens:
                break
            running.append(waiting.pop(0))
            log[i][0] = now
            chunks[i] = min(room, prompt[i])
            room -= chunks[i]
        pairs = sum(sum(range(cached[i] + 1, cached[i] + q + 1)) for i, q in chunks.items() if not made[i])
        now += times.step_ns(sum(chunks.values()), pairs, sum(cached[i] + 1 for i in chunks if made[i])) / 1e9
        for i, chunk in chunks.items():
            cached[i] += chunk
            made[i] += cached[i] >= prompt[i]
            if made[i] == 1 and cached[i] == prompt[i]:
                log[i][1] = now
            if made[i] == output[i]:
                log[i][2] = now
                running.remove(i)
    return [(admitted, first, end) for admitted, first, end in log]


COUNTS = st.integers(0, 5)


@st.composite
def engines(draw: st.DrawFn) -> tuple[Requests, EngineStepTimes, EngineLimits]:
    size = draw(st.integers(1, 12))
    gaps = draw(st.lists(st.sampled_from([0, 0, 0.1, 0.5, 3]), min_size=size, max_size=size))
    prompt = draw(st.lists(st.integers(1, 15), min_size=size, max_size=size))
    output = draw(st.lists(st.integers(1, 8), min_size=size, max_size=size))
    slots = draw(st.integers(1, 4))
    longest = max(p + o for p, o in zip(prompt, output, strict=True))
    limits = EngineLimits(slots, slots + draw(COUNTS), longest + 4 * draw(COUNTS))
    linear = curve((1, 1e8), (4, 1e8 + 1e7 * draw(COUNTS)), (8, 2e8 + 1e7 * draw(COUNTS)))
    context, generation = (curve((0, 0), (10, 1e7 * draw(COUNTS))) for _ in range(2))
    sample = Requests(np.cumsum(np.array(gaps, float)), np.array(prompt), np.array(output))
    return sample, EngineStepTimes(linear, context, generation), limits


@given(engines())
def test_every_request_gets_its_tokens_in_order_and_within_limits(
    engine: tuple[Requests, EngineStepTimes, EngineLimits],
) -> None:
    sample, times, limits = engine
    served = simulate(sample, times, limits)
    assert list(zip(served.admitted_s, served.first_token_s, served.finished_s, strict=True)) == plain(*engine)
    assert (served.admitted_s >= sample.observed_arrival_s).all() and (np.diff(served.admitted_s) >= 0).all()
    assert (served.ttft_s > 0).all() and (np.diff(served.first_token_s) >= 0).all()
    gaps = (served.finished_s - served.first_token_s) / (1e-9 * times.linear_ns.time_ns[0])
    assert (gaps >= sample.output_tokens - 1 - 1e-9).all()
    assert 0 < served.peak_kv_tokens <= limits.kv_tokens
    inside = [((served.admitted_s <= t) & (t < served.finished_s)) for t in served.admitted_s]
    assert max(at.sum() for at in inside) <= limits.most_requests
    reserved = sample.prompt_tokens + sample.output_tokens
    assert max(reserved[at].sum() for at in inside) == served.peak_kv_tokens
    tokens = int((reserved - 1).sum())
    assert -(-tokens // limits.most_tokens) <= served.steps <= tokens
    assert served.busy_s <= served.span_s * (1 + 1e-9)


@given(engines(), st.sampled_from([0.5, 2.0, 4.0]))
def test_times_are_in_proportion(engine: tuple[Requests, EngineStepTimes, EngineLimits], factor: float) -> None:
    sample, times, limits = engine
    served = simulate(sample, times, limits)
    later = replace(sample, arrival_s=factor * sample.observed_arrival_s)
    assert simulate(later, times.scaled(factor), limits).finished_s == pytest.approx(factor * served.finished_s)


@given(engines(), st.sampled_from([1.1, 1.5, 3.0]))
def test_slower_steps_delay_all_requests_of_one_slot(
    engine: tuple[Requests, EngineStepTimes, EngineLimits], factor: float
) -> None:
    sample, times, limits = engine
    limits = replace(limits, most_requests=1)
    fast, slow = simulate(sample, times, limits), simulate(sample, times.scaled(factor), limits)
    assert (slow.first_token_s >= fast.first_token_s).all() and (slow.finished_s >= fast.finished_s).all()


def test_a_slower_step_can_bring_a_request_forward() -> None:
    sample, limits = requests((0, 1, 4), (0.45, 1, 1)), EngineLimits(2, 4, 100)
    assert simulate(sample, flat(0.4), limits).first_token_s[1] == pytest.approx(1.2)
    assert simulate(sample, flat(0.5), limits).first_token_s[1] == pytest.approx(1.0)


def test_a_table_has_intervals_and_says_where_the_queue_is_stable() -> None:
    sample = Requests(None, np.full(2000, 50), np.full(2000, 10))
    limits = EngineLimits(8, 64, AMPLE)
    table = load_table(sample, flat(0.1), limits, [2, 6, 7.5, 20], seed=7, factors=(0.9, 1.2)).to_pylist()
    saturation = saturation_rate(sample, flat(0.1), limits)
    assert [row["stable"] for row in table] == [row["rate"] < saturation for row in table] == [True, True, True, False]
    for row in table:
        assert row["utilization"] == pytest.approx(row["rate"] / saturation)
        assert row["utilization_high"] == pytest.approx(1.2 * row["utilization"])
        for name in ("ttft_p50", "ttft_p90", "ttft_p99", "tpot_p50", "tpot_p90", "tpot_p99"):
            assert row[f"{name}_low_s"] <= row[f"{name}_s"] <= row[f"{name}_high_s"]
        assert row["ttft_p50_s"] <= row["ttft_p90_s"] <= row["ttft_p99_s"]
        assert row["tokens_per_s"] == pytest.approx(10 * row["requests_per_s"])
        assert 0 < row["busy_share"] <= 1 + 1e-9
    assert table[0]["requests_per_s"] == pytest.approx(2, rel=0.05)
    assert table[3]["requests_per_s"] == pytest.approx(saturation, rel=0.02)
    served = simulate(with_rate(sample, 6, seed=7), flat(0.1), limits)
    assert table[1]["ttft_p90_s"] == np.percentile(served.ttft_s, 90) == served.percentiles((90,))["ttft_s"][0]
    one = load_table(Requests(None, np.ones(9, int), np.ones(9, int)), flat(0.1), limits, [1], seed=1)
    assert one["tpot_p50_s"].null_count == 1 and one["ttft_p50_s"].null_count == 0


def test_arrivals_take_another_rate_and_keep_their_bursts_unless_a_seed_draws_them() -> None:
    bursts = requests((1, 1, 1), (1, 2, 1), (5, 3, 1), (7, 4, 1))
    assert bursts.rate == 0.5
    assert with_rate(bursts, 5).observed_arrival_s.tolist() == pytest.approx([0.1, 0.1, 0.5, 0.7])
    sample = Requests(None, np.ones(100_000, int), np.ones(100_000, int))
    drawn = with_rate(sample, 4, seed=1)
    gaps = np.diff(drawn.observed_arrival_s)
    assert (drawn.rate, gaps.std()) == (pytest.approx(4, rel=0.02), pytest.approx(0.25, rel=0.02))
    assert (with_rate(sample, 4, seed=1).observed_arrival_s == drawn.observed_arrival_s).all()
    assert with_rate(sample, 8, seed=1).observed_arrival_s == pytest.approx(drawn.observed_arrival_s / 2)
    assert with_rate(sample, 4, seed=2).observed_arrival_s[0] != drawn.observed_arrival_s[0]


HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


@pytest.mark.parametrize(
    ("text", "arrivals", "tokens"),
    [
        (HEADER + "1.5,374,44\n4.0,396,109\n", [0, 2.5], [(374, 44), (396, 109)]),
        (HEADER + "4,3,2\n\n1e0,5,6\n", [0, 3], [(5, 6), (3, 2)]),
        ("\ufeffContextTokens,GeneratedTokens\r\n4808,10\r\n", None, [(4808, 10)]),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:16:46.68,5,6\n",
            [0, 59.99941],
            [(374, 44), (5, 6)],
        ),
        ("id,input_tokens, output_tokens\nx,3.0,2\n", None, [(3, 2)]),
        ('[{"arrival_s": 2, "prompt_tokens": 3, "completion_tokens": 4}]', [0], [(3, 4)]),
        (
            '{"prompt_tokens": 3, "output_tokens": 4, "timestamp": 7.5, "x": [1]}\n\n'
            '{"prompt_tokens": "5", "output_tokens": 6, "timestamp": 9}\n',
            [0, 1.5],
            [(3, 4), (5, 6)],
        ),
    ],
)
def test_files_of_requests(tmp_path: Path, text: str, arrivals: list[float] | None, tokens: list[Any]) -> None:
    (tmp_path / "requests").write_bytes(text.encode())
    found = read_requests(tmp_path / "requests")
    assert list(zip(found.prompt_tokens.tolist(), found.output_tokens.tolist(), strict=True)) == tokens
    assert (None if found.arrival_s is None else found.arrival_s.tolist()) == (arrivals and pytest.approx(arrivals))


NO_TOKENS = "it must be a whole number from 1 to 10,000,000"
DEEP = '[{"prompt_tokens": ' + "[" * 100_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no request"),
        (HEADER, "holds no request"),
        ("[]", "holds no request"),
        (HEADER + "0,1,2\n1,many,2\n", f"requests: line 3: num_prefill_tokens is 'many'; {NO_TOKENS}"),
        (HEADER + "0,1,2\n\n1,0,2\n", f"line 4: num_prefill_tokens is '0'; {NO_TOKENS}"),
        (HEADER + "0,1,0\n", f"line 2: num_decode_tokens is '0'; {NO_TOKENS}"),
        (HEADER + "0,-1,2\n", "line 2: num_prefill_tokens is '-1'"),
        (HEADER + "0,1.5,2\n", "line 2: num_prefill_tokens is '1.5'"),
        (HEADER + "0,1_0,2\n", "line 2: num_prefill_tokens is '1_0'"),
        (HEADER + "0,\u0663,2\n", "line 2: num_prefill_tokens is"),
        (HEADER + "0,1,nan\n", "line 2: num_decode_tokens is 'nan'"),
        (HEADER + "0,1,1e400\n", "line 2: num_decode_tokens is '1e400'"),
        (HEADER + f"0,1,{'9' * 5000}\n", f"line 2: num_decode_tokens is '{'9' * 39}; it must"),
        (HEADER + "0,1\n", "line 2: num_decode_tokens is missing"),
        (HEADER + "0,1,2,3\n", "line 2: has more cells than the header"),
        (HEADER + "inf,1,2\n", "line 2: arrived_at is 'inf'; it must be seconds from 0 to 1e+11, or a date"),
        (HEADER + "-1,1,2\n", "line 2: arrived_at is '-1'"),
        (HEADER + "1700000000000,1,2\n", "line 2: arrived_at is '1700000000000'"),
        (HEADER + ",1,2\n", "line 2: arrived_at is ''"),
        (HEADER + "0001-01-01,1,2\n", "line 2: arrived_at is '0001-01-01'"),
        ("prompt_tokens,x\n1,2\n", "has none of the columns num_decode_tokens, output_tokens, "),
        ("arrived_at,output_tokens\n1,2\n", "has none of the columns num_prefill_tokens, prompt_tokens, "),
        (HEADER + '0,"' + "6" * 200_000, "not a CSV file of requests (field larger than field limit"),
        (b"\xff\xfe\x00binary\x00", "not a CSV file of requests"),
        (b"\x00" * 100, "requests: "),
        ('{"prompt_tokens": 1, "output_tokens": 2}\n{"prompt_tokens": 1}\n', "line 2: output_tokens is missing"),
        ('{"prompt_tokens": 1, "output_tokens": 2}\n{"prompt_tokens": \n', "line 2: no JSON of requests"),
        ('[{"prompt_tokens": true, "output_tokens": 2}]', "request 1: prompt_tokens is True"),
        ('[{"prompt_tokens": [1], "output_tokens": 2}]', "request 1: prompt_tokens is [1]"),
        ('[{"prompt_tokens": 1, "output_tokens": 1' + "0" * 400 + "}]", "request 1: output_tokens is 1"),
        ('[{"prompt_tokens": 1, "output_tokens": 1' + "0" * 9000 + "}]", "requests: "),
        ('[{"prompt_tokens": 1, "output_tokens": NaN}]', "no JSON of requests"),
        ('[{"prompt_tokens": 1, "output_tokens": 2}, 3]', "no JSON of requests (Expected `object`, got `int`"),
        ('[{"prompt_tokens": 1, "output_tokens": 2}', "no JSON of requests"),
        (b'[{"prompt_tokens": "\xff"}]', "no JSON of requests"),
        (DEEP, "no JSON of requests"),
        (DEEP[1:], "line 1: no JSON of requests"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    (tmp_path / "requests").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidInputError) as caught:
        read_requests(tmp_path / "requests")
    assert message in str(caught.value) and "requests" in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400 + len(str(tmp_path))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "requests").open("wb") as stream:
        stream.truncate((32 << 20) + 1)
    with pytest.raises(InvalidInputError, match="larger than 32 MiB"):
        read_requests(tmp_path / "requests")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(NotFoundError, match="no such file of requests"):
            read_requests(path)
    for path in (Path("x" * 5000), Path("a\0b")):
        with pytest.raises((InvalidInputError, NotFoundError)):
            read_requests(path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: requests((0, 1, 1), (-1, 1, 1)), "request 1: arrival_s is -1.0"),
        (lambda: requests((1, 1, 1), (0, 1, 1)), "sorted by arrival"),
        (lambda: requests((np.nan, 1, 1)), "request 0: arrival_s is nan"),
        (lambda: requests((0, 0, 1)), "request 0: prompt_tokens is 0; it must be from 1 to 10,000,000"),
        (lambda: requests((0, 1, 10**8)), "request 0: output_tokens is 100000000"),
        (lambda: Requests(None, np.ones(2, int), np.ones(3, int)), "arrays of one length"),
        (lambda: Requests(None, np.ones(0, int), np.ones(0, int)), "one request or more"),
        (lambda: with_rate(requests((0, 1, 1)), 0, 1), "a rate of 0 requests/s"),
        (lambda: with_rate(requests((0, 1, 1)), 1, -1), "a seed of -1"),
        (lambda: with_rate(requests((0, 1, 1)), np.nan, 1), "a rate of nan requests/s"),
        (lambda: with_rate(requests((0, 1, 1)), 1), "arrive at once"),
        (lambda: with_rate(Requests(None, np.ones(1, int), np.ones(1, int)), 1), "have no arrivals"),
        (lambda: EngineLimits(0, 1, 1), "most_requests of the engine is 0"),
        (lambda: EngineLimits(1, 1, -5), "kv_tokens of the engine is -5"),
        (lambda: EngineLimits(8, 7, 1), "an engine of 8 requests needs as many tokens a step, not 7"),
        (lambda: curve((1, 1), (1, 2)), "sizes that do not increase"),
        (lambda: curve((-1, 1)), "sizes that are negative"),
        (lambda: curve((1, np.nan)), "times that are negative or no number"),
        (lambda: curve((1, 2), (2, 1)), "falls at its end"),
        (lambda: TimeCurve(np.ones(2), np.ones(1)), "as many times as sizes"),
        (lambda: EngineStepTimes(ZERO, ZERO, ZERO), "above zero"),
        (lambda: flat(1).scaled(-1), "cannot be scaled by -1"),
        (
            lambda: simulate(requests((0, 1, 1), (0, 90, 11)), flat(1), EngineLimits(1, 1, 100)),
            "request 1 by arrival needs 101 tokens of the cache, which holds 100",
        ),
        (
            lambda: load_table(requests((0, 1, 1)), flat(1), EngineLimits(1, 1, 9), [1], seed=1, factors=(1.1, 1.2)),
            "from 1.1 to 1.2",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        call()
    assert message in str(caught.value)


def test_a_curve_of_times_between_and_beyond_its_points() -> None:
    times = curve((2, 10), (4, 30), (8, 40))
    assert [times.at(size) for size in (0, 1, 2, 3, 4, 6, 8, 12)] == [0, 10, 10, 20, 30, 35, 40, 50]
    assert [curve((2, 10)).at(size) for size in (0, 1, 100)] == [0, 10, 10]


@pytest.mark.skipif(not CONVERSATIONS.is_file(), reason="needs the lengths in ../shared/data/lengths")
def test_an_hour_of_conversations_is_served() -> None:
    sample = read_requests(CONVERSATIONS)
    assert len(sample) == 19366 and sample.rate == pytest.approx(5.53, rel=0.01)
    served = simulate(
        sample, EngineStepTimes(curve((1, 8e6), (8192, 2.5e8)), ZERO, ZERO), EngineLimits(256, 8192, AMPLE)
    )
    assert served.span_s == pytest.approx(3502, rel=0.01) and float(np.median(served.ttft_s)) < 0.1
    assert json.loads(json.dumps({name: row.tolist() for name, row in served.percentiles().items()}))["ttft_s"][0] > 0
