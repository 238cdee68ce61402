"""Files that are designed to break programs that read reports."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator

START = b'<script type="application/json" id="stated">'
END = b"</script>"


def make_page(content: bytes) -> bytes:
    """Return a page that contains the given JSON as its data."""
    return START + content + END


def hostile_pages() -> Iterator[tuple[str, bytes]]:
    """Yield the purpose of each hostile page, and the page."""
    yield "20,000 script tags", b"<script>" * 20_000 + make_page(b'{"bert_probe_report": 2}')
    yield "20,000 script tags that begin as the data do", START[:-1] * 20_000
    yield "the data 20,000 times", START * 20_000
    yield "100,000 comments that do not end", b"<!--" * 100_000
    yield (
        "a huge character reference",
        make_page(b'{"title": "&#99999999999999999999;"}') + b"&#" + b"9" * 5_000 + b";",
    )
    yield "a null byte", b"\0" * 1_000 + make_page(b"{}")
    yield "invalid UTF-8", make_page(b'{"title": "\xff\xfe"}')
    yield "UTF-16", make_page('{"title": "a"}'.encode("utf-16"))
    report = b'{"bert_probe_report": 2, "title": %s, "made_with": {}, "views": [{}]}'
    values = {
        "NaN": b"NaN",
        "infinity": b"-Infinity",
        "an endless float": b"1e999",
        "an integer of 4,000 digits": b"9" * 4_000,
        "an integer of 5,000 digits": b"9" * 5_000,
        "a lone surrogate": b'"\\ud800"',
        "the same name twice": b'{"a": 1, "a": 2}',
        "100,000 levels": b"[" * 100_000,
        "100 levels": b"[" * 100 + b"]" * 100,
        "900 levels": b'{"a":' * 900 + b"1" + b"}" * 900,
        "two million empty lists": b"[" + b"[]," * 2_000_000 + b"[]]",
        "a long string": b'"' + b"x" * 1_000_000 + b'"',
    }
    for name, value in values.items():
        yield name, make_page(report % value)
    table = b'{"columns": [{"name": "a", "kind": "number", "cells": [%s0]}]}' % (b"0," * 1_000_000)
    view = b'{"view": {"question": "Tokens"}, "table": %s}' % table
    yield "a table of a million cells", make_page((report % b'""').replace(b"{}]", view + b"]"))
    form = b'{"bert_probe_report": %s, "title": "", "made_with": {}, "views": []}'
    for name, value in {
        "a format that is true": b"true",
        "1.0 as the format": b"1.0",
        "no format": b"null",
    }.items():
        yield name, make_page(form % value)
    yield (
        "60 views",
        make_page(b'{"bert_probe_report":2,"title":"","made_with":{},"views":[%s{}]}' % (b"{}," * 60)),
    )
    yield (
        "views that are numbers",
        make_page(b'{"bert_probe_report":2,"title":"","made_with":{},"views":[1]}'),
    )


def _entry(name: str, content: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), content, method)
    return target.getvalue()


def _lying(size: int, claimed: int) -> bytes:
    """Return a ZIP whose page has a different size than declared."""
    deflate = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = b"\0" * 1_000_000
    data = b"".join(deflate.compress(block) for _ in range(size // len(block))) + deflate.flush()
    name, crc = b"report.html", zlib.crc32(b"\0" * min(claimed, len(block)))
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 33, crc, len(data), claimed, len(name), 0) + name
    listed = struct.pack(
        *("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 8, 0, 33, crc, len(data), claimed, len(name)),
        *(0, 0, 0, 0, 0, 0),
    )
    directory = listed + name
    start = len(local) + len(data)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(directory), start, 0)
    return local + data + directory + end


def _several(*entries: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return target.getvalue()


def _patched(content: bytes, local: int, listed: int, value: bytes) -> bytes:
    """Return a ZIP with changed bytes in the local header and the central directory header of its file.

    Args:
        local: offset of the bytes in the local header.
        listed: offset of the bytes in the central directory header.
        value: bytes to write at each offset.
    """
    directory = content.index(b"PK\1\2")
    changed = bytearray(content)
    changed[local : local + len(value)] = value
    changed[directory + listed : directory + listed + len(value)] = value
    return bytes(changed)


def _link() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("report.html")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    return info


def hostile_zips(size: int = 100_000_000) -> Iterator[tuple[str, bytes]]:
    """Yield the purpose of each hostile ZIP, and the ZIP.

    Args:
        size: unpacked size of the bombs in bytes.
    """
    page = make_page(b'{"bert_probe_report": 2}')
    plain = _entry("report.html", page)
    yield "an entry that claims 10 bytes", _lying(size, 10)
    yield "an entry that claims a gigabyte", _lying(size, 1_000_000_000)
    yield "a page without a manifest", plain
    yield "a manifest that is not JSON", _several(("report.html", page), ("manifest.json", b"\xff{"))
    yield "LZMA", _entry("report.html", page, zipfile.ZIP_LZMA)
    yield "BZIP2", _entry("report.html", page, zipfile.ZIP_BZIP2)
    yield "an unknown compression", _patched(plain, 8, 10, struct.pack("<H", 99))
    yield "an encrypted entry", _patched(plain, 6, 8, struct.pack("<H", 1))
    yield "an entry that was streamed", _patched(plain, 6, 8, struct.pack("<H", 8))
    yield "a wrong checksum", _patched(plain, 14, 16, b"abcd")
    yield "damaged data", plain[:50] + b"\xff" * 10 + plain[60:]
    yield "an empty file", b"PK"
    yield "only an end", b"PK\5\6" + b"\0" * 18
    yield "cut in half", plain[: len(plain) // 2]
    yield "a comment", plain[:-2] + b"\1\0x"
    yield "something after its end", plain + b"x"
    yield "something before its start", b"PKx" + plain
    yield "a directory that begins elsewhere", plain[:-6] + b"\xff\xff\xff\x7f" + plain[-2:]
    yield "60,000 entries", plain[:-14] + struct.pack("<2H", 60_000, 60_000) + plain[-10:]
    yield "a symbolic link", _several((_link(), b"/etc/passwd"), ("manifest.json", b"{}"))
    yield "a folder", _several(("report.html/", b""), ("manifest.json", b"{}"))
    yield "a name with a null byte", plain.replace(b"report.html", b"report\0html")
    yield "two names of one entry", plain.replace(b"report.html", b"reports.htm", 1)
    with_warnings = io.BytesIO()
    with zipfile.ZipFile(with_warnings, "w") as archive:
        for content in (page, make_page(json.dumps({"bert_probe_report": 2}).encode())):
            archive.filelist = [*archive.filelist]
            archive.NameToInfo = {}
            archive.writestr("report.html", content)
    yield "the page twice", with_warnings.getvalue()
