"""The draft that `vla-rl prereg new` writes: a small registration that can be frozen as it stands, with comments."""

from __future__ import annotations

import json

TEMPLATE = """\
# Draft of {id}. Change what is here, then: vla-rl prereg freeze {id} experiment=quickstart
# Everything that is left away is filled in from the configuration when it is frozen. All sections and rule kinds are
# described in docs/prereg.md; `vla-rl prereg freeze {id} ... --check` says what is wrong with it and writes nothing.
title: Do a few steps of token-GRPO help the weak base?
author: {author}

summary: |
  In plain words, for somebody who was not there: what is tried, and what would show that it worked.

claim:
  hypothesis: A few GRPO steps raise greedy strict success of tiny_start on scenes that it was not trained on.
  direction: increase            # increase, decrease or none
  smallest_effect: 0.2           # of the success rate; power is computed for it
  unit: episode                  # episode: about this checkpoint; training_seed: about the method, needs replicates
  population: boat to disk, spawn v1
  head: ar                       # the head that is trained
  protocol: sim100b
  look: plain                    # what is rendered; stated, so that no default can change it
  data_seen: none of these seeds # what you have seen when you write this

# What is measured, once. 10000-10999 is the band of confirmatory reads.
measurements:
  - {{id: before, policy: base, played_by: read, seeds: 10000-10009, temperature: 0.0}}
  - {{id: after, policy: trained, played_by: read, seeds: 10000-10009, temperature: 0.0}}
  - {{id: training, kind: series}}

# What is asked of it. The first primary read decides; a guardrail has to hold; record only notes.
reads:
  - id: success
    role: primary
    question: Do more of the same scenes succeed after training?
    rule: {{kind: mcnemar, before: before, after: after, metric: success_strict, alpha: 0.05, discordant: 0.3}}
  - id: progress
    role: secondary
    question: Does the boat end nearer to the disk?
    rule: {{kind: paired_bootstrap, before: before, after: after, metric: progress_final_cm}}
  - id: signal
    role: secondary
    question: Did the groups of the first wave hold both outcomes?
    rule:
      kind: threshold
      measurement: training
      metric: mixed_groups_frac
      statistic: first
      comparator: at_least
      line: 0.2

falsifiers:
  - {{id: worse, read: success, fires_on: FAIL, text: training makes it worse}}

# One pool for everything that is started, crashes and evaluations included; expected: one launch.
budget:
  wall_h: 1.0
  expected:
    main: {{wall_h: 0.25}}

# Keys that change how fast it runs and nothing else: launch --set takes them without an amendment.
invariance: [pool.workers]
"""


def draft_text(id: str, author: str) -> str:
    """The draft of a registration."""
    return TEMPLATE.format(id=id, author=json.dumps(author))
