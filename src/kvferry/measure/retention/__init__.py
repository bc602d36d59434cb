"""What a target model still says with KV that a map made: beside its own, beside controls, with intervals.

To read in this order: `items`, `tasks` (what is asked); `reader` (a model that goes on from given KV);
`opening` (which map a file holds); `arms`, `random_map` (the ways to have a context); `scoring`, `asking`
(one item, every arm); `reach` (positions that items take); `turns` (a conversation that changes hands);
`intervals`, `summing`, `answers`, `naming` (items to figures); `verdict`, `requirements` (figures to a word);
`records` (an item as a line); `gate`, `run` (all of it); `lm_eval` (any arm for lm-evaluation-harness).
"""

from __future__ import annotations

__all__: list[str] = []
