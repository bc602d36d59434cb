"""How the chunks of a hand-off cross. One contract, three ways.

contract   both ends of one connection, the receiver's answer and receipt
stream     the contract over any byte stream
tcp        a byte stream between two hosts
shm        a byte stream through shared memory on one host
tier       the contract through any tier of the store: sender and receiver need not meet
address    from tcp://HOST:PORT, shm://NAME or a tier's URL to the ends
limited    a sender held to a rate
probe      bandwidth and round trip of a transport, measured

Add one: implement `Outgoing` and `Incoming`, add a scheme in `address`, and a line in the tests' table of
transports: they hold every transport to the same.
"""

from __future__ import annotations

__all__: list[str] = []
