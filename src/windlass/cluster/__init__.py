"""Where processes run.

    on_local.py   one process on this machine: launch, observe, stop
    ranks.py      the ranks of a run on this machine, each on its cores (cores.py), logs in one (ranklog.py)
    launch.py     all ranks of a run, brought to one end; ending.py decides which and whose fault
    meeting.py    launchers of several machines find each other; away.py is what they say (spec.link)
    agent.py      the launcher of one machine in an elastic run; nursing.py starts and watches its workers
    backend.py    what every cluster can be asked for: groups of processes that outlive whoever launched them
    keeper.py     keeps one member of a group; restarts.py decides, fence.py limits, births.py tells apart
    local_*.py    this machine as such a cluster; choose.py finds the one that a job names
    on_ray/       a Ray; on_kubernetes/ a Kubernetes, whose members are pods
    attend.py     an agent as a member of a group

A process is asked for by its module and arguments, tells events on its standard output (spec.door), and
is stopped by SIGTERM, then by SIGKILL.

Start at launch.py for one run, at backend.py for clusters.
"""
