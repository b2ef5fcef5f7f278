"""`python -m reference_pages DIRECTORY`: write every page there."""

import sys
from pathlib import Path

from reference_pages.pages import pages

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name, text in pages().items():
    (folder / name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote {folder / name}\n")
