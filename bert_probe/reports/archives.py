"""Unpack a ZIP from an untrusted source within fixed limits of memory."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from typing import Final

from bert_probe.errors import ReportError

MAX_ENTRIES: Final = 1_000
"""A report has at most 50 views of about ten files each."""
MAX_UNPACKED: Final = 256_000_000
"""Maximum total size of all unpacked files."""
_MAX_DIRECTORY: Final = 1_000_000
"""Maximum size of the directory: zipfile creates an object for each entry before they can be counted."""

_END: Final = struct.Struct("<4s4H2LH")  # end of central directory record
_LOCAL: Final = struct.Struct("<4s5H3L2H")  # local file header
_ZIP64_LOCATOR: Final = b"PK\x06\x07"  # zipfile prefers the record that it points to
_ZIP64_LOCATOR_BYTES: Final = 20
_UTF_8: Final = 0x800  # the only flag that a report's entries have


def unpack(content: bytes, name: str) -> dict[str, bytes]:
    """Return the files of a ZIP by their names.

    All ZIP readers must agree on the content, so the archive may have only stored and deflated files, each
    name once, one file after the other, and no other bytes.

    Args:
        content: the content of the ZIP.
        name: the name of the ZIP, for error messages.

    Raises:
        ReportError: the ZIP is damaged, is too large for a report, or has anything else.
    """
    try:
        _check_end(content)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            directory = archive.start_dir
        _check_counts(content, len(entries), directory)
        return _unpack_all(content, entries, directory)
    except (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, ValueError) as error:
        raise ReportError(f"{name} is a ZIP that cannot be read: {error}. Choose another file.") from None


def _check_end(content: bytes) -> None:
    start = len(content) - _END.size
    if start < 0 or content[start : start + 4] != b"PK\x05\x06":
        raise ValueError("it does not end where its directory ends")
    _, _, _, _, count, size, _, _ = _END.unpack_from(content, start)
    locator = max(0, start - _ZIP64_LOCATOR_BYTES)
    if content[locator : locator + 4] == _ZIP64_LOCATOR:
        raise ValueError("it is a ZIP64 archive, which is not allowed")
    if count > MAX_ENTRIES or size > _MAX_DIRECTORY:
        raise ValueError(f"it lists {count:,} files in {size:,} bytes; at most {MAX_ENTRIES:,} are allowed")


def _check_counts(content: bytes, count: int, directory: int) -> None:
    """Check that the end of a ZIP describes its directory correctly, so that all readers agree."""
    size = len(content) - _END.size - directory
    if _END.unpack_from(content, len(content) - _END.size)[1:] != (0, 0, count, count, size, directory, 0):
        raise ValueError("its end does not describe its directory")


def _unpack_all(content: bytes, entries: Sequence[zipfile.ZipInfo], directory: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    end, remaining = 0, MAX_UNPACKED
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        name = ascii(entry.orig_filename[:60])
        if entry.filename in files:
            raise ValueError(f"it has {name} twice")
        mode = stat.S_IFMT(entry.external_attr >> 16)
        if entry.filename != entry.orig_filename or entry.is_dir() or mode not in (0, stat.S_IFREG):
            raise ValueError(f"{name} is not a regular file")
        if entry.flag_bits & ~_UTF_8:
            raise ValueError(f"{name} is encrypted or was written as a stream")
        if entry.header_offset != end:
            raise ValueError(f"there are bytes before {name} that do not belong to a file")
        start = _data_start(content, entry)
        end = start + entry.compress_size
        files[entry.filename] = _inflate(content[start:end], entry, remaining)
        remaining -= entry.file_size
    if end != directory:
        raise ValueError("there are bytes before its directory that do not belong to a file")
    return files


def _data_start(content: bytes, entry: zipfile.ZipInfo) -> int:
    """Return the offset of an entry's data, after checking its local header against the directory."""
    signature, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes = _LOCAL.unpack_from(
        content, entry.header_offset
    )
    start = entry.header_offset + _LOCAL.size
    name = content[start : start + name_bytes].decode("utf-8" if flags & _UTF_8 else "cp437")
    local = (signature, flags, method, crc, packed, size, name, extra_bytes)
    listed = (
        *(b"PK\x03\x04", entry.flag_bits, entry.compress_type, entry.CRC),
        *(entry.compress_size, entry.file_size, entry.orig_filename, 0),
    )
    if local != listed or entry.extra or entry.comment:
        raise ValueError(f"{entry.orig_filename[:60]!a} is described in two ways")
    return int(start + name_bytes)


def _inflate(packed: bytes, entry: zipfile.ZipInfo, limit: int) -> bytes:
    name = ascii(entry.orig_filename[:60])
    if entry.file_size > limit:
        raise ValueError(f"its files take more than {MAX_UNPACKED / 1e6:.0f} MB, the limit of a report")
    if entry.compress_type == zipfile.ZIP_STORED:
        unpacked = packed
    elif entry.compress_type == zipfile.ZIP_DEFLATED:
        inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        unpacked = inflate.decompress(packed, entry.file_size + 1)
        if len(unpacked) > entry.file_size or not inflate.eof or inflate.unused_data:
            raise ValueError(f"{name} does not have the size that it claims")
    else:
        raise ValueError(f"{name} has a compression method that is not allowed")
    if len(unpacked) != entry.file_size or zlib.crc32(unpacked) != entry.CRC:
        raise ValueError(f"{name} is damaged")
    return unpacked
