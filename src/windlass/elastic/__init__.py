"""Elastic runs: workers come and go, and training continues.

Every machine runs an `agent` (`agent_main` is its process on a cluster), which keeps a fork server and its
workers (`worker_pool`) and a `coordinator` alive. One coordinator leads (`leader`): it reads messages
(`message_handler`) into `membership_state`, decides who belongs to the run (`membership`), lays out the next
`generation` and writes the `run_journal`. The messages are in spec.protocol.elastic; the worker's side is
train.elastic.
"""
