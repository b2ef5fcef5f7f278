"""`windlass models`: list, show, import, export, compress, promote, roll back and delete models."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from windlass.cli.home import add_home, home_of
from windlass.cli.serving.models_import import configure_import, run_import
from windlass.cli.serving.models_near import configure_near, run_near
from windlass.cli.terminal import print_json, print_table
from windlass.registry.compress import WEIGHTS, CompressRequest, compress
from windlass.registry.import_export import convert, give_arpa, give_gguf, is_arpa
from windlass.registry.versions import Registry, Version, resolve_model
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput, InUse
from windlass.spec.units import format_bytes, format_count
from windlass.store.manifest import verify
from windlass.store.store_dir import StoreDir

EPILOG = """\
examples:
  windlass models list
  windlass models import path/to/huggingface-model --name base
  windlass models import chat.Q4_K_M.gguf --name chat a model as llama.cpp runs it
  windlass models import hf:Qwen/Qwen3-0.6B           from the Hugging Face Hub; ms: from ModelScope
  windlass models import words.arpa.gz --name words   an n-gram model as KenLM or SRILM writes it
  windlass models export words out.arpa               and back
  windlass models export chat out.gguf --type q4_k    a file for llama.cpp
  windlass models import path/to/peft-adapter --name poet --adapter-of base
  windlass models export base@1 out/                  Hugging Face files: config.json, safetensors, tokenizer
  windlass models compress base@1 --weights int8      base@2, a quarter of the size; prints the quality loss
  windlass models promote base@2                      base@prod is now version 2, base@previous what it was
  windlass models rollback base
  windlass models near base king
"""


GGUF_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_k")
COMPRESS_EPILOG = """\
Without --calibrate, int4 is calibrated on the training part of the model's own corpus, if it exists here.
Without --text, perplexity is measured on the held-out part of that corpus, else on Python's standard library.

examples:
  windlass models compress base --weights int8
  windlass models compress base@3 --weights int4 --calibrate notes.txt --name base-small
  windlass models compress base --weights bfloat16 --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, action, purpose in (
        ("list", run_list, "list models and their versions"),
        ("show", run_show, "show a version: sizes, metrics, lineage"),
        ("import", run_import, "register a model from a directory, file, archive, URL or hub"),
        ("export", run_export, "write a version as a Hugging Face directory, a GGUF file, or an ARPA file"),
        ("near", run_near, "list the tokens with the nearest embedding vectors"),
        ("compress", run_compress, "quantise a model and measure the loss of quality"),
        ("promote", run_promote, "make a version @prod"),
        ("rollback", run_rollback, "make @previous @prod again"),
        ("delete", run_delete, "remove a version that nothing uses"),
    ):
        verb = verbs.add_parser(
            name,
            help=purpose,
            description=purpose[0].upper() + purpose[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == "import":
            configure_import(verb)
        elif name != "list":
            verb.add_argument("model", metavar="MODEL", help="NAME, NAME@VERSION or NAME@ALIAS")
        if name == "export":
            verb.add_argument(
                "target",
                type=Path,
                metavar="TARGET",
                help="a new directory; or a new file .gguf, or .arpa or .arpa.gz (n-gram models)",
            )
            verb.add_argument(
                "--type", choices=GGUF_TYPES, help="number format of a .gguf file's matrices (default: f16)"
            )
            verb.add_argument(
                "--pre",
                metavar="NAME",
                help="pre-tokenizer that a .gguf file states where the model's own has no name in llama.cpp",
            )
        elif name == "compress":
            _configure_compress(verb)
        elif name == "near":
            configure_near(verb)
        if name in ("import", "export"):
            verb.add_argument(
                "--dequantise", action="store_true", help="write int8 and int4 weights as float32"
            )
        add_home(verb)
        verb.add_argument("--json", action="store_true", help="print JSON")
        verb.set_defaults(run=action)


def _configure_compress(verb: argparse.ArgumentParser) -> None:
    verb.epilog = COMPRESS_EPILOG
    verb.add_argument("--weights", choices=WEIGHTS, required=True, help="format of the weight matrices")
    verb.add_argument("--calibrate", metavar="TEXT", help="text or corpus for calibration")
    verb.add_argument("--text", metavar="TEXT", help="held-out text or corpus to measure perplexity on")
    verb.add_argument("--name", help="name to register under (default: the model's, as its next version)")


def run_list(args: argparse.Namespace) -> int:
    registry = Registry(home_of(args))
    versions = [version for name in registry.names() for version in registry.versions(name)]
    if args.json:
        print_json([version.facts() for version in versions])
        return 0
    if not versions:
        print("no models yet; `windlass train` and `windlass models import` register them")
        return 0
    print_table(
        [
            (
                str(v),
                " ".join(f"@{a}" for a in v.aliases),
                v.lineage.get("shape", {}).get("family", v.manifest.meta.get("family", "")),
                format_count(v.lineage.get("parameters", 0)),
                f"{v.lineage['metrics']['loss']:.3f}" if v.lineage.get("metrics") else "",
                v.precision,
                format_bytes(v.manifest.bytes),
                v.registered,
            )
            for v in versions
        ],
        ("model", "aliases", "family", "weights", "loss", "precision", "size", "registered"),
    )
    return 0


def run_show(args: argparse.Namespace) -> int:
    version = Registry(home_of(args)).find(args.model)
    print_json({**version.facts(), "lineage": version.lineage, "files": sorted(version.manifest.files)})
    return 0


def run_export(args: argparse.Namespace) -> int:
    home = home_of(args)
    _, path, _ = resolve_model(home, args.model)
    if args.target.exists():
        raise InUse(f"{args.target}: exists already", hint="give a directory that does not exist yet")
    verify(StoreDir(path))
    is_gguf = args.target.name.endswith(".gguf")
    if (args.type or args.pre) and not is_gguf:
        raise BadInput("--type and --pre are for GGUF files", hint="name a target that ends in .gguf")
    if is_gguf:
        written = give_gguf(path, args.target.absolute(), home / "logs", args.type or "f16", args.pre)
        print_json(written) if args.json else print(
            f"wrote {args.target} ({args.type or 'f16'}, {format_bytes(written['bytes'])})"
        )
        return 0
    if is_arpa(args.target):
        written = give_arpa(path, args.target.absolute(), home / "logs")
        print_json(written) if args.json else print(f"wrote {args.target}")
        return 0
    try:
        convert(path, args.target.absolute(), home / "logs", dequantise=args.dequantise)
    except BaseException:
        shutil.rmtree(args.target, ignore_errors=True)
        raise
    if args.json:
        print_json(
            {"path": str(args.target.absolute()), "files": sorted(p.name for p in args.target.iterdir())}
        )
    else:
        print(f"wrote {args.target}")
    return 0


def run_compress(args: argparse.Namespace) -> int:
    line = ProgressLine(quiet=args.json)
    wanted = CompressRequest(args.weights, args.calibrate, args.text, args.name)
    version = compress(home_of(args), args.model, wanted, line)
    line.close()
    facts = version.lineage["compressed"]
    if args.json:
        print_json({**version.facts(), "compressed": facts})
        return 0
    smaller = facts["bytes_before"] / facts["bytes_after"]
    print(f"registered as {version}, {facts['weights']} made from {facts['from']} ({facts['was']})")
    print(
        f"weights     {format_bytes(facts['bytes_before'])} -> {format_bytes(facts['bytes_after'])}"
        f"  ({smaller:.2f} times smaller)"
    )
    if "after" not in facts:
        print("perplexity  not measured: the model has no tokenizer.json")
        return 0
    before, after = facts["before"]["perplexity"], facts["after"]["perplexity"]
    print(
        f"perplexity  {before:.4f} -> {after:.4f}  ({after / before - 1:+.2%}, on {facts['after']['tokens']} "
        f"held-out tokens of {Path(facts['measured_on']).name})"
    )
    return 0


def run_promote(args: argparse.Namespace) -> int:
    return _print_alias(args, Registry(home_of(args)).promote(args.model), "@prod is now")


def run_rollback(args: argparse.Namespace) -> int:
    return _print_alias(
        args, Registry(home_of(args)).roll_back(args.model.partition("@")[0]), "@prod is again"
    )


def run_delete(args: argparse.Namespace) -> int:
    return _print_alias(args, Registry(home_of(args)).delete(args.model), "deleted")


def _print_alias(args: argparse.Namespace, version: Version, what: str) -> int:
    if args.json:
        print_json(version.facts())
    else:
        print(f"{what} {version}")
    return 0
