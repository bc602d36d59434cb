"""What a trace says: reuse, misses by cause, classes of prefixes, byte flows.

result              everything an analysis holds, as data
analyse             from a trace to a result, in one pass and bounded memory
touched             a chunk with what the stack says of it
hits                hit ratios under every stated denominator
reuse (kernels)     exact reuse distances and the curve of hits against capacity
sampled             the same curve from a sample of the blocks
policies            eviction policies at one capacity, by simulation; Belady's bound
replicas, routing   the same requests under several routings, and a shared pool's gain
causes              every token by where it came from, or why not
classes             prefixes by class (intervals: when they come back; published: what policies would write)
flows               what is read and written when
capacity            what of a memory a cache may use
advice              the one thing to do next
lint                why prompts that look alike do not match
fanout              one piece of work over many items, on processes or a Ray cluster

Works on chunks of `traces`; opens no file, prints nothing.
"""

from __future__ import annotations

__all__: list[str] = []
