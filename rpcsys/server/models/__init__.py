"""What runs in a model host, which serves one deployment to many clients, and in a deployer."""
