import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.plan.local.machine import MachineFacts, measure_machine
from windlass.plan.memory import training_bytes
from windlass.plan.search import CorpusFacts, build_shape, choose_micro_batch, plan_run
from windlass.spec.errors import BadInput, BadJob
from windlass.spec.job import Job
from windlass.spec.layout import check_layout, parse_layout

MACHINE = MachineFacts(cores=2, memory_bytes=8 << 30, peak_flops=1e11, has_compiler=True)
CORPUS = CorpusFacts(path="c", digest="d", vocabulary=4096, train_tokens=9_000_000, validation_tokens=400_000)


def job(**tables: object) -> Job:
    return Job.model_validate(tables)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("seconds", [10.0, 180.0, 3600.0])
def test_nothing_is_left_open(family: str, seconds: float) -> None:
    run = plan_run(job(model={"family": family}, train={"time": seconds}), CORPUS, MACHINE)
    assert run.shape.family == family
    assert run.batch_sequences % run.micro_batch_sequences == 0
    assert run.predicted.memory_bytes <= MACHINE.memory_bytes
    assert run.warmup_steps < run.steps
    assert run.predicted.seconds == pytest.approx(seconds, rel=0.2)


def test_more_time_buys_a_larger_model_and_a_smaller_loss() -> None:
    runs = [plan_run(job(train={"time": s}), CORPUS, MACHINE) for s in (30.0, 600.0, 36000.0)]
    sizes = [run.shape.parameters for run in runs]
    losses = [run.predicted.loss for run in runs]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert losses == sorted(losses, reverse=True)


def test_a_wanted_number_of_weights_is_met_nearly() -> None:
    run = plan_run(job(model={"parameters": "15M"}, train={"steps": 10}), CORPUS, MACHINE)
    assert run.shape.parameters == pytest.approx(15e6, rel=0.35)


def test_what_the_job_states_stays() -> None:
    spec = job(
        model={"layers": 3, "width": 48, "heads": 3, "context": 64, "ffn_width": 100},
        train={
            "steps": 77,
            "batch_sequences": 6,
            "micro_batch_sequences": 3,
            "learning_rate": 0.5,
            "warmup_steps": 5,
        },
    )
    run = plan_run(spec, CORPUS, MACHINE)
    assert (run.shape.layers, run.shape.width, run.shape.heads, run.shape.context) == (3, 48, 3, 64)
    assert (run.steps, run.batch_sequences, run.micro_batch_sequences) == (77, 6, 3)
    assert (run.learning_rate, run.warmup_steps) == (0.5, 5)


def test_a_token_budget_is_met() -> None:
    run = plan_run(job(model={"parameters": "1M"}, train={"tokens": "3M"}), CORPUS, MACHINE)
    assert run.steps * run.tokens_per_step == pytest.approx(3e6, rel=0.05)


def test_compiling_is_left_out_where_it_cannot_pay() -> None:
    short = job(model={"parameters": "5M"}, train={"time": 30.0})
    long = job(model={"parameters": "5M"}, train={"time": 36000.0})
    assert not plan_run(short, CORPUS, MACHINE).compile
    assert plan_run(long, CORPUS, MACHINE).compile
    no_compiler = MachineFacts(2, 8 << 30, 1e11, has_compiler=False)
    assert not plan_run(long, CORPUS, no_compiler).compile


def test_a_model_that_does_not_fit_says_what_it_needs_and_what_is_free() -> None:
    with pytest.raises(BadInput, match=r"needs .* GiB, and 8\.0 GiB is free"):
        plan_run(job(model={"layers": 48, "width": 4096}, train={"steps": 1}), CORPUS, MACHINE)


def test_too_little_text_is_said() -> None:
    little = CorpusFacts("c", "d", 100, train_tokens=5000, validation_tokens=10)
    with pytest.raises(BadInput, match="validation text has 10 tokens"):
        plan_run(job(model={"context": 64}), little, MACHINE)


def test_sizes_that_do_not_divide_are_the_jobs_fault() -> None:
    with pytest.raises(BadJob, match="head width 33 is odd"):
        plan_run(job(model={"layers": 2, "width": 33}), CORPUS, MACHINE)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 512), st.integers(28, 36))
def test_the_micro_batch_divides_the_batch_and_fits(batch: int, memory_bits: int) -> None:
    shape = build_shape(job(), 4096, 256)
    micro = choose_micro_batch(shape, batch, 1 << memory_bits)
    assert batch % micro == 0
    assert micro == 1 or training_bytes(shape, micro) <= (1 << memory_bits) / 2


def test_this_machine_can_be_measured() -> None:
    facts = measure_machine()
    assert facts.cores >= 1
    assert facts.peak_flops > 1e8
    assert facts.memory_bytes > 1 << 20


@pytest.mark.parametrize(
    "layout",
    ["dp=2", "sharded=3", "tp=2", "tp=4,dp=3", "pp=3,dp=2", "pp=2,schedule=zbv,virtual=2", "dp=2,shares=2:1"],
)
def test_what_the_planner_chooses_suits_the_layout(layout: str) -> None:
    wanted = parse_layout(layout)
    run = plan_run(job(train={"time": 20}, layout=wanted.model_dump()), CORPUS, MACHINE)
    check_layout(wanted, run.shape, run.batch_sequences, run.micro_batch_sequences)
