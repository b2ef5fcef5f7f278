"""transformers: its own continuous batching, one manager for all tasks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from conversation import Asked, converse
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaForCausalLM

PAGE_TOKENS = 256


class Transformers:
    """A manager schedules in a thread of its own, and notes the time of every token."""

    def __init__(self, job: dict[str, Any], model: Path) -> None:
        torch.set_num_threads(job["threads"])
        self.version = transformers.__version__
        self.setting = "continuous batching, sdpa"
        loaded = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
        config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        # By itself it would fill most of the memory with zeros, and hang for want of a GPU's kernel.
        pages = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=4 * job["slots"],
            max_batch_tokens=job["context"],
            auto_switch_to_flash=False,
        )
        self._manager = loaded.eval().init_continuous_batching(
            generation_config=config, continuous_batching_config=pages
        )
        self._manager.start()

    def answer(self, requests: list[Asked], output: int, concurrency: int) -> None:
        waiting, running = list(reversed(requests)), {}
        while waiting or running:
            while waiting and len(running) < concurrency:
                request = waiting.pop()
                request.sent_s = time.monotonic()
                name = self._manager.add_request(
                    request.prompt, max_new_tokens=output, record_timestamps=True
                )
                running[name] = request
            result = self._manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                request = running.pop(result.request_id)
                # Of perf_counter, which on Linux is the clock of time.monotonic.
                request.tokens, request.times_s = list(result.generated_tokens), list(result.timestamps)
            elif result is None and not self._manager.is_running():
                raise RuntimeError("the manager ended")


if __name__ == "__main__":
    converse(Transformers)
