import signal
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.spec.errors import InUse
from windlass.store.lock import held, locked

HOLDER = """
import sys, time
from pathlib import Path
from windlass.store.lock import locked
with locked(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_only_one_holds_it_alone(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "l", "the run"),
        pytest.raises(InUse, match="the run is in use by process"),
        locked(tmp_path / "l", "the run"),
    ):
        pass


def test_many_may_hold_it_together_and_keep_others_out(tmp_path: Path) -> None:
    with (
        held(tmp_path / "l", "it"),
        held(tmp_path / "l", "it"),
        pytest.raises(InUse),
        locked(tmp_path / "l", "it"),
    ):
        pass
    with locked(tmp_path / "l", "it"):
        pass


def test_a_killed_holder_leaves_nothing_to_clean_up(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "l")], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(InUse, match=str(holder.pid)), locked(tmp_path / "l", "it"):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    with locked(tmp_path / "l", "it"):
        pass
