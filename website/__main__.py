"""Build the static site into a folder: python -m website [FOLDER]."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bert_probe import load
from bert_probe.model.checkpoint import Checkpoint
from website.documents import write_documents
from website.gallery import write_gallery
from website.gallery_entries import ENTRIES
from website.landing import landing_page, write_hero
from website.layout import ROOT, SitePage, style_sheet, write_pages
from website.model_files import write_model
from website.onnx_model import export
from website.playground import playground_page
from website.precision import measure

_RUNTIME: Final = ROOT / "js/node_modules/onnxruntime-web/dist/ort-wasm-simd-threaded.wasm"
_FONTS: Final = ("SourceSansVF-Upright", "SourceSerifVariable-Roman", "SourceCodeVF-Upright")
"""Fonts of the app, which are part of Streamlit and have the SIL Open Font License."""


def build(folder: Path) -> None:
    """Build the complete site into a folder, and delete the previous content of the folder."""
    _clear(folder)
    for name in ("assets", "gallery", "playground/model"):
        (folder / name).mkdir(parents=True)
    checkpoint = load()
    _write_assets(folder / "assets")
    pages = write_documents(folder)
    pages += write_gallery(folder / "gallery", ENTRIES, checkpoint)
    pages += [landing_page(write_hero(folder / "assets/hero.html", checkpoint), len(ENTRIES))]
    pages += [_playground(folder / "playground/model", checkpoint)]
    write_pages(folder, pages)


def _clear(folder: Path) -> None:
    """Delete a site that was built earlier; exit with an error if the folder has any other content."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "assets/site.css").exists():
        sys.exit(f"{folder} is not empty and was not built by this command. Choose another folder.")
    shutil.rmtree(folder, ignore_errors=True)


def _write_assets(folder: Path) -> None:
    """Write scripts, styles, fonts and icons."""
    node = Path(sys.executable).with_name("node")
    subprocess.run(
        [node if node.exists() else "node", "build_site.js", str(folder.resolve())],
        cwd=ROOT / "js",
        check=True,
    )
    (folder / "site.css").write_text(style_sheet(), encoding="utf-8")
    shutil.copy(ROOT / "bert_probe/ui/static/favicon.svg", folder / "favicon.svg")
    import streamlit

    media = Path(streamlit.__file__).parent / "static/static/media"
    for name in _FONTS:
        shutil.copy(next(media.glob(f"{name}.*woff2")), folder / f"{name}.woff2")


def _playground(folder: Path, checkpoint: Checkpoint) -> SitePage:
    model = export(checkpoint)
    write_model(folder, model, checkpoint, _RUNTIME)
    size = sum(path.stat().st_size for path in folder.glob("*.bin"))
    return playground_page(size, measure(model, checkpoint))


def main() -> None:
    """Build the site into the folder given on the command line, and print the size of the site."""
    parser = argparse.ArgumentParser(prog="python -m website", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site", help="folder of the site")
    folder: Path = parser.parse_args().folder
    start = time.monotonic()
    build(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    pages = sum(path.suffix == ".html" for path in files)
    print(
        f"{os.path.relpath(folder)}: {len(files)} files, {pages} pages, {size / 1e6:.1f} MB, "
        f"{time.monotonic() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
