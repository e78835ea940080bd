"""Local differential privacy: what leaves a node."""

import numpy as np
import pytest
from privacy_cases import LOCAL, flat, is_query, local_reply, state

# --- local ----------------------------------------------------------------------------------


def test_a_client_clips_and_noises_before_it_sends(federation):
    built = federation(**{"num-server-rounds": 1, "learning-rate": 1.0})
    built.run()
    start = flat(state(built.grid.trained()[0]))
    moved = flat(state(local_reply(built, 0))) - start
    assert moved.norm() > 0.02
    direction = moved / moved.norm()

    # C = 0.01 and hardly any noise: what is left is the direction, at the clipping norm
    little = {"privacy": "local", "clipping-norm": 0.01, "noise-multiplier": 1e-3}
    sent = flat(state(local_reply(built, 0, **little))) - start
    assert (sent @ direction).item() == pytest.approx(0.01, rel=0.02)

    # z = 2: noise of standard deviation z C = 0.02 in every coordinate; 60 000 of them
    much = {**little, "noise-multiplier": 2.0}
    noise = flat(state(local_reply(built, 0, **much))) - start - 0.01 * direction
    assert noise.std().item() == pytest.approx(0.02, rel=0.02)
    again = flat(state(local_reply(built, 0, **much))) - start - 0.01 * direction
    assert abs(float(np.corrcoef(noise, again)[0, 1])) < 0.03


def test_local_replies_hold_no_value_without_noise_but_the_count(federation):
    built = federation(**LOCAL)
    built.run()
    assert [row["failures"] for row in built.rows] == ["0", "0"]
    replies = [m for m in built.grid.received if not is_query(m)]
    assert len(replies) == 6
    for reply in replies:
        assert set(reply.content) == {"arrays", "metrics"}
        assert set(reply.content["metrics"]) == {"num-examples"}
