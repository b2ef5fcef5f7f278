from pathlib import Path

import pytest

from windlass.spec.errors import BadJob, NotFound
from windlass.spec.read import read_job


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return path


def message(tmp_path: Path, text: str) -> str:
    with pytest.raises(BadJob) as caught:
        read_job(write(tmp_path, text))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_an_empty_file_is_a_whole_job(tmp_path: Path) -> None:
    job = read_job(write(tmp_path, ""))
    assert job.name == "job"
    assert job.corpus.sources == ("python:stdlib",)


def test_a_misspelt_key_names_file_table_key_and_the_nearest_right_name(tmp_path: Path) -> None:
    told = message(tmp_path, "[train]\nbatch_sequence = 4\n")
    assert "job.toml: [train] unknown key 'batch_sequence'" in told
    assert "did you mean 'batch_sequences'?" in told


def test_a_misspelt_table_names_the_nearest_right_one(tmp_path: Path) -> None:
    told = message(tmp_path, "[trian]\nsteps = 4\n")
    assert "unknown key 'trian'" in told
    assert "did you mean 'train'?" in told


def test_a_key_of_an_inner_table_is_found_in_that_table(tmp_path: Path) -> None:
    told = message(tmp_path, "[corpus.tokenizer]\nvocabluary = 300\n")
    assert "[corpus.tokenizer] unknown key 'vocabluary'" in told
    assert "did you mean 'vocabulary'?" in told


def test_a_wrong_unit_says_which_units_there_are(tmp_path: Path) -> None:
    told = message(tmp_path, '[train]\ntime = "3 fortnights"\n')
    assert "[train] time" in told
    assert "unknown unit 'fortnights'" in told


def test_a_unit_in_the_wrong_case_names_the_right_one(tmp_path: Path) -> None:
    assert "did you mean '3m'?" not in message(tmp_path, '[train]\ntime = "3Z"\n')
    assert "did you mean '3h'?" in message(tmp_path, '[train]\ntime = "3H"\n')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[model]\nfamily = "lama"\n', "did you mean 'llama'?"),
        ("[model]\nlayers = 4\nwidth = 130\nheads = 4\n", "width 130 is not a multiple of heads 4"),
        ("[model]\nlayers = 4\n", "layers and width go together"),
        ('[model]\nfamily = "gpt2"\nkv_heads = 2\n', "kv_heads does not go with family"),
        ('[model]\nfamily = "bert"\n[train]\nobjective = "causal"\n', "use 'masked'"),
        ("[train]\nsteps = 5\ntokens = 100\n", "not steps and tokens together"),
        ("[train]\nsteps = 0\n", "[train] steps: 0"),
        ("[train]\nbatch_sequences = 5\nmicro_batch_sequences = 2\n", "not a multiple"),
        ("[train]\nsteps = 'many'\n", "[train] steps: 'many'"),
        ("[corpus]\nsources = []\n", "at least one"),
        ("[corpus]\nsources = [3]\n", "[corpus] sources[0]"),
        ('[corpus.tokenizer]\nkind = "file"\n', "needs path"),
        ('name = "Two Words"\n', "may hold only a-z"),
        ("train = 3\n", "[train]"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in message(tmp_path, text)


@pytest.mark.parametrize("url", ["postgresql://ada:hush@db/x", "postgresql://db/x?user=ada&password=hush"])
def test_a_password_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    told = message(tmp_path, f'[serve]\nstate = "{url}"\n')
    assert "[serve] state has a password" in told
    assert "hush" not in told


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    told = message(tmp_path, "[train]\nstepz = 5\n[model]\nwidht = 3\n")
    assert "stepz" in told
    assert "widht" in told


def test_broken_toml_names_the_line(tmp_path: Path) -> None:
    assert "line 2" in message(tmp_path, "name = 'x'\nsteps == 3\n")


def test_a_binary_file_is_not_a_job(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadJob, match="not UTF-8"):
        read_job(path)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="windlass init"):
        read_job(tmp_path / "none.toml")


def test_paths_are_relative_to_the_job_file(tmp_path: Path) -> None:
    job = read_job(write(tmp_path, '[corpus]\nsources = ["a.txt", "s3://bucket/b", "python:stdlib"]\n'))
    assert job.corpus.sources == (str(tmp_path / "a.txt"), "s3://bucket/b", "python:stdlib")


def test_an_override_wins_and_is_checked_like_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[train]\nsteps = 5\n")
    assert read_job(path, ["train.steps=7"]).train.steps == 7
    assert read_job(path, ["name=other"]).name == "other"
    with pytest.raises(BadJob, match="stepz"):
        read_job(path, ["train.stepz=7"])
    with pytest.raises(BadJob, match=r"table\.key=value"):
        read_job(path, ["train.steps"])


def test_a_job_cannot_be_changed_once_read(tmp_path: Path) -> None:
    job = read_job(write(tmp_path, ""))
    with pytest.raises(ValueError, match="frozen"):
        job.name = "other"  # type: ignore[misc]
