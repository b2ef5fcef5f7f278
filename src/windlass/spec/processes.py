"""Every process that Windlass starts, by the module that is its entry point (`python -m MODULE`).

A string that names a module to start is an import that no checker sees. They are all here;
tests/spec/test_processes.py checks that each module exists, and that no other file names one in a string.
"""

from __future__ import annotations

# users
CLI = "windlass.cli"

# training
TRAIN = "windlass.train"
PARAMETER_SERVER = "windlass.train.server"
CHECKPOINT_VERIFY = "windlass.train.checkpoint_verify"
SCORING = "windlass.train.scoring"
PROBE = "windlass.train.probe"
PARTITION = "windlass.parallel"
FORK_SERVER = "windlass.train.elastic.fork_server"
ELASTIC_COORDINATOR = "windlass.elastic.coordinator"
AGENT = "windlass.elastic.agent_main"
RUN_MEMBER = "windlass.runs.member"

# models
CONVERT = "windlass.models"
CONVERT_NGRAM = "windlass.models.ngram"
CONVERT_GGUF = "windlass.models.gguf"
NEAREST_TOKENS = "windlass.models.nearest_tokens"
ADAPTERS = "windlass.serve.engine.adapters"
COMPRESS = "windlass.serve.engine.compression.compress"
PERPLEXITY = "windlass.serve.engine.compression.perplexity"

# serving
ENGINE = "windlass.serve.engine"
VLLM_ENGINE = "windlass.serve.vllm"
GATEWAY = "windlass.serve.gateway"
GRAMMAR_TRIAL = "windlass.serve.engine.grammar.trial_worker"

# control plane and clusters
CONTROL_API = "windlass.control.api.control_process"
PLANNER = "windlass.control.api.planner"
LOCAL_GROUP = "windlass.cluster.local.local_group_daemon"

# lab
TRAIN_BENCH = "windlass.lab.torch"
TRAIN_BENCH_WORKER = "windlass.lab.torch.bench_worker"
HF_BASELINE = "windlass.lab.torch.hf_baseline"
ASYNC_BENCH = "windlass.lab.torch.async_bench"
WORD2VEC_BENCH = "windlass.lab.torch.word2vec_bench"
MACHINE_LIMITS = "windlass.lab.torch.machine_limits"
FAMILIES_PROOF = "windlass.lab.torch.families_proof"
LAYOUT_PROOF = "windlass.lab.torch.layout_proof"
GGUF_ANSWERS = "windlass.lab.torch.gguf_answers"
SAVE_CRASH_PROOF = "windlass.lab.torch.save_crash_proof"
TOKENISE_BENCH = "windlass.lab.bench.tokenise"
MOCK_ENGINE = "windlass.lab.bench.gateway_mock"
BARE_GATEWAY = "windlass.lab.bench.gateway_bare"
QUOTA_LOAD = "windlass.lab.proofs.quota.load_worker"
RECORDING_JOB = "windlass.lab.proofs.control.recording_job"
CONTROL_PROOF = "windlass.lab.proofs.control.proof_process"
TENANT_PROOF = "windlass.lab.proofs.tenants.tenant_process"
HOSTILE_JOB = "windlass.lab.proofs.tenants.hostile_job"
DNS_PROBE = "windlass.lab.proofs.sites.probe_client"
SDK_PROBE = "windlass.lab.proofs.sites.sdk_probe_client"

ENTRY_POINTS = {name: value for name, value in globals().items() if name.isupper()}
