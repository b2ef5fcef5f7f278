"""Where processes run.

    cluster/launch/local_process.py   one process on this machine: launch, observe, stop
    cluster/launch/local_ranks.py      the ranks of a run on this machine, each on its cores (cluster/launch/cores.py), logs in one (cluster/launch/rank_log.py)
    cluster/launch/launcher.py     all ranks of a run, brought to one end; cluster/launch/exit_status.py decides which and whose fault
    cluster/launch/rendezvous.py    launchers of several machines find each other; cluster/launch/remote_ranks.py is what they say (spec.protocol.link)
    elastic/agent.py      the launcher of one machine in an elastic run; elastic/worker_pool.py starts and watches its workers
    backend.py    what every cluster can be asked for: groups of processes that outlive whoever launched them
    cluster/process/process_supervisor.py     keeps one member of a group; cluster/process/restarts.py decides, cluster/process/cgroup_limits.py limits, cluster/process/process_identity.py tells apart
    local_*.py    this machine as such a cluster; backends.py finds the one that a job names
    on_ray/       a Ray; on_kubernetes/ a Kubernetes, whose members are pods
    elastic/agent_main.py     an agent as a member of a group

A process is asked for by its module and arguments, tells events on its standard output
(spec.protocol.entrypoint), and is stopped by SIGTERM, then by SIGKILL.

Start at cluster/launch/launcher.py for one run, at backend.py for clusters.
"""
