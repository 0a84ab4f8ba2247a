"""What runs in the process of a model host, which keeps one deployment for many clients, and in a deployer."""
