"""Files that are no image that is read: what they are, and what is to be done with them."""

from __future__ import annotations

_BY_START = (
    (b"\xff\x0a", "JPEG XL", "save it as JPEG or PNG"),
    (b"\0\0\0\x0cJXL ", "JPEG XL", "save it as JPEG or PNG"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000", "save it as JPEG or PNG"),
    (b"\xff\x4f\xff\x51", "JPEG 2000", "save it as JPEG or PNG"),
    (b"8BPS", "a Photoshop document", "export it as JPEG or PNG"),
    (b"gimp xcf", "a GIMP document", "export it as JPEG or PNG"),
    (b"%PDF", "a PDF", "save its pages as JPEG or PNG"),
    (b"%!PS", "PostScript", "save it as JPEG or PNG"),
    (b"\xc5\xd0\xd3\xc6", "PostScript", "save it as JPEG or PNG"),
    (b"FUJIFILMCCD-RAW", "a RAW photo (Fujifilm)", "develop it to JPEG"),
    (b"FOVb", "a RAW photo (Sigma)", "develop it to JPEG"),
    (b"IIRO", "a RAW photo (Olympus)", "develop it to JPEG"),
    (b"IIRS", "a RAW photo (Olympus)", "develop it to JPEG"),
    (b"MMOR", "a RAW photo (Olympus)", "develop it to JPEG"),
    (b"IIU\0", "a RAW photo (Panasonic)", "develop it to JPEG"),
    (b"\0MRM", "a RAW photo (Minolta)", "develop it to JPEG"),
    (b"\x76\x2f\x31\x01", "OpenEXR", "save it as JPEG or PNG"),
    (b"#?R", "Radiance HDR", "save it as JPEG or PNG"),
    (b"SIMPLE  =", "FITS", "save it as TIFF or PNG"),
    (b"DDS ", "a DirectDraw texture", "save it as PNG"),
    (b"qoif", "QOI", "save it as PNG"),
    (b"\0\0\1\0", "an icon", "save it as PNG"),
    (b"\0\0\2\0", "a cursor", "save it as PNG"),
    (b"II\xbc\x01", "JPEG XR", "save it as JPEG or PNG"),
    (b"\xd7\xcd\xc6\x9a", "a Windows metafile", "save it as PNG"),
    (b"\x1a\x45\xdf\xa3", "a video (Matroska, WebM)", "extract its frames"),
    (b"\0\0\1\xba", "a video (MPEG)", "extract its frames"),
    (b"\0\0\1\xb3", "a video (MPEG)", "extract its frames"),
    (b"FLV\1", "a video (Flash)", "extract its frames"),
    (b"PK\3\4", "a ZIP archive", "unpack it"),
    (b"PK\5\6", "a ZIP archive", "unpack it"),
    (b"Rar!", "a RAR archive", "unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "unpack it"),
    (b"\x1f\x8b", "a gzip archive", "unpack it"),
    (b"BZh", "a bzip2 archive", "unpack it"),
    (b"\xfd7zXZ\0", "an xz archive", "unpack it"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it"),
    (b"\0\5\x16\7", "notes that macOS keeps on another file", "delete it"),
    (b"\0\5\x16\0", "notes that macOS keeps on another file", "delete it"),
    (b"version https://git-lfs", "a pointer of Git LFS", "git lfs pull fetches the image"),
    (b"\xd0\xcf\x11\xe0", "an old Office document", "save its pictures as JPEG or PNG"),
)

_RIFF = {b"AVI ": "a video (AVI)", b"WAVE": "sound"}


def name_foreign(data: bytes) -> str:
    """Why a file that no reader accepts is no image, for people."""
    named = _named(data)
    if named is None:
        return "not an image, or in a format that is not read"
    return f"not an image that is read but {named[0]}: {named[1]}"


def _named(data: bytes) -> tuple[str, str] | None:
    for start, name, advice in _BY_START:
        if data.startswith(start):
            return name, advice
    if data.startswith(b"RIFF") and data[8:12] in _RIFF:
        return _RIFF[data[8:12]], "extract its frames" if data[8:12] == b"AVI " else "leave it out"
    if data[128:132] == b"DICM":
        return "DICOM", "save it as PNG"
    if data[-18:-2] == b"TRUEVISION-XFILE":
        return "Targa", "save it as PNG"
    if not data[:4096].strip(b"\0"):
        return "zeros: its content was lost or never copied", "copy it again"
    head = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in head:
        return "SVG", "save it as PNG"
    if head.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "a web page (the download failed?)", "fetch the image again"
    if head.startswith(b"<?xml"):
        return "XML", "fetch the image again"
    if head.startswith((b"{", b"[")) and b'"' in head:
        return "JSON (the download failed?)", "fetch the image again"
    return None
