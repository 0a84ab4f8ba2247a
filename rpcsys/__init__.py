"""rpcsys: a device lab's RPC infrastructure."""
