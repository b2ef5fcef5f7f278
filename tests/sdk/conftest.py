"""Lends the SDK tests the gateway and the scripted engine of tests/serve/gateway."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_source = Path(__file__).parent.parent / "serve" / "gateway" / "conftest.py"
_spec = importlib.util.spec_from_file_location("gateway_under_test", _source)
assert _spec is not None
assert _spec.loader is not None
_lent = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_lent)

model_dir = _lent.model_dir
socket_path = _lent.socket_path
shared_engine = _lent.shared_engine
engine = _lent.engine
start_shared = _lent.start_shared
start_gateway = _lent.start_gateway
shared_gateway = _lent.shared_gateway
gateway = _lent.gateway
given_keys = _lent.given_keys
shared_guarded = _lent.shared_guarded
guarded = _lent.guarded
