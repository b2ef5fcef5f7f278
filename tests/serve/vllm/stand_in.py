#!/usr/bin/env python3
"""A stand-in for the `vllm` program: the same command line and HTTP protocol, no model.

`stand_in.py serve DIR --host H --port P ...` answers /health, /v1/models and /v1/completions as vLLM's
server does. An answer repeats the prompt; the n-th token's log-probability is -n. The file `script.json`
in the model directory says what goes wrong: {"start": "crash" | "slow", "answer": "garbage" | "die" |
"error" | "cut" | "stop"}. Requests, and whether their client left, are written to `heard.jsonl` there.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def options(argv):
    return {argv[i]: argv[i + 1] for i in range(len(argv) - 1) if argv[i].startswith("--")}


FOLDER = Path(sys.argv[2])
GIVEN = options(sys.argv[3:])
BEGAN = time.monotonic()


def script():
    file = FOLDER / "script.json"
    return json.loads(file.read_text()) if file.exists() else {}


def note(entry):
    with (FOLDER / "heard.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


def logprobs_of(tokens, most, first):
    own = [None if first and n == 0 else -float(n) for n in range(len(tokens))]
    top = [{f"token_id:{(t + k) % 100}": -float(n + k) for k in range(most)} for n, t in enumerate(tokens)]
    return {
        "tokens": [f"token_id:{t}" for t in tokens],
        "token_logprobs": own,
        "top_logprobs": [None if own[n] is None else top[n] for n in range(len(tokens))],
        "text_offset": [0] * len(tokens),
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/health":
            loading = script().get("start") == "slow" and time.monotonic() - BEGAN < 1.0
            return self.reply(503 if loading else 200, None)
        if self.headers.get("authorization") != f"Bearer {os.environ['VLLM_API_KEY']}":
            return self.reply(401, {"error": "Unauthorized"})
        return self.reply(200, {"object": "list", "data": [{"id": "base", "max_model_len": 64}]})

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["content-length"])))
        note({"ask": ask})
        if any(token >= 100 for token in ask["prompt"]):
            message = "Token id 100 is out of vocabulary"
            return self.reply(400, {"error": {"message": message, "type": "BadRequestError", "code": 400}})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.answer(ask)
        except (BrokenPipeError, ConnectionResetError):
            note({"left": ask["prompt"]})

    def answer(self, ask):
        wrong = script().get("answer")
        most = ask["max_tokens"]
        echo = ask.get("echo")
        for n in range(max(1, most)):
            if n == 2 and wrong == "die":
                os._exit(7)
            if n == 2 and wrong == "cut":
                return
            if n == 2 and wrong == "garbage":
                self.event("{not json")
                return
            if n == 2 and wrong == "error":
                self.event(json.dumps({"error": {"message": "CUDA out of memory", "code": 500}}))
                break
            token = ask["prompt"][n % len(ask["prompt"])]
            stops = wrong == "stop" and n == 2
            token = ask["stop_token_ids"][0] if stops else token
            choice = {"index": 0, "text": "?", "token_ids": [token], "stop_reason": None, "logprobs": None}
            scored = [*ask["prompt"], token] if echo and n == 0 else [token]
            if ask.get("logprobs") is not None:
                choice["logprobs"] = logprobs_of(scored, ask["logprobs"], bool(echo) and n == 0)
            choice["finish_reason"] = "stop" if stops else "length" if n >= most - 1 else None
            self.event(json.dumps({"id": "cmpl-1", "object": "text_completion", "choices": [choice]}))
            if stops:
                break
            if wrong == "slow":
                time.sleep(0.05)
        self.event("[DONE]")

    def event(self, data):
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def reply(self, status, body):
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    assert sys.argv[1] == "serve"
    note({"command": sys.argv[1:], "pid": os.getpid()})
    if script().get("start") == "crash":
        sys.exit("RuntimeError: no GPU was found")
    ThreadingHTTPServer((GIVEN["--host"], int(GIVEN["--port"])), Handler).serve_forever()
