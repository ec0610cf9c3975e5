"""Pausing against lanes that claim at full speed, in processes of their own."""

from __future__ import annotations

from tests.integration.claimers import Claimers


def test_no_claim_after_a_pause(store, settings):
    """After `pause()` nothing is claimed; what was claimed before is in the receipt (invariant I4, promise P3).

    Nor by a claim that was on its way when the pause came (fault I02).
    """
    with Claimers(4, str(settings.redis_url), settings.namespace) as claimers:
        trials = [claimers.trial(store, seed) for seed in range(25)]
    assert [(one.late, one.missing, one.surplus) for one in trials] == [([], [], [])] * len(trials)
    assert sum(one.running for one in trials), "no pause met a lane at work"
