"""Synthetic steps of serving: what `characterize` says of them, and other requests against direct synthesis."""

from dataclasses import dataclass

import pytest

from profilers.devices import find_device
from profilers.trace import Trace
from profilers.trace.serving import PhaseTokens, ServingStep, parse_serving_step, serving_steps
from profilers.trace.steps import step_times
from replay.costs.shipped import load_parameters
from replay.workloads import InferenceJob, Layout, Transformer, inference_trace, load_transformers
from seqpoint import characterize, project

H100, PARAMETERS = find_device("H100"), load_parameters()
ALONE, PAIR = Layout(), Layout(2)
EXPERTS = Transformer(
    "experts", "llama", 4, 2048, 16, 8192, 32000, experts=8, kv_heads=4, experts_per_token=2, expert_feedforward=2048
)


@dataclass(frozen=True)
class Case:
    """A step that is synthesized, and changed by what-ifs."""

    phase: str
    batch: int
    length: int
    model: Transformer | None = None
    layout: Layout = ALONE

    def job(self) -> InferenceJob:
        model = self.model or load_transformers()["llama31_8b"]
        return InferenceJob(model, self.phase, self.batch, self.length, layout=self.layout)

    def trace(self) -> Trace:
        return inference_trace(self.job(), H100, parameters=PARAMETERS)


@pytest.mark.parametrize(
    ("case", "tokens", "context", "experts"),
    [
        (Case("decode", 32, 1024), 32, 1025, 0),
        (Case("prefill", 4, 1024), 4096, 1024, 0),
        (Case("decode", 32, 512, EXPERTS, PAIR), 32, 513, 4),
        (Case("prefill", 2, 512, EXPERTS, Layout(1, 2, expert=2)), 1024, 512, 4),
    ],
    ids=["decode", "prefill", "decode of experts", "prefill of shared experts"],
)
def test_a_synthetic_step_has_a_row_of_its_phase(case: Case, tokens: int, context: int, experts: int) -> None:
    trace, job = case.trace(), case.job()
    (row,) = (result := characterize(trace)).serving
    assert (row.phase, row.steps, row.requests, row.tokens, row.kv_tokens) == (
        case.phase, 1, case.batch, tokens, context
    )  # fmt: skip
    assert row.known_share > (0.93 if experts else 0.99)
    assert row.tokens_per_s == pytest.approx(1e9 * tokens / step_times(trace).step_ns[0], rel=1e-6)
    text = "\n".join(str(table) for table in result.tables())
    assert "Steps of serving by phase" in text
    named = [name for name in trace.ops["name"].to_pylist() if name == "vllm::inplace_fused_experts"]
    assert len(named) == experts * job.layout.tensor


@pytest.mark.parametrize(
    ("case", "what_ifs", "direct", "limit"),
    [
        (Case("decode", 32, 1024), ["batch:64"], Case("decode", 64, 1024), 0.005),
        (Case("decode", 32, 1024), ["batch:8"], Case("decode", 8, 1024), 0.005),
        (Case("decode", 32, 1024), ["context:8192"], Case("decode", 32, 8191), 0.005),
        (Case("decode", 32, 1024), ["batch:64+context:8192"], Case("decode", 64, 8191), 0.005),
        (Case("prefill", 4, 1024), ["context:4096"], Case("prefill", 4, 4096), 0.005),
        (Case("prefill", 4, 1024), ["batch:1"], Case("prefill", 1, 1024), 0.005),
        (Case("decode", 32, 512, EXPERTS), ["batch:128"], Case("decode", 128, 512, EXPERTS), 0.02),
        (Case("decode", 32, 512, EXPERTS, PAIR), ["batch:64"], Case("decode", 64, 512, EXPERTS, PAIR), 0.02),
    ],
    ids=lambda value: "" if isinstance(value, Case | float) else value[0],
)
def test_other_requests_take_the_time_of_direct_synthesis(
    case: Case, what_ifs: list[str], direct: Case, limit: float
) -> None:
    (row,) = project(case.trace(), what_ifs).to_dict()["rows"]
    assert row["projected_ns"] == pytest.approx(float(step_times(direct.trace()).step_ns[0]), rel=limit)


def test_the_annotation_states_exact_sums() -> None:
    steps = [
        ServingStep(PhaseTokens.equal(4, 1024, 1024)),
        ServingStep(decode=PhaseTokens.equal(32, 1, 1 << 40)),
        ServingStep(PhaseTokens.equal(2, 100, 300), PhaseTokens.equal(3, 1, 50)),
    ]
    assert [parse_serving_step(step.annotation()) for step in steps] == steps
    found = serving_steps(Case("prefill", 4, 1024).trace())
    assert found.steps == (ServingStep(PhaseTokens(4, 4096, 4096, 4 * 1024**2, 4 * 1024**2)),)
