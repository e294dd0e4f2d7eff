"""The listening socket: taken ports, wrong addresses, how it is called."""

import socket

import pytest

from legato.cli.serving.listener import ListenError, is_loopback, open_listener, url_of
from legato.core.errors import ConfigError


def test_second_listener_on_a_port_is_refused_and_told_which() -> None:
    with open_listener("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError, match=f"port {port} on 127.0.0.1 is taken .* --port or LEGATO_PORT"):
            open_listener("127.0.0.1", port)


def test_port_is_free_again_when_its_server_has_closed_connections() -> None:
    with open_listener("127.0.0.1", 0) as first:
        address = first.getsockname()
        with socket.create_connection(address):
            first.accept()[0].close()  # the side that closes first holds the port for a while
    open_listener(*address).close()


@pytest.mark.parametrize("host", ["192.0.2.1", "256.1.1.1", "a..b"])
def test_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="is no address of this machine"):
        open_listener(host, 0)


@pytest.mark.parametrize(("host", "loopback"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_open_address_is_known(host: str, loopback: bool) -> None:
    with open_listener(host, 0) as listener:
        assert is_loopback(listener) == loopback


def test_url_of_an_open_address_is_one_that_a_client_here_can_call() -> None:
    with open_listener("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert url_of(listener, is_tls=True).startswith("https://127.0.0.1:")
