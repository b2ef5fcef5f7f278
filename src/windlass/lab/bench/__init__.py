"""Benchmarks of serving, tokenising and parameter servers, compared with other software on this machine.

    models -> our engine and every peer, in turn, the same task -> rates and delays -> figures

`serve` is `windlass bench serve`: `bench_models` writes the models, `contenders` starts our engine
(`engine_process`) and its peers, `task` has the requests and the measured times, `limits` compares our engine
with the machine. `soak` runs one engine under mixed traffic (`traffic`), `overload` the service under too
much load (`overload_client`). `gateway` measures the gateway with `gateway_load` against `gateway_contenders`
(`gateway_bare`, `gateway_mock`, `gateway_model`) and with idle connections (`gateway_idle`). `families`
compares model families, `parameter_servers` and `parameter_servers_statistical` the modes of parameter
servers, `tokenise` measures tokenising.

Start at `serve`.
"""
