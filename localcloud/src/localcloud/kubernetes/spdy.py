"""SPDY/3.1 as kubectl speaks it inside of a WebSocket, which is how it forwards ports.

Not covered: flow control, priorities, settings: kubectl's library does without.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 1
# The dictionary of the protocol, with which headers are compressed.
WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def word(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.replace("_", " ").encode()


DICTIONARY = b"".join(map(word, WORDS.split())) + TAIL.encode()


@dataclass
class Frame:
    kind: int  # 0: data
    stream: int
    fin: bool
    data: bytes


class Framer:
    """Frames of one connection, from and to bytes."""

    def __init__(self) -> None:
        self.buffer = b""
        self.inflate = zlib.decompressobj(zdict=DICTIONARY)
        self.deflate = zlib.compressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> Iterator[Frame]:
        self.buffer += data
        while len(self.buffer) >= 8:
            first, second = struct.unpack(">II", self.buffer[:8])
            flags, size = second >> 24, second & 0xFFFFFF
            if len(self.buffer) < 8 + size:
                return
            body, self.buffer = self.buffer[8 : 8 + size], self.buffer[8 + size :]
            if not first >> 31:
                yield Frame(0, first, bool(flags & FIN), body)
                continue
            kind = first & 0xFFFF
            stream = struct.unpack(">I", body[:4])[0] & 0x7FFFFFFF if len(body) >= 4 else 0
            yield Frame(kind, stream, bool(flags & FIN), body)

    def headers(self, frame: Frame) -> dict[str, str]:
        """The headers of a new stream."""
        block = self.inflate.decompress(frame.data[10:])
        (count,) = struct.unpack(">I", block[:4])
        parts, at = [], 4
        for _ in range(2 * count):
            (size,) = struct.unpack(">I", block[at : at + 4])
            parts.append(block[at + 4 : at + 4 + size].decode())
            at += 4 + size
        return dict(zip(parts[::2], parts[1::2], strict=True))

    def reply(self, stream: int) -> bytes:
        """Accept a stream."""
        block = self.deflate.compress(struct.pack(">I", 0)) + self.deflate.flush(zlib.Z_SYNC_FLUSH)
        return control(SYN_REPLY, struct.pack(">I", stream) + block)


def control(kind: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">II", 1 << 31 | 3 << 16 | kind, flags << 24 | len(body)) + body


def data_frame(stream: int, data: bytes, fin: bool = False) -> bytes:
    return struct.pack(">II", stream, (FIN if fin else 0) << 24 | len(data)) + data
