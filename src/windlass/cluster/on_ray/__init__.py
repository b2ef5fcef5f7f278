"""A Ray cluster as a place for groups; the only door to ray.

    ray_backend.py   asks the steward, from any process that reaches the cluster
    ray_controller.py   one actor for the whole cluster: keeps placement groups and seats equal to what was asked for
    member_actor.py      one actor for each member, in its bundle of a placement group; keeps the member's process

Ray decides where a bundle goes, and finds another place for it when a node dies. Members are processes of
their own, not actors: what they import and how they die is not Ray's concern.

Start at ray_controller.py.
"""
