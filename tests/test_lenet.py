"""A training step of LeNet, simulated with each algorithm of convolution, gives the values that PyTorch computes."""

from collections.abc import Mapping

import numpy as np
import pytest

from profilers.errors import InvalidInputError
from replay.detailed import LaunchPlan
from replay.studies.lenet import ALGORITHMS, CONVOLUTIONS, LEARNING_RATE, LINEARS, lenet_plan

Arrays = Mapping[str, np.ndarray]
PARAMETERS = [f"{layer.name}_{kind}" for layer in (*CONVOLUTIONS, *LINEARS) for kind in ("weight", "bias")]


def lenet_reference(plan: LaunchPlan) -> dict[str, np.ndarray]:
    """Return the buffers after a training step, as PyTorch computes it on the CPU from the plan's initial buffers."""
    torch = pytest.importorskip("torch", reason="PyTorch computes the reference")
    functional = torch.nn.functional
    leaves = {name: torch.tensor(plan.buffers[name]).requires_grad_() for name in PARAMETERS}
    values, x = {}, torch.tensor(plan.buffers["images"])
    for name in ("conv1", "conv2"):
        x = values[f"{name}_output"] = functional.conv2d(x, leaves[f"{name}_weight"], leaves[f"{name}_bias"])
        x = values[f"{name}_pool"] = functional.max_pool2d(x, 2)
    x = values["fc1_output"] = functional.linear(x.flatten(1), leaves["fc1_weight"], leaves["fc1_bias"])
    x = values["relu_output"] = functional.relu(x)
    x = values["fc2_output"] = functional.linear(x, leaves["fc2_weight"], leaves["fc2_bias"])
    loss = functional.cross_entropy(x, torch.tensor(plan.buffers["labels"], dtype=torch.int64))
    for value in values.values():
        value.retain_grad()
    loss.backward()
    results = {"loss": loss.reshape(1), "probabilities": functional.softmax(x, 1), **values}
    results |= {f"{name}_gradient": value.grad for name, value in (values | leaves).items()}
    results |= {name: leaf - LEARNING_RATE * leaf.grad for name, leaf in leaves.items()}
    return {name: result.detach().numpy() for name, result in results.items()}


def relative_errors(outputs: Arrays, reference: Arrays) -> dict[str, float]:
    """Return the largest difference of each buffer over the largest value of its reference."""
    errors = {name: np.abs(outputs[name].reshape(value.shape) - value).max() for name, value in reference.items()}
    return {name: float(error / np.abs(reference[name]).max()) for name, error in errors.items()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_simulated_step_gives_the_values_of_pytorch(algorithm: str) -> None:
    plan = lenet_plan(algorithm, batch=2)
    reference = lenet_reference(plan)
    from replay.detailed.timing.simulation import simulate_plan

    outputs = simulate_plan(plan).outputs
    assert set(reference) <= set(outputs)
    errors = relative_errors(outputs, reference)
    assert {name: error for name, error in errors.items() if not error <= 1e-4} == {}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_launches_name_buffers_and_entries_that_exist(algorithm: str) -> None:
    plan = lenet_plan(algorithm)
    written = set()
    for call in plan.calls:
        assert f".entry {call.entry}(" in call.ptx.read_text()
        assert 64 <= call.block[0] <= 256
        names = {name for name in call.arguments if isinstance(name, str)}
        assert names <= set(plan.buffers)
        written |= names
    assert written == set(plan.buffers)


def test_the_forward_pass_alone_stops_at_the_loss() -> None:
    plan = lenet_plan("gemm", batch=3, backward=False)
    assert plan.calls[-1].entry == "softmax_loss"
    assert not any(name.endswith("_gradient") for name in plan.buffers)
    assert plan.buffers["images"].shape == (3, 1, 28, 28)


def test_a_plan_is_the_same_for_the_same_seed() -> None:
    first, again, other = (lenet_plan("fft", seed=seed).buffers["conv2_weight"] for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_an_unknown_algorithm_or_an_empty_batch_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="unknown algorithm 'direct'; the algorithms are gemm, implicit_gemm"):
        lenet_plan("direct")
    with pytest.raises(InvalidInputError, match="batch 0: needs at least one image"):
        lenet_plan("gemm", batch=0)
