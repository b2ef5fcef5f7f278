"""A Ray cluster as a backend; the only package that imports ray.

    `ray_backend`      the client, in any process that reaches the cluster: calls the controller
    `ray_controller`   one actor for the whole cluster: reconciles placement groups and member actors
    `member_actor`     one actor per member, in its bundle of a placement group: supervises its process

Ray decides where a bundle goes, and moves it when a node dies. Members are processes of their own, not
actors: what they import and how they fail does not affect Ray.

Start at `ray_controller`.
"""
