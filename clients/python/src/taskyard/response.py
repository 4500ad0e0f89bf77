"""Parses responses of HTTP/1.1 from the pieces in which they arrive."""

from __future__ import annotations

from typing import Dict, List, Optional

#: A head larger than this is not one of a Taskyard server.
HEAD_BYTES_MAX = 64 * 1024


class MalformedResponse(Exception):
    """The bytes are not a response of HTTP/1.1."""


class ResponseParser:
    """One response. Feed it until it is complete; then `status`, `body` and `keep_alive` are valid."""

    __slots__ = ("status", "body", "keep_alive", "has_begun", "_buffer", "_headers", "_left", "_chunks")

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        #: Whether the connection can be used again.
        self.keep_alive = True
        #: Whether a byte of the response has arrived.
        self.has_begun = False
        self._buffer = b""
        self._headers: Optional[Dict[str, str]] = None
        #: Bytes of the body, or of the chunk, that are still missing; None if the body ends with the connection.
        self._left: Optional[int] = 0
        #: The chunks that have arrived; None unless the body is chunked.
        self._chunks: Optional[List[bytes]] = None

    def feed(self, data: bytes) -> bool:
        """Adds bytes and returns whether the response is complete."""
        self.has_begun = True
        self._buffer = self._buffer + data if self._buffer else data
        while self._headers is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_BYTES_MAX:
                    raise MalformedResponse("the head of the response is too long")
                return False
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            self._read_head(head.decode("latin-1"))
        if self._chunks is not None:
            return self._read_chunks(self._chunks)
        if self._left is None or len(self._buffer) < self._left:
            return False
        if len(self._buffer) > self._left:
            raise MalformedResponse("bytes after the end of the response")
        self.body = self._buffer
        return True

    def end(self) -> bool:
        """Notes the end of the connection and returns whether the response is complete."""
        if self._headers is None or self._left is not None:
            return False
        self.body = self._buffer
        return True

    def _read_head(self, head: str) -> None:
        lines = head.split("\r\n")
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise MalformedResponse("the response is not of HTTP/1.1")
        status = int(words[1])
        if 100 <= status < 200:
            return
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self.status, self._headers = status, headers
        connection = headers.get("connection", "").lower()
        self.keep_alive = connection != "close" and (words[0] != "HTTP/1.0" or connection == "keep-alive")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._chunks = []
            self._left = 0
        elif "content-length" in headers:
            if not headers["content-length"].isdigit():
                raise MalformedResponse("the length of the response is not a number")
            self._left = int(headers["content-length"])
        elif status not in (204, 304):
            self._left, self.keep_alive = None, False

    def _read_chunks(self, chunks: List[bytes]) -> bool:
        while True:
            end = self._buffer.find(b"\r\n")
            if end < 0:
                return False
            size = self._buffer[:end].split(b";", 1)[0].strip()
            try:
                length = int(size, 16)
            except ValueError:
                raise MalformedResponse("a chunk without a length") from None
            if len(self._buffer) < end + 2 + length + 2:
                return False
            if length == 0:
                # A response of Taskyard has no trailers.
                if not self._buffer.startswith(b"\r\n", end + 2):
                    raise MalformedResponse("trailers after the last chunk")
                self.body = b"".join(chunks)
                return True
            chunks.append(self._buffer[end + 2 : end + 2 + length])
            self._buffer = self._buffer[end + 2 + length + 2 :]
