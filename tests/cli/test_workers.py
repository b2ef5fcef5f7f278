"""How many processes on how many machines: what the options mean together, and what cannot be."""

import argparse

import pytest

from windlass.cli.training.workers import (
    add_cluster,
    add_workers,
    check_served,
    elastic_job,
    laid_out,
    nodes_of,
    repeated,
)
from windlass.cluster.launch.rendezvous import Nodes
from windlass.spec.errors import AskedWrongly
from windlass.spec.job import Job
from windlass.spec.layout import Layout
from windlass.spec.sync import Sync


def args(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_workers(parser)
    add_cluster(parser)
    return parser.parse_args(words)


def job(**layout: int) -> Job:
    return Job(layout=Layout.model_validate(layout))


def test_workers_alone_divide_the_batch() -> None:
    assert laid_out(job(), None, 3, 1).layout == Layout(dp=3)


def test_workers_count_on_every_machine() -> None:
    assert laid_out(job(), None, 2, 2).layout.world == 4


def test_the_layout_of_the_job_stays() -> None:
    assert laid_out(job(tp=2), None, None, 1) == job(tp=2)
    assert laid_out(job(tp=2), None, 2, 1) == job(tp=2)


def test_a_given_layout_takes_its_place() -> None:
    assert laid_out(job(), "dp=2,tp=2", None, 1).layout == Layout(dp=2, tp=2)


@pytest.mark.parametrize(
    ("layout", "workers", "nodes", "reason"),
    [
        ("dp=2", 3, 1, "--workers 3 makes 3 processes, but layout dp=2 has 2"),
        ("dp=2", 2, 2, "--workers 2 on 2 machines makes 4 processes, but layout dp=2 has 2"),
        ("tp=3", None, 2, "which 2 machines cannot share equally"),
        (None, None, 2, "which 2 machines cannot share equally"),
        (None, 0, 1, "--workers 0: must be at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(
    layout: str | None, workers: int | None, nodes: int, reason: str
) -> None:
    with pytest.raises(AskedWrongly, match=reason):
        laid_out(job(), layout, workers, nodes)


def test_one_machine_needs_no_rendezvous() -> None:
    assert nodes_of(args()) == Nodes()


def test_a_machine_among_several_is_read_whole() -> None:
    words = ("--nodes", "3", "--node-rank", "2", "--rendezvous", "10.0.0.1:29400", "--patience", "5")
    assert nodes_of(args(*words)) == Nodes(3, 2, "10.0.0.1:29400", 5.0)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--nodes", "0"), "--nodes 0: must be at least 1"),
        (("--nodes", "2"), "needs --rendezvous"),
        (("--nodes", "2", "--rendezvous", "x"), "HOST:PORT"),
        (("--nodes", "2", "--node-rank", "2", "--rendezvous", "h:1"), "must be one of 0 to 1"),
        (("--node-rank", "1"), "must be one of 0 to 0"),
        (("--restarts", "-1"), "at least 0"),
        (("--spares", "1"), "--spares 1 needs --elastic"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(AskedWrongly, match=reason):
        nodes_of(args(*words))


def test_options_can_be_said_again() -> None:
    assert repeated(args()) == ""
    assert repeated(args("--workers", "2", "--restarts", "1")) == " --workers 2"


def test_options_of_an_elastic_run_can_be_said_again() -> None:
    words = ("--elastic", "--workers", "4", "--spares", "1")
    assert repeated(args(*words)) == " --elastic --workers 4 --spares 1"


def test_workers_of_an_elastic_run_are_its_layout_when_the_job_has_none() -> None:
    assert elastic_job(job(), args("--elastic", "--workers", "3"), None).layout == Layout(dp=3)


def test_an_elastic_run_may_have_other_workers_than_its_layout() -> None:
    assert elastic_job(job(tp=2), args("--elastic", "--workers", "6"), None).layout == Layout(tp=2)
    given = args("--elastic", "--workers", "6", "--layout", "dp=2,tp=2")
    assert elastic_job(job(), given, None).layout == Layout(dp=2, tp=2)


def test_an_elastic_run_that_continues_keeps_its_layout() -> None:
    assert elastic_job(job(), args("--elastic", "--workers", "1"), Layout(dp=4)).layout == Layout(dp=4)


def test_spares_are_those_of_the_option() -> None:
    assert elastic_job(job(), args("--elastic", "--spares", "2"), None).elastic.spares == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--restarts", "1"), "replaces failed workers itself"),
        (("--workers", "0"), "--workers 0: must be at least 1"),
        (("--spares", "-1"), "spares"),
    ],
)
def test_an_elastic_run_that_cannot_be_is_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(AskedWrongly, match=reason):
        elastic_job(job(), args("--elastic", *words), None)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--elastic",), "replaces the dead itself"),
        (("--restarts", "2"), "replaces the dead itself"),
        (("--nodes", "2", "--rendezvous", "10.0.0.1:29400"), "on one machine"),
        (("--backend", "ray"), "on one machine"),
        (("--backend", "local"), "its own supervisor"),
    ],
)
def test_parameter_servers_stay_on_one_machine_and_replace_the_dead_themselves(
    words: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(AskedWrongly, match=reason):
        check_served(args(*words), Job(sync=Sync(policy="server")))
    check_served(args("--workers", "3"), Job(sync=Sync(policy="server")))
