"""The comparison with hmmlearn, in short."""

import pytest

from windlass.lab.torch.hmm_bench import HmmProblem, HmmRun, bench_hmm, figures_of


def test_figures_compare_times_and_every_iteration() -> None:
    found = {
        "float32": HmmRun([-100.0, -90.0], 0.5),
        "float64": HmmRun([-100.0, -99.0], 1.0),
        "hmmlearn": HmmRun([-100.0, -99.0], 4.0),
    }
    figures = figures_of(HmmProblem(2, 3, 10, 5), found)
    assert figures["k2_v3_float32_vs_hmmlearn"] == 8
    assert figures["k2_v3_float64_difference"] == 0
    assert figures["k2_v3_float32_difference"] == pytest.approx(1 / 11)
    assert figures["k2_v3_float64_tokens_per_s"] == 50


@pytest.mark.slow
def test_a_small_problem_ends_where_hmmlearn_does() -> None:
    pytest.importorskip("hmmlearn")
    figures = bench_hmm(1, (HmmProblem(4, 512, 16, 32),))["figures"]
    assert figures["k4_v512_float64_difference"] < 1e-12
    assert figures["k4_v512_float32_difference"] < 1e-6
