"""Whole jobs: the operators of a model, what their backward pass takes, and how long they take together."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.costs.kernels import load_calibration, predict
from replay.costs.shipped import load_parameters
from replay.graph.operators import attention, batched_matmul, convolution, streaming
from replay.workloads import (
    DecoderPass,
    Step,
    Transformer,
    backward,
    find_transformer,
    forward,
    fused,
    load_transformers,
    tally,
    time_operators,
)
from replay.workloads.architecture import STYLES, pointwise, product, rows

A100 = find_device("A100-PCIE-40GB")
TINY = {"layers": 2, "hidden": 8, "heads": 2, "feedforward": 32, "vocabulary": 100}


def products(steps: list[Step]) -> Counter[tuple[int, ...]]:
    return Counter(s.operator.dims for s in steps if s.operator.kind in ("matmul", "batched_matmul"))


@pytest.mark.parametrize(("length", "shares"), [(128, (32.7, 2.0, 65.3)), (512, (30.8, 7.7, 61.5))])
def test_bert_large_has_the_shares_of_flop_that_its_paper_counts(length: int, shares: tuple[float, ...]) -> None:
    """Projections, attention and feed-forward of a layer (BERT characterisation, ISPASS 2022; papers.md, section 8)."""
    model, run = find_transformer("bert_large", load_transformers()), DecoderPass(4, length)
    layer = forward(model, run)[:-2]
    flops = dict.fromkeys(("linear", "attention", "feedforward"), 0.0)
    for step in layer:
        if step.operator.kind == "batched_matmul":
            flops["attention"] += step.operator.flops
        elif step.operator.kind == "matmul":
            wide = model.feedforward in step.operator.dims
            flops["feedforward" if wide else "linear"] += step.operator.flops
    total = sum(flops.values())
    assert [100 * value / total for value in flops.values()] == pytest.approx(shares, abs=0.06)


@pytest.mark.parametrize("style", ["bert", "gpt2", "opt"])
def test_a_layer_has_the_products_that_its_sizes_give(style: str) -> None:
    model, run = Transformer("tiny", style, **TINY), DecoderPass(3, 16)
    found = products(forward(model, run))
    assert found[3 * 2, 16, 16, 4] == 2  # scores, once a layer: batch 3 of 2 heads of width 4
    assert found[3 * 2, 16, 4, 16] == 2
    assert found[1, 48, 32, 8] == 2
    assert found[1, 48, 8, 32] == 2
    assert found[1, 48, 8, 8] + 3 * found[1, 48, 24, 8] == 2 * 4


def test_experts_share_the_tokens() -> None:
    sizes = {**TINY, "hidden": 16, "feedforward": 64}
    dense = forward(Transformer("dense", "switch", **sizes), DecoderPass(1, 64))
    sparse = forward(Transformer("sparse", "switch", **sizes, experts=4), DecoderPass(1, 64))
    assert products(sparse)[1, 16, 64, 16] == 2 * 2 * 4  # gated, in an encoder's and a decoder's layer of four experts
    assert products(dense)[1, 64, 64, 16] == 2 * 4
    assert sum(s.operator.kind == "transfer" for s in sparse) == 2 * 2 * 4  # gathered and put back
    assert sum(s.operator.flops for s in sparse) < 1.2 * sum(s.operator.flops for s in dense)


def test_a_backward_pass_multiplies_twice_for_every_product() -> None:
    steps = forward(Transformer("tiny", "gpt2", **TINY), DecoderPass(2, 16, training=True))
    ahead, back = (sum(n * np.prod(dims) for dims, n in products(s).items()) for s in (steps, backward(steps)))
    assert back == 2 * ahead
    weights = sum(step.parameters for step in steps)
    added = sum(step.operator.dims[0] for step in backward(steps) if step.name == "aten::add_")
    assert added == weights > 2 * 12 * 8 * 8


def test_training_runs_dropout_and_the_head_that_is_trained() -> None:
    model = find_transformer("bert_large", load_transformers())
    names = [Counter(s.name for s in forward(model, DecoderPass(2, 64, training))) for training in (False, True)]
    assert names[0]["aten::native_dropout"] == 0
    assert names[1]["aten::native_dropout"] == 1 + 3 * model.layers
    assert products(forward(model, DecoderPass(2, 64, training=True)))[1, 128, 30522, 1024] == 1


def test_fused_neighbours_read_once_and_write_once() -> None:
    chain = [pointwise("div", 100), pointwise("add", 100, arrays=3), rows("softmax", "softmax", 10, 10)]
    (one,) = fused(chain)
    assert one.operator.kind == "softmax"
    assert (one.operator.bytes_read, one.operator.bytes_written) == (800.0, 400.0)  # the first input, and what is added
    cut = [pointwise("div", 100), product("bmm", 1, 2, 3, 4), pointwise("add", 100)]
    assert fused(cut) == cut


def test_operators_of_a_stream_do_not_wait_to_be_started() -> None:
    one = batched_matmul(1, 512, 512, 512)
    kernel, launched = (
        predict("matmul", [one.dims], A100, calibration=load_calibration(), launched=each) for each in (False, True)
    )
    queued, waited = (
        time_operators([one, one], A100, parameters=load_parameters(), queued=each) for each in (True, False)
    )
    assert queued.seconds[0] == queued.seconds[1] == pytest.approx(kernel.seconds[0])
    assert waited.seconds[0] == pytest.approx(launched.seconds[0]) and launched.seconds[0] > 2 * kernel.seconds[0]
    assert queued.total == pytest.approx(2 * queued.seconds[0])


def test_attention_and_convolutions_are_computed_not_only_moved() -> None:
    a100 = find_device("A100-SXM4-80GB")
    heads = attention((8, 32, 4096, 128), (32, 4096))
    timed = time_operators([heads], a100, dtype="bf16", parameters=load_parameters())
    assert timed.low[0] < timed.seconds[0] < timed.high[0]
    assert heads.flops / timed.seconds[0] == pytest.approx(0.44 * 271.2e12, rel=0.01)
    images = convolution((32, 256, 56, 56), (256, 256, 3, 3), (32, 256, 56, 56))
    assert 10e12 < images.flops / time_operators([images], A100, parameters=load_parameters()).seconds[0] < 19.5e12


def test_the_interval_of_a_total_adds_up_within_a_kind_and_squares_between() -> None:
    product_, stream_ = batched_matmul(1, 2048, 2048, 2048), streaming("elementwise", 4e8, 4e8, 10**8)
    one, two, both = (
        time_operators(o, A100, parameters=load_parameters())
        for o in ([product_], [product_, product_], [product_, stream_])
    )
    # A tenth of the total beside is what the list of operators is off by.
    every = (one, two, both, time_operators([stream_], A100, parameters=load_parameters()))
    half = [np.sqrt((timed.interval()[1] - timed.total) ** 2 - (0.1 * timed.total) ** 2) for timed in every]
    assert half[1] == pytest.approx(2 * half[0])
    assert half[2] == pytest.approx(np.hypot(half[0], half[3]))


def test_a_device_that_is_left_out_is_carried_over_to() -> None:
    operators = [
        step.operator for step in forward(find_transformer("gpt2_large", load_transformers()), DecoderPass(1, 256))
    ]
    own, carried = (
        time_operators(operators, A100, without=w, parameters=load_parameters()) for w in ((), ("A100-PCIE-40GB",))
    )
    assert 0.7 < carried.total / own.total < 1.4
    assert carried.total != own.total


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("style = 'rnn'", "no style 'rnn'; there are bert, gpt2"),
        ("layers = 0", "layers is 0; it must be 1 or more"),
        ("layers = 2.5", "layers: Expected `int`, got `float`; the keys are style"),
        ("colour = 1", "unknown key 'colour'; the keys are style"),
        ("heads = 3", "3 heads do not divide a hidden size of 8"),
    ],
)
def test_a_model_that_cannot_be_is_named(tmp_path: Path, change: str, message: str) -> None:
    lines = {"style": "style = 'bert'", **{k: f"{k} = {v}" for k, v in TINY.items()}}
    lines[change.split()[0]] = change
    file = tmp_path / "models.toml"
    file.write_text("[transformers.mine]\n" + "\n".join(lines.values()))
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_transformers(file)
    assert "mine" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[transformers]", "transformers = 3", "[transformers.a]\nstyle = 'bert'", "[", "\xff"]
)
def test_a_file_that_is_none_of_models(tmp_path: Path, text: str) -> None:
    file = tmp_path / "models.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInputError, match=r"models\.toml"):
        load_transformers(file)


@pytest.mark.parametrize("style", sorted(STYLES))
@pytest.mark.parametrize("fusing", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5, 8, 11])
def test_a_tally_counts_what_writing_every_layer_out_lists(style: str, fusing: bool, layers: int) -> None:
    model = Transformer("m", style, layers, 64, 4, 256, 100, experts=3 if style == "switch" else 1)

    def listed(one: Transformer) -> list[Step]:
        steps = forward(one, DecoderPass(2, 32, training=True))
        return [*(fused(steps) if fusing else steps), *backward(steps)]

    found = tally(model, listed)
    assert dict(zip(found.operators, found.counts, strict=True)) == Counter(s.operator for s in listed(model))


def test_ten_thousand_layers_are_counted_from_a_few() -> None:
    asked = []

    def listed(one: Transformer) -> list[Step]:
        asked.append(one.layers)
        return forward(one, DecoderPass(1, 64))

    model = Transformer("deep", "bert", 10_000, 64, 4, 256, 100)
    assert sum(tally(model, listed).counts) == len(forward(model, DecoderPass(1, 64)))
    assert max(asked) <= 5


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"layers": 10_001}, "m: layers is 10001; it must be at most 10,000"),
        ({"layers": 10**9}, "at most 10,000"),
        ({"layers": 2.5}, "layers is 2.5; it must be a whole number"),
        ({"layers": True}, "layers is True; it must be a whole number"),
        ({"hidden": 10**400}, "hidden is about 2.1328; it must be at most 2,147,483,648"),
        ({"vocabulary": 10**5000}, "vocabulary is about 2.16609"),
        ({"experts": 2**15}, "experts is 32768; it must be at most 16,384"),
        ({"layers": 10_000, "experts": 1000}, "10000 layers of 1000 experts; at most 1,048,576 in all"),
    ],
)
def test_sizes_are_whole_and_bounded(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Transformer("m", "switch", **{**TINY, **sizes})


@pytest.mark.parametrize("sizes", [(1.5, 1), (1, "2"), (2**40, 1), (1, 10**5000), (float("nan"), 1)])
def test_a_pass_has_whole_sizes(sizes: tuple[int, int]) -> None:
    with pytest.raises(InvalidInputError, match=r"(batch|length) is .*; it must be"):
        DecoderPass(*sizes)
    assert type(DecoderPass(np.int64(3), 2).batch) is int


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * 100_000, "layers = " + "9" * 10_000, "\xff", " " * 2**21],
    ids=["deep", "long", "latin", "big"],
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "models.toml"
    file.write_text(f"[transformers.m]\n{text}", encoding="latin-1")
    with pytest.raises(InvalidInputError, match=r"models.toml: (no TOML|larger than 1 MiB)"):
        load_transformers(file)


def test_a_value_of_another_type_is_shown_in_short(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(f"[transformers.m]\nlayers = '{'x' * 10_000}'")
    with pytest.raises(InvalidInputError, match=r"transformers.m: layers: Expected `int`, got `str`") as found:
        load_transformers(file)
    assert len(str(found.value)) < 500


def test_a_model_that_nobody_knows() -> None:
    with pytest.raises(NotFoundError, match="no model 'gpt9'; there are bert_large"):
        find_transformer("gpt9", load_transformers())
    with pytest.raises(NotFoundError, match="no such file of models"):
        load_transformers("nowhere.toml")
    with pytest.raises(InvalidInputError, match="batch is 0; it must be 1 or more"):
        DecoderPass(0, 5)
