"""Messages over a socket pair: length-prefixed msgpack frames, each a list of messages. No pickle."""

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from legato.core.errors import LegatoError
from legato.ipc.messages import FromEngine, Message, ToEngine

Incoming = TypeVar("Incoming")

_LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 256 * 2**20
_RECEIVE_BYTES = 1 << 20


class ChannelClosedError(Exception):
    """The process at the other end is gone."""


class Channel(Generic[Incoming]):
    """One end of the boundary. What is sent in one call arrives in one call: requests stay together."""

    def __init__(self, sock: socket.socket, incoming: object) -> None:
        self._socket = sock
        self._decoder: msgspec.msgpack.Decoder[list[Incoming]] = msgspec.msgpack.Decoder(list[incoming])  # type: ignore[valid-type]
        self._buffer = bytearray()
        self._send_lock = threading.Lock()
        self._arrivals = select.poll()  # select() would fail for descriptors from 1024 on
        self._arrivals.register(sock, select.POLLIN)

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages as one frame. Raises ChannelClosedError when nobody is there to read."""
        self.send_frame(encode_frame(messages))

    def send_frame(self, frame: bytes) -> None:
        """Send what encode_frame made. Raises ChannelClosedError when nobody is there to read."""
        try:
            with self._send_lock:
                self._socket.sendall(frame)
        except OSError as error:
            raise ChannelClosedError from error

    def receive(self, timeout_s: float | None = None) -> list[Incoming]:
        """All messages that have arrived; while there is none, sleep on the socket for up to `timeout_s`.

        Raises ChannelClosedError at the end of the stream.
        """
        messages: list[Incoming] = []
        while True:
            messages += self._take_frames()
            wait_s = 0 if messages else timeout_s
            if not self._arrivals.poll(None if wait_s is None else wait_s * 1000):
                return messages
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except OSError as error:
                raise ChannelClosedError from error
            if not data:
                if messages:
                    return messages  # the end shows again at the next call
                raise ChannelClosedError
            self._buffer += data

    def hang_up(self) -> None:
        """End both directions: a reader at either end, in any thread, sees the end of the stream."""
        with contextlib.suppress(OSError):  # the other end may have been first
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up, and give the descriptor back."""
        self.hang_up()
        self._socket.close()

    def _take_frames(self) -> list[Incoming]:
        messages: list[Incoming] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise ChannelClosedError(f"a frame of {length} bytes: not our protocol")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            try:
                messages += self._decoder.decode(bytes(self._buffer[start + _LENGTH.size : end]))
            except (msgspec.MsgspecError, LegatoError) as error:  # a value that its class refuses
                raise ChannelClosedError(f"a frame that is not of our protocol: {error}") from error
            start = end
        del self._buffer[:start]
        return messages


def encode_frame(messages: Sequence[Message]) -> bytes:
    """Messages as one frame. Raises ValueError for what is too large, or what msgpack cannot hold."""
    try:
        payload = msgspec.msgpack.encode(messages)
    except (UnicodeError, OverflowError, TypeError) as error:
        raise ValueError(str(error)) from error
    if len(payload) > MAX_FRAME_BYTES:
        raise ValueError(
            f"{len(payload)} bytes at once, and at most {MAX_FRAME_BYTES} are sent; split the call"
        )
    return _LENGTH.pack(len(payload)) + payload


def engine_end(sock: socket.socket) -> Channel[ToEngine]:
    """The engine process's end."""
    return Channel(sock, ToEngine)


def client_end(sock: socket.socket) -> Channel[FromEngine]:
    """The API process's end."""
    return Channel(sock, FromEngine)
