"""The address that the console listens on. Pure: no name is looked up."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

_LISTEN = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]+)):(\d{1,5})")


class Address(NamedTuple):
    """An IP address and a TCP port."""

    ip: IPv4Address | IPv6Address
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parses `127.0.0.1:8321`, `[::1]:8321` or `localhost:8321`. Raises ValueError.

        Host names other than `localhost` are refused, because the supervisor must not wait for a
        name server.
        """
        match = _LISTEN.fullmatch(text)
        if not match or int(match[3]) > 65535:
            raise ValueError(f'"{text}" is not an address and a port')
        host = "127.0.0.1" if match[2] == "localhost" else match[1] or match[2]
        return cls(ip_address(host), int(match[3]))
