"""The data plane as the coordinator sees it: shard keys and slots, provisioning, proof of drain."""
