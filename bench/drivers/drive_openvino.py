"""OpenVINO GenAI: its continuous batching pipeline, fed with token ids.

float32 computes in f32 with keys and values in f32; int8 has weights compressed to int8 and everything else
as OpenVINO chooses.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from conversation import Asked, converse

FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
CACHE_GB = 2


def convert(job: dict[str, Any], target: Path) -> None:
    """Export with optimum-intel; nothing is fetched."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig, OVWeightQuantizationConfig

    int8 = OVConfig(quantization_config=OVWeightQuantizationConfig(bits=8, sym=False))
    main_export(
        job["model"],
        target,
        task="text-generation-with-past",
        ov_config=int8 if job["precision"] == "int8" else OVConfig(dtype="fp32"),
    )


class OpenVino:
    """The pipeline; after each step what came is read from every request's handle."""

    def __init__(self, job: dict[str, Any], model: Path) -> None:
        import openvino
        import openvino_genai

        self._genai, self._tensor = openvino_genai, openvino.Tensor
        properties = {"INFERENCE_NUM_THREADS": job["threads"], "PERFORMANCE_HINT": "LATENCY"}
        properties |= FLOAT32 if job["precision"] == "float32" else {}
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_seqs = job["slots"]
        scheduler.max_num_batched_tokens = 4096
        self.version = openvino_genai.__version__
        self.setting = ", ".join(f"{key} {value}" for key, value in properties.items())
        self._pipe = openvino_genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", properties)
        self._asked = 0

    def answer(self, requests: list[Asked], output: int, concurrency: int) -> None:
        waiting = list(reversed(requests))
        running: list[tuple[Asked, Any]] = []
        while waiting or running:
            while waiting and len(running) < concurrency:
                running.append(self._ask(waiting.pop(), output))
            self._pipe.step()
            for request, handle in running:
                if handle.can_read():
                    for token in next(iter(handle.read().values())).generated_ids:
                        request.came(token)
            running = [(request, handle) for request, handle in running if len(request.tokens) < output]

    def _ask(self, request: Asked, output: int) -> tuple[Asked, Any]:
        config = self._genai.GenerationConfig(max_new_tokens=output, ignore_eos=True, do_sample=False)
        config.eos_token_id, config.stop_token_ids = 0, {0}  # must be named, though none is heeded
        request.sent_s = time.monotonic()
        self._asked += 1
        ids = self._tensor(np.array([request.prompt], dtype=np.int64))
        return request, self._pipe.add_request(self._asked, ids, config)


if __name__ == "__main__":
    converse(OpenVino, convert)
