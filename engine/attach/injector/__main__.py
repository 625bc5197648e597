"""``python -I -S FOLDER ROOT [--pause-at STEP]``: FOLDER is this one, ROOT has adbg in it. Talks on its pipes."""

import sys

sys.path[0] = sys.argv[1]  # in place of this folder

from adbg.engine.attach.injector.loop import main  # noqa: E402

sys.exit(main(sys.argv[2:]))
