"""Commands of the lab: `prove`, `chaos`, `simulate` and `bench` with `bench_control`, `bench_families`,
`bench_gateway`, `bench_overload`, `bench_serve`, `bench_served` and `bench_soak`.
"""
