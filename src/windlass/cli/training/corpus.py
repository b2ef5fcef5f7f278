"""`windlass corpus`: build, show and measure corpora."""

from __future__ import annotations

import argparse
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.corpus.build import build_corpus, find_built, is_whole
from windlass.corpus.corpus_dir import PARTS, BuiltCorpus, load_corpus
from windlass.corpus.executor import Executor
from windlass.corpus.stats import draw_lengths
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import AskedWrongly, BadInput, NotFound
from windlass.spec.job import STDLIB, Job
from windlass.spec.read import job_from, read_job
from windlass.spec.units import format_bytes, format_count, format_seconds
from windlass.store.beam import RUNNERS, BeamRunner, check_beam, flag_of

EPILOG = """\
examples:
  windlass corpus build                                   Python's standard library, which needs no download
  windlass corpus build 'books/**/*.txt' --tokenizer char --split tail
  windlass corpus build poems.jsonl.zst --text-field text --vocabulary 16k
  windlass corpus build s3://bucket/crawl/*.parquet --text-field content
  windlass corpus build job.toml --set corpus.clean.duplicates=exact
  windlass corpus build books.jsonl --store s3://bucket/corpora
  windlass corpus build s3://bucket/crawl/*.parquet --runner flink --scratch s3://bucket/scratch \\
      --runner-option flink_master=host:8081
  windlass corpus stats CORPUS
  windlass corpus show CORPUS --documents 5 --part validation

CORPUS is a directory, the first letters of a corpus's name, or the job file that it was built from.
"""

# Options that each stand for one setting of the [corpus] table.
SETTINGS = {
    "format": ("corpus.format", "auto, text, code, jsonl or parquet (default: by the file name)"),
    "text-field": ("corpus.text_field", "field or column that holds the text (default: text)"),
    "document": ("corpus.document", "what one document is in a text file: file, paragraph or line"),
    "split": ("corpus.split", "hold out whole documents (hash) or the end of each (tail); default: auto"),
    "validation-share": ("corpus.validation_share", "share held out for validation (default: 0.05)"),
    "vocabulary": ("corpus.tokenizer.vocabulary", "size of a trained BPE, e.g. 16k (default: 8192)"),
    "duplicates": ("corpus.clean.duplicates", "which to drop: keep, exact or near (default: near)"),
    "min-chars": ("corpus.clean.min_chars", "drop documents shorter than this (default: 16)"),
    "store": ("corpus.store", "URL or absolute path that shares the corpus with other machines"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="build|show|stats")
    _configure_build(verbs.add_parser("build", help="build a corpus, unless it exists"))
    show = verbs.add_parser("show", help="print a few documents as training sees them")
    show.add_argument("--documents", type=int, default=3, metavar="N", help="how many (default: 3)")
    show.add_argument("--part", choices=PARTS, default="train", help="which part (default: train)")
    show.add_argument("--chars", type=int, default=800, help="max characters of each document (default: 800)")
    _finish(show, run_show)
    stats = verbs.add_parser("stats", help="count tokens, documents, lengths and what was dropped")
    stats.add_argument("--check", action="store_true", help="verify the digest of every byte")
    _finish(stats, run_stats)


def _configure_build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE|JOB.toml", help="files, directories, globs, URLs, or a job file"
    )
    parser.add_argument(
        "--tokenizer", metavar="bpe|char|FILE", help="train a tokenizer, or use a tokenizer.json"
    )
    for option, (_, purpose) in SETTINGS.items():
        parser.add_argument(f"--{option}", help=purpose)
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="TABLE.KEY=VALUE",
        action="append",
        default=[],
        help="change any setting, e.g. --set corpus.clean.similarity=0.7 (may be repeated)",
    )
    parser.add_argument("--processes", type=int, help="processes to use (default: one per core)")
    parser.add_argument(
        "--runner",
        choices=("pool", *RUNNERS),
        default="pool",
        help="where the work runs: local processes (pool), or a runner of Apache Beam (default: pool)",
    )
    parser.add_argument(
        "--runner-option", action="append", default=[], metavar="KEY=VALUE", help="passed on to Beam's runner"
    )
    parser.add_argument(
        "--scratch", metavar="URL", help="where Beam's workers write results; all of them must have access"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_home(parser)
    parser.set_defaults(run=run_build)


def _finish(parser: argparse.ArgumentParser, run: Any) -> None:
    parser.add_argument("corpus", metavar="CORPUS", help="directory, name or job file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_home(parser)
    parser.set_defaults(run=run)


def run_build(args: argparse.Namespace) -> int:
    if args.processes is not None and args.processes < 1:
        raise BadInput(f"--processes {args.processes}: must be at least 1")
    job, home, line = _job_of(args), home_of(args), ProgressLine(quiet=args.json)
    begin = time.monotonic()
    with _executor(args, home, line) as executor:
        path = build_corpus(job.corpus, home, line, args.processes, executor=executor)
    line.close()
    built = load_corpus(path)
    if args.json:
        print_json(_summary(built))
        return 0
    _print_summary(built)
    print(f"\n{path.name} is ready after {format_seconds(time.monotonic() - begin)}: {path}")
    return 0


@contextmanager
def _executor(args: argparse.Namespace, home: Path, line: ProgressLine) -> Iterator[Executor | None]:
    """Yield the Beam executor, or None for the local pool; remove its scratch files afterwards."""
    if args.runner == "pool":
        if args.runner_option or args.scratch:
            raise AskedWrongly("--runner-option and --scratch need --runner direct, flink, spark or dataflow")
        yield None
        return
    if args.runner != "direct" and args.scratch is None:
        raise AskedWrongly(
            f"--runner {args.runner}: needs --scratch, a directory that all workers can access",
            hint="example: --scratch s3://bucket/scratch",
        )
    check_beam("corpus build --runner")
    from windlass.corpus.on_beam import BeamExecutor

    log = home / "logs" / "corpus-beam.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    flags = tuple(flag_of(text) for text in args.runner_option)
    runner = BeamRunner(args.runner, args.processes or 1, str(log), flags)
    scratch = f"{(args.scratch or str(home / 'scratch')).rstrip('/')}/corpus-{secrets.token_hex(4)}"
    made = BeamExecutor(runner, scratch, line)
    try:
        yield made
    finally:
        made.close()


def run_stats(args: argparse.Namespace) -> int:
    built = load_corpus(_find(args.corpus, home_of(args)), thorough=args.check)
    if args.json:
        print_json(_summary(built))
        return 0
    _print_summary(built)
    print("\ntokens in a document")
    for line in draw_lengths(built.stats["lengths"]):
        print(line)
    return 0


def run_show(args: argparse.Namespace) -> int:
    if args.documents < 1 or args.chars < 1:
        raise BadInput("--documents and --chars must be at least 1")
    built = load_corpus(_find(args.corpus, home_of(args)))
    shown = [_document(built, args.part, i, args.chars) for i in _spread(built, args.part, args.documents)]
    if args.json:
        print_json(shown)
        return 0
    for document in shown:
        print(f"--- {document['id']} ({document['tokens']} tokens)")
        print(document["text"] + (" ..." if document["cut"] else ""))
    return 0


def _job_of(args: argparse.Namespace) -> Job:
    """Turn sources and options into a job, as if they were written in a job file."""
    given = {key: getattr(args, option.replace("-", "_")) for option, (key, _) in SETTINGS.items()}
    overrides = [f"{key}={value}" for key, value in given.items() if value is not None]
    overrides += _tokenizer(args.tokenizer)
    if len(args.sources) == 1 and args.sources[0].endswith(".toml"):
        return read_job(args.sources[0], [*overrides, *args.overrides])
    data = {"name": "corpus", "corpus": {"sources": args.sources or [STDLIB]}}
    return job_from(data, [*overrides, *args.overrides], "corpus build", Path.cwd())


def _tokenizer(wanted: str | None) -> list[str]:
    if wanted is None:
        return []
    if wanted in ("bpe", "char"):
        return [f"corpus.tokenizer.kind={json.dumps(wanted)}"]
    path = wanted if "://" in wanted else str(Path(wanted).expanduser().absolute())
    return ['corpus.tokenizer.kind="file"', f"corpus.tokenizer.path={json.dumps(path)}"]


def _find(name: str, home: Path) -> Path:
    """Return the corpus named by a path, the first letters of its name, or a job file."""
    if name.endswith(".toml"):
        path = find_built(read_job(name).corpus, home)
        if not is_whole(path):
            raise NotFound(
                f"{name}: its corpus is not built", hint=f"`windlass corpus build {name}` builds it"
            )
        return path
    if (Path(name) / "manifest.json").exists():
        return Path(name)
    folder = home / "corpora"
    known = sorted(p.name for p in folder.glob("*/") if is_whole(p)) if folder.exists() else []
    found = [known_name for known_name in known if name and known_name.startswith(name)]
    if len(found) == 1:
        return folder / found[0]
    reason = f"means more than one corpus: {', '.join(found)}" if found else "no such corpus"
    hint = "corpora: " + ", ".join(known) if known else "`windlass corpus build` makes one"
    raise NotFound(f"{name}: {reason}", hint=hint)


def _summary(built: BuiltCorpus) -> dict[str, Any]:
    parts = {
        name: {
            "tokens": len(built.part(name)),
            "documents": built.part(name).documents,
            "text_bytes": built.part(name).text_bytes,
        }
        for name in PARTS
    }
    return {
        "corpus": built.path.name,
        "path": str(built.path),
        "digest": built.digest,
        "store": None if built.cache is None else built.cache.origin.url,
        "sources": built.config["sources"],
        **built.stats,
        "parts": parts,
    }


def _print_summary(built: BuiltCorpus) -> None:
    stats = built.stats
    rows = [
        (name, built.part(name).documents, len(built.part(name)), format_bytes(built.part(name).text_bytes))
        for name in PARTS
    ]
    print_table(rows, ("part", "documents", "tokens", "text"))
    print()
    facts = {
        "files": stats["files"],
        "characters": format_count(stats["chars"]),
        "bytes per token": f"{stats['bytes_per_token']:.2f}",
        "vocabulary": f"{stats['vocabulary']}, of which {stats['vocabulary_used']} are used",
        "digest": built.digest[:16],
    }
    if built.cache is not None:
        origin = built.cache.origin
        facts["tokens at"] = origin.url
        facts["cached in"] = f"{origin.folder} ({origin.policy}, at most {format_bytes(origin.bytes)})"
    facts |= {f"dropped: {reason}": count for reason, count in stats["dropped"].items()}
    for fact, value in facts.items():
        print(f"{fact:<32}{value}")


def _spread(built: BuiltCorpus, part: str, wanted: int) -> list[int]:
    """Choose documents evenly from the whole part, including the first."""
    count = built.part(part).documents
    return [i * count // min(wanted, count) for i in range(min(wanted, count))]


def _document(built: BuiltCorpus, part: str, number: int, chars: int) -> dict[str, Any]:
    tokens = built.part(part).document(number)
    # A token is a few characters at most on average, so this many are enough to fill the line.
    text = built.tokenizer.decode(tokens[: chars + 1].tolist())
    return {
        "id": built.document_id(part, number),
        "part": part,
        "tokens": len(tokens),
        "text": text[:chars],
        "cut": len(text) > chars,
    }
