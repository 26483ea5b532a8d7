"""Redis Stream Coordinator: a KIP-848-style group coordinator for sharded Redis Streams.

The package list reads as a sentence: events -> projections -> core -> store -> runtime -> http / cli / client.
"""

__version__ = "0.1.0"
