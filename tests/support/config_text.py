"""The smallest `kworker.toml` that loads."""


def smallest(*, name: str = "orders", handler: str = "json:loads", state_dir: str = "state") -> str:
    """Of a service whose brokers nobody asks; a test may add tables."""
    return f"""
name = "{name}"
handler = "{handler}"
state_dir = "{state_dir}"
[source]
topics = ["orders"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
"""
