"""A headless Chromium, where one is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["BROWSER", "needs_browser", "rendered"]

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (path := shutil.which(name))
    ),
    None,
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed: apt install chromium")


def rendered(page: Path, profile: Path, *flags: str) -> str:
    """The page's document after its script ran. The browser may not look any name up."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER,
            "--headless=new",
            # Tests run as root in containers, where Chromium's sandbox cannot.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={profile}",
            "--virtual-time-budget=20000",
            *flags,
            "--dump-dom",
            page.resolve().as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout
