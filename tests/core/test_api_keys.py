"""Keys out of a file: what counts as one, and that a file without any starts no server."""

from pathlib import Path

import pytest

from legato.core.api_keys import with_keys_of_file
from legato.core.config import ServerConfig
from legato.core.errors import ConfigError


def server_with(path: Path, *keys: str) -> ServerConfig:
    return ServerConfig(api_key=keys, api_key_file=str(path))


def test_file_has_a_key_a_line_among_blank_lines_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes("\ufeffalpha\r\n\r\n# of the batch jobs\n  beta \n\tключ\nalpha\n".encode())
    assert with_keys_of_file(server_with(path, "first", "beta")).api_key == ("first", "beta", "alpha", "ключ")


def test_settings_without_a_file_stay_as_they_are() -> None:
    server = ServerConfig(api_key=("a",))
    assert with_keys_of_file(server) is server


@pytest.mark.parametrize("content", [b"", b"\n \n# alpha\n", "\ufeff".encode()])
def test_file_without_a_key_is_refused_whatever_else_is_given(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="has no key in it; write one a line") as caught:
        with_keys_of_file(server_with(path, "beta"))
    assert str(path) in str(caught.value)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere cannot be read: No such file"):
        with_keys_of_file(server_with(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        with_keys_of_file(server_with(tmp_path))


def test_text_in_another_encoding_is_refused_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"secret\xff\xfe")
    with pytest.raises(ConfigError, match="no text in UTF-8") as caught:
        with_keys_of_file(server_with(path))
    assert "secret" not in str(caught.value)


def test_keys_do_not_stand_in_what_shows_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alpha-secret\n")
    server = with_keys_of_file(server_with(path, "beta-secret"))
    assert server.api_key == ("beta-secret", "alpha-secret")
    assert "secret" not in repr(server)
