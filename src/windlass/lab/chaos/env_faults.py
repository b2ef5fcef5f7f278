"""Faults of the environment of a run: disk, clocks, network and store. What each proves:

disk        a failed save is reported, and training continues
clock       no decision depends on the time of day
partition   a single side continues, the cut-off side does no harm, and both join again
delay       a slow network is not taken for a dead network
store       training does not wait for the store, and nothing acknowledged is lost
"""

from __future__ import annotations

import random

from windlass.lab.chaos.injected_fault import InjectedFault, NothingToHit
from windlass.lab.chaos.target import ChaosTarget, TargetWorker, number_of

JUMP_S = 3600
PAIR_SHARE = 0.25
"""Share of partitions that cut off two nodes, which can still reach each other."""


def disk(scene: ChaosTarget, _rng: random.Random) -> InjectedFault:
    assert scene.disk is not None
    scene.disk.fill()
    return InjectedFault(interrupts=False, heal=scene.disk.empty, note="no byte left for checkpoints")


def clock(scene: ChaosTarget, rng: random.Random) -> InjectedFault:
    clocks = scene.clocks
    assert clocks is not None
    node = rng.choice(sorted({worker.node for worker in scene.workers()}))
    ahead_s = rng.choice((JUMP_S, -JUMP_S))
    clocks.put(node, ahead_s)
    return InjectedFault(
        nodes=(node,), interrupts=False, heal=lambda: clocks.put(node, 0), note=f"{node} {ahead_s:+d} s"
    )


def partition(scene: ChaosTarget, rng: random.Random) -> InjectedFault:
    """Cut off one node, or two together; at least half of the nodes remain."""
    network = scene.network
    assert network is not None
    present = scene.workers()
    wanted = 2 if rng.random() < PAIR_SHARE else 1
    found = sorted({worker.node for worker in present})
    if len(found) <= wanted:
        raise NothingToHit(f"too few nodes are training to cut off {wanted} of them")
    nodes = rng.sample(found, wanted)
    victims = [worker for worker in present if worker.node in nodes]
    network.cut([number_of(node) for node in nodes])
    scene.away |= {victim.worker for victim in victims}

    def heal() -> None:
        network.mend([number_of(node) for node in nodes])
        scene.away.difference_update(victim.worker for victim in victims)

    return InjectedFault(
        tuple(victim.worker for victim in victims), tuple(nodes), heal=heal, note=_named(victims)
    )


def delay(scene: ChaosTarget, rng: random.Random) -> InjectedFault:
    network = scene.network
    assert network is not None
    victim = rng.choice(scene.workers())
    node = number_of(victim.node)
    network.slow_down(node)
    return InjectedFault(
        nodes=(victim.node,),
        interrupts=False,
        heal=lambda: network.speed_up(node),
        note=f"{_named([victim])}: {network.delay}",
    )


def store(scene: ChaosTarget, _rng: random.Random) -> InjectedFault:
    storage = scene.storage
    assert storage is not None
    storage.trouble()
    return InjectedFault(interrupts=False, heal=storage.calm, note="errors, closed connections and delays")


def _named(victims: list[TargetWorker]) -> str:
    return ", ".join(f"{victim.node} (rank {victim.rank})" for victim in victims)
