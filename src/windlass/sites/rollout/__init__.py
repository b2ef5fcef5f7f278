"""Rolls a version out to one site after the other: the canary first, with roll-back on failure.

    waiting (for its copy) -> ready -> [draining] -> asking -> rolling -> settling -> done
                       a site that fails: undoing -> undone, or failed if it rolled back by itself

`rollout_record` is the state, saved in the depot after every step, so that another process can resume after a
crash; `turns` decides which sites take a step (pure); `site_client` calls one site's admin API; `driver`
takes the steps; `start` starts or resumes a rollout, or rejects it.

Start at `rollout_record`.
"""
