"""A real Ray cluster, in network and process namespaces of its own: Ray listens on all addresses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

WORK = """
import sys
from kvferry.analysis.fanout import fan_out

def square(number):
    return number * number

alone = list(fan_out(square, list(range(20))))
assert list(fan_out(square, list(range(20)), workers=2, ray_address="local")) == alone
print("equal")
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_ray_cluster_gives_the_same(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare: Ray would listen on all addresses of this machine")
    script = tmp_path / "work.py"
    script.write_text(WORK)
    alone = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("namespaces are not permitted here")
    done = subprocess.run(
        [*alone, "sh", "-c", f"ip link set lo up && exec {sys.executable} {script}"],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines()[-1:] == ["equal"], done.stderr
